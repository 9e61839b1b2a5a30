from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis import Analysis, ModeSummary
from dpdoctor.report.blocks import Block, Callout, Card, Chart, Grid, Heading, Paragraph, Table, Verdict
from dpdoctor.report.bottlenecks import first_cards
from dpdoctor.report.drawing.throughput_bars import STEADY, WITH_EDGES, throughput_bars
from dpdoctor.report.sections import findings as findings_section
from dpdoctor.report.text import capital
from dpdoctor.report.words import diagnosis
from tests.builders import runs, traced_runs
from tests.builders.diagnosed_runs import diagnosed_run, figure, finding, unknown, with_findings
from tests.builders.figures import figures
from tests.builders.sections import SECTIONS, build, only


def cards(analysis: Analysis) -> list[Card]:
    return [card for block in first_cards(analysis.summary) if isinstance(block, Grid) for card in block.blocks]


class TestOrder:
    def test_answer_troubles_bars_cards_table(self) -> None:
        blocks: list[Block] = list(SECTIONS["overview"].build(diagnosed_run()))
        kinds = [type(block) for block in blocks if not isinstance(block, Paragraph)]
        assert kinds == [Verdict, Callout, Chart, Heading, Grid, Table]

    def test_without_anything_costly_there_are_no_cards(self) -> None:
        assert first_cards(runs.cpu_run().summary) == []

    @pytest.mark.parametrize("run", [runs.failed_run, runs.rankless_run, runs.empty_run])
    def test_without_a_figure_there_are_no_bars(self, run: object) -> None:
        assert only(Chart, build("overview", run())) == []

    def test_a_run_made_of_traces_has_its_cards_too(self) -> None:
        late = traced_runs.late_run()
        (mode,) = late.summary.modes
        blocks = build("traces", with_findings(late, finding("straggler", mode)))
        assert [card.title for card in only(Card, blocks)] == [capital(finding().title)]


class TestBars:
    def measured(self) -> dict[str, ModeSummary]:
        modes = runs.cpu_run().summary.modes
        return {name: modes[name] for name in ("single", "dp", "ddp")}

    def test_labels_have_speedup_and_share_of_linear(self) -> None:
        axis = throughput_bars(self.measured(), (STEADY,)).layout["yaxis"]
        assert axis["tickvals"] == ["One device", "DataParallel", "DDP"]
        assert axis["ticktext"] == ["One device", "DataParallel<br>changed nothing", "DDP<br>1.41x, 70.7 % of linear"]

    def test_bars_are_drawn_at_their_labels_with_whiskers(self) -> None:
        steady, linear = throughput_bars(self.measured(), (STEADY,)).traces
        assert steady["y"] == ["One device", "DataParallel", "DDP"]
        assert steady["x"] == pytest.approx([316, 316, 447], abs=1)
        assert all(arm > 0 for arm in (*steady["error_x"]["array"], *steady["error_x"]["arrayminus"]))
        assert (linear["y"], linear["x"]) == (["DDP"], pytest.approx([632], abs=1))

    def test_each_kind_has_bars(self) -> None:
        chart = throughput_bars(self.measured(), (STEADY, WITH_EDGES))
        assert [trace["name"] for trace in chart.traces] == ["steady", "with epoch edges", "linear scaling"]

    def test_one_device_alone_needs_no_legend(self) -> None:
        chart = throughput_bars({"single": runs.cpu_run().summary.modes["single"]}, (STEADY,))
        assert chart.layout["showlegend"] is False
        assert "Diamond" not in chart.how_to_read

    def test_in_words(self) -> None:
        said = throughput_bars(self.measured(), (STEADY,)).alternative.rpartition("DDP: ")[2]
        assert figures(said) == ["447 samples/s", "443", "451 samples/s", "1.41x", "70.7 %"]

    def test_hostile_names_are_escaped(self) -> None:
        mode = dataclasses.replace(self.measured()["single"])
        (label,) = throughput_bars({"<img>": mode}, (STEADY,)).layout["yaxis"]["ticktext"]
        assert label.startswith("&lt;img&gt;")


class TestCards:
    def test_a_card_has_what_a_reader_acts_on(self) -> None:
        card, found = cards(diagnosed_run())[0], finding()
        assert card.title == capital(found.title)
        assert [(badge.text, badge.tone) for badge in card.badges] == [("DDP", "muted"), ("confirmed", "good")]
        assert card.pairs == (
            ("Cost", diagnosis.cost_words(found)),
            ("Would give", diagnosis.gain_words(found)),
            ("Do", "Set num_workers=4."),
            ("In your script", "train.py:30"),
        )
        assert (card.code, card.points, card.tone) == ("DataLoader(..., num_workers=4)", (), "bad")

    def test_it_leads_to_the_whole_card(self) -> None:
        analysis = diagnosed_run()
        whole = {card.anchor: card for card in only(Card, findings_section.build(analysis))}
        assert [whole[card.whole].title for card in cards(analysis)] == [card.title for card in cards(analysis)]
        assert all(whole[card.whole].points for card in cards(analysis))

    def test_every_finding_has_an_address_of_its_own(self) -> None:
        addresses = [card.anchor for card in only(Card, build("findings", diagnosed_run()))]
        assert sorted(addresses) == [f"finding-{place}" for place in range(1, 5)]

    def test_without_few_words_the_whole_remedy_is_told(self) -> None:
        (card,) = cards(with_findings(runs.cpu_run(), finding()))
        assert ("Do", f"{capital(str(finding().remedy))}.") in card.pairs

    def test_unknown_costs_and_gains_give_their_reason(self) -> None:
        found = finding(cost=unknown("too few steps", "ratio"), predicted=unknown("no simulation", "x"))
        (card,) = cards(with_findings(runs.cpu_run(), found))
        assert dict(card.pairs)["Cost"] == "unknown: too few steps"
        assert dict(card.pairs)["Would give"] == "unknown: no simulation"

    def test_where_nothing_is_known_to_do_nothing_is_said(self) -> None:
        (card,) = cards(with_findings(runs.cpu_run(), finding(remedy=None, code=None, line=None, predicted=None)))
        assert [name for name, _ in card.pairs] == ["Cost"]
        assert card.code == ""

    def test_of_many_the_first_three_are_shown_and_the_others_counted(self) -> None:
        many = with_findings(runs.cpu_run(), *(finding(f"rule_{place}", title=f"number {place}") for place in range(5)))
        assert [card.title for card in cards(many)] == ["Number 0", "Number 1", "Number 2"]
        last = first_cards(many.summary)[-1]
        assert isinstance(last, Paragraph)
        assert figures(last.text) == ["2"]
        assert diagnosis.MOST_FIRST == 3


class TestOneBottleneckOfSeveralModes:
    def test_it_is_one_card(self) -> None:
        single = finding(mode="single", cost=figure(0.30, 0.02, "ratio"), status="inferred")
        (card,) = cards(with_findings(runs.cpu_run(), finding(), single))
        where, cost = card.pairs[-1]
        assert where.endswith("One device")
        assert cost == f"{diagnosis.cost_words(single)}, inferred"

    def test_another_remedy_is_told(self) -> None:
        single = finding(mode="single", remedy="set num_workers=1; now it is 0", short="set num_workers=1")
        (card,) = cards(with_findings(runs.cpu_run(), finding(), single))
        assert card.pairs[-1][1] == f"{diagnosis.cost_words(single)}, confirmed: set num_workers=1"

    def test_a_failed_mode_is_left_out(self) -> None:
        (card,) = cards(with_findings(runs.cpu_run(), finding(), finding(mode="fsdp")))
        assert not any("Also" in name for name, _ in card.pairs)
