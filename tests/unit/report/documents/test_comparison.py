from __future__ import annotations

import json
import re
from collections.abc import Callable

import plotly.graph_objects
import pytest

from dpdoctor import rundir
from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report import page
from dpdoctor.report.blocks import Absent, Block, Callout, Card, Chart, Fold, Headline, Table, View
from dpdoctor.report.documents.comparison import SECTIONS as IN_ORDER
from dpdoctor.report.documents.comparison import of_comparison
from dpdoctor.rules import BY_NAME
from tests.builders import compared_pairs as pairs
from tests.builders.html import Elements
from tests.builders.sections import flat, only

VIEWS: dict[str, View[Comparison]] = {view.name: view for section in IN_ORDER for view in section.views}
STARVED = f"{BY_NAME['data_starved'].title} ddp, data_starved"


def build(name: str, comparison: Comparison) -> list[Block]:
    return list(flat(VIEWS[name].build(comparison)))


def tables(name: str, comparison: Comparison) -> dict[str, dict[str, list[str]]]:
    """Return by caption the texts of each row, by the text and note of its first cell."""
    return {
        table.caption: {
            " ".join(filter(None, (row[0].text, row[0].note))): [cell.text for cell in row[1:]] for row in table.rows
        }
        for table in only(Table, build(name, comparison))
    }


def elements(comparison: Comparison) -> Elements:
    return Elements(page.render(of_comparison(comparison)))


@pytest.mark.parametrize("pair", pairs.EVERY)
class TestEveryComparison:
    def test_has_a_page_with_its_numbers(self, pair: Callable[[], Comparison]) -> None:
        comparison = pair()
        found = elements(comparison)
        assert json.loads(found.json[-1]) == json.loads(rundir.encode(comparison))
        links = [attributes["href"] for tag, attributes in found.found if tag == "a"]
        sections = [f"#{attributes['id']}" for tag, attributes in found.found if tag == "section"]
        assert links == ["#content", *sections]
        assert sections[0] == "#summary"

    def test_draws_only_what_plotly_knows(self, pair: Callable[[], Comparison]) -> None:
        comparison = pair()
        for name in VIEWS:
            for chart in only(Chart, build(name, comparison)):
                # plotly refuses an attribute that it does not know with a ValueError.
                plotly.graph_objects.Figure(data=list(chart.traces), layout=chart.layout)
                assert chart.how_to_read.endswith(".")
                assert chart.alternative.endswith(".")

    def test_shows_nothing_of_python(self, pair: Callable[[], Comparison]) -> None:
        html = page.render(of_comparison(pair()))
        body = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
        assert not re.search(r"\b(None|nan|NaN|inf|True|False)\b|Figure\(|\{\{|\}\}", body)


def test_text_of_the_runs_stays_text() -> None:
    found = elements(pairs.hostile())
    assert "img" not in {tag for tag, _ in found.found}
    assert not any(name.startswith("on") for _, attributes in found.found for name in attributes)
    assert not any("alert" in text for text in found.scripts if text not in found.json)


def test_the_button_hands_out_the_comparison() -> None:
    buttons = [attributes for tag, attributes in elements(pairs.slower()).found if tag == "button"]
    assert [found["data-file"] for found in buttons if found.get("id") == "download"] == ["comparison.json"]


def test_the_first_screen_has_throughput_and_step_of_every_mode() -> None:
    (main, runs) = tables("overview", pairs.slower()).values()
    assert main["throughput ddp"][:2] == ["447 samples/s", "315 samples/s"]
    assert main["throughput ddp"][2] == "0.705x"
    assert main["step ddp"] == ["143 ms", "203 ms", "1.42x"]
    assert main["throughput single"][2] == "not measurably different"
    assert [*runs] == ["A the base", "B"]


def test_a_change_is_good_or_bad_by_its_direction() -> None:
    table = only(Table, build("overview", pairs.slower()))[0]
    tones = {(row[0].text, row[0].note): row[-1].tone for row in table.rows}
    assert tones == {
        ("throughput", "single"): "plain",
        ("step", "single"): "plain",
        ("throughput", "ddp"): "bad",
        ("step", "ddp"): "bad",
    }


def test_a_longer_step_of_a_larger_batch_is_not_bad() -> None:
    table = only(Table, build("overview", pairs.larger_batch()))[0]
    tones = {(row[0].text, row[0].note): row[-1].tone for row in table.rows}
    assert tones["step", "ddp"] == "plain"
    assert tones["throughput", "ddp"] == "good"


def test_what_changed_is_what_waits_for_data() -> None:
    (changed,) = tables("changes", pairs.slower()).values()
    assert changed["data_wait ddp"] == ["60.0 ms", "120 ms", "+60.0 ms"]
    assert "forward ddp" not in changed
    assert not any("single" in row for row in changed)


def test_that_nothing_else_changed_is_said() -> None:
    (callout,) = only(Callout, build("changes", pairs.alike()))
    assert callout.title == "Nothing else is measurably different"


def test_bars_of_throughput_have_each_mode_of_each_run() -> None:
    (chart,) = only(Chart, build("throughput", pairs.failed()))
    assert chart.alternative.count("samples/s (") == 3
    absent = [block.what for block in only(Absent, build("throughput", pairs.failed()))]
    assert "fsdp in A" in absent
    assert any("single in B" in what for what in absent)


def test_phases_are_on_the_scale_of_the_first_run() -> None:
    chart = {chart.title: chart for chart in only(Chart, build("phases", pairs.slower()))}["ddp: one step on the host"]
    total = sum(trace["x"][1] for trace in chart.traces)
    assert [sum(trace["x"][row] for trace in chart.traces) for row in (0, 1)] == [pytest.approx(100), total]
    assert total == pytest.approx(100 * 203 / 143, rel=0.01)


def test_shares_of_traces_change_by_points() -> None:
    (shares,) = tables("breakdown", pairs.traces()).values()
    assert shares["exposed communication traces"] == ["31%", "10%", "-21 points"]


def test_a_finding_that_appeared_has_its_remedy() -> None:
    (found,) = tables("findings", pairs.diagnosed()).values()
    assert found[STARVED] == ["not found", "42%", "appeared"]
    cards = only(Card, build("findings", pairs.diagnosed()))
    assert "DataLoader(..., num_workers=4)" in [card.code for card in cards]


def test_what_is_gone_is_said_without_a_card() -> None:
    (found,) = tables("findings", pairs.mended()).values()
    assert found[STARVED] == ["42%", "not found", "gone"]
    assert only(Card, build("findings", pairs.mended())) == []


def test_ablations_that_one_run_did_not_run_are_unknown_there() -> None:
    (gains,) = tables("ablations", pairs.diagnosed()).values()
    assert gains["gain of cached_batches single"][0] == "unknown"


def test_the_environment_shows_what_differs_first() -> None:
    blocks = VIEWS["environment"].build(pairs.larger_batch())
    first = only(Table, blocks)[0]
    assert [row[0].text for row in first.rows] == ["cores", "torch"]
    assert isinstance(only(Fold, blocks)[0].blocks[0], Table)


def test_a_verdict_leads_the_page() -> None:
    assert isinstance(VIEWS["overview"].build(pairs.nothing())[0], Headline)
