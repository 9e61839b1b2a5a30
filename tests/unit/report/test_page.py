from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest
from jinja2 import Environment
from msgspec.structs import replace
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from dpdoctor import rundir
from dpdoctor.analysis import Figure
from dpdoctor.report import page
from dpdoctor.report.blocks import Part, Shown
from dpdoctor.report.documents.run import SECTIONS, of_run
from tests.builders import diagnosed_runs, runs
from tests.builders.html import LOADING, Elements, elements


def test_the_page_holds_run_json_as_it_is_written() -> None:
    analysis = runs.cpu_run()
    assert json.loads(elements(analysis).json[-1]) == json.loads(rundir.encode(analysis.summary))


def test_every_chart_has_its_data() -> None:
    found = elements(runs.cpu_run())
    charts = [attributes for tag, attributes in found.found if "chart" in (attributes.get("class") or "").split()]
    assert len(charts) == len(found.json) - 1 > 5
    assert all(attributes["role"] == "group" and attributes["aria-label"] for attributes in charts)
    assert all(set(json.loads(text)) == {"data", "layout"} for text in found.json[:-1])


def test_a_footnote_stands_once_below_its_table_and_is_referred_to_by_number() -> None:
    analysis = runs.gpu_run()
    ddp = analysis.summary.modes["ddp"]
    html = page.render(of_run(analysis))
    body = html[: html.index('<script type="application/gzip" id="run">')]
    notes = re.findall(r'<ol class="footnotes">(.*?)</ol>', body, re.DOTALL)
    assert [re.findall("<li>(.*?)</li>", note) for note in notes] == [
        [ddp.epoch_s.reason],
        [ddp.observer_overhead.reason, ddp.profiler_overhead.reason],
    ]
    assert re.findall(r"unknown<sup>(\d)</sup>", body) == ["2", "2"]


def test_nothing_is_loaded() -> None:
    html = page.render(of_run(runs.hostile_run()))
    for tag, attributes in Elements(html).found:
        for name in LOADING & set(attributes):
            assert (attributes[name] or "").startswith("#"), f"<{tag} {name}={attributes[name]}>"
    # The one address stands in a script that opens it at a click.
    assert re.findall(r"https?://[^\s\"]*|@import|url\(", html) == ["https://ui.perfetto.dev"]


def test_plotly_is_there_once() -> None:
    assert elements(runs.cpu_run()).plotly == [get_plotlyjs()]


def test_what_plotly_takes_of_a_page_is_small() -> None:
    assert len(page.render(of_run(runs.empty_run()))) < 0.45 * len(get_plotlyjs())


def test_the_same_run_gives_the_same_page() -> None:
    assert page.render(of_run(runs.cpu_run())) == page.render(of_run(runs.cpu_run()))


def test_the_policy_lets_only_our_scripts_run() -> None:
    html = page.render(of_run(runs.cpu_run()))
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    trusted = [*scripts, get_plotlyjs()]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in trusted]
    ours = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert len(scripts) == 2
    assert policy.replace("&#39;", "'") == (
        f"default-src 'none'; script-src {ours}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def test_text_of_the_run_stays_text() -> None:
    found = elements(runs.hostile_run())
    assert "img" not in {tag for tag, _ in found.found}
    assert not any(name.startswith("on") for _, attributes in found.found for name in attributes)
    assert not any("alert" in text for text in found.scripts)
    assert "</script>" in json.loads(found.json[-1])["command"][3]


def test_labels_in_charts_are_escaped_for_plotly() -> None:
    for text in elements(runs.hostile_run()).json[:-1]:
        assert "<img" not in text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    analysis = runs.cpu_run()
    single = replace(analysis.summary.modes["single"], epoch_s=Figure(value=value, unit="s"))
    summary = replace(analysis.summary, modes={"single": single})
    with pytest.raises(ValueError, match=str(value)):
        page.render(of_run(replace(analysis, summary=summary)))


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_json_has_no_such_number(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.packed_json({"y": [1.0, value]})


@pytest.mark.parametrize("run", [runs.cpu_run, runs.gpu_run, runs.rankless_run, runs.empty_run])
def test_nothing_python_shows_through(run: object) -> None:
    html = page.render(of_run(run()))
    body = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
    assert not re.search(r"\b(None|nan|NaN|inf|True|False)\b|Figure\(|\{\{|\}\}", body)


def test_every_section_is_in_the_contents() -> None:
    found = elements(runs.cpu_run()).found
    links = [attributes["href"] for tag, attributes in found if tag == "a"]
    sections = [f"#{attributes['id']}" for tag, attributes in found if tag == "section"]
    assert [link for link in links if link != "#not-measured"] == ["#content", *sections]
    assert sections == [f"#{section.name}" for section in SECTIONS]


def test_every_block_of_code_has_a_copy_button() -> None:
    html = page.render(of_run(diagnosed_runs.diagnosed_run()))
    body = html[: html.index('<script type="application/gzip" id="run">')]
    assert body.count("<pre") == body.count('</pre><button class="copy" type="button" hidden>Copy</button>') > 5


def test_no_button_shows_before_its_script_ran() -> None:
    found = elements(diagnosed_runs.diagnosed_run()).found
    buttons = [attributes for tag, attributes in found if tag == "button"]
    assert {"theme", "copy", "all", "pick", None} >= {attributes.get("class") for attributes in buttons}
    assert all("hidden" in attributes and attributes["type"] == "button" for attributes in buttons)


def test_a_cell_has_the_number_that_it_shows() -> None:
    analysis = runs.cpu_run()
    value = analysis.summary.modes["ddp"].throughput.value
    cell = f'<td class="number"><data value="{value}">447 samples/s</data><small>443–451</small>'
    assert cell in page.render(of_run(analysis))


def test_the_first_screen_leads_to_the_whole_findings() -> None:
    found = elements(diagnosed_runs.diagnosed_run()).found
    links = [
        attributes["href"] for tag, attributes in found if tag == "a" and "#finding-" in (attributes["href"] or "")
    ]
    addresses = [f"#{attributes['id']}" for tag, attributes in found if tag == "article" and "id" in attributes]
    assert links[:2] == ["#finding-1", "#finding-2"]
    assert set(links) <= set(addresses)
    assert len(addresses) == len(set(addresses)) == 4


def test_the_dark_colors_stand_apart_so_that_they_can_be_chosen() -> None:
    html = page.render(of_run(runs.cpu_run()))
    assert html.index('<style id="dark" media="(prefers-color-scheme: dark)">:root {') < html.index("const theme")
    assert html.index("const theme") < html.index("<body>")


@pytest.mark.parametrize(
    ("are_half", "rows"),
    [
        ([], []),
        ([False, False], [["0"], ["1"]]),
        ([True, True], [["0|1"]]),
        ([False, True, True, True, True], [["0"], ["12|34"]]),
        ([True, True, True, False, True], [["0|12"], ["3"], ["4"]]),
    ],
)
def test_views_that_have_room_beside_each_other_are_a_row_of_two_stacks(
    are_half: list[bool], rows: list[list[str]]
) -> None:
    views = tuple(Shown(name=str(number), title="", blocks=(), is_half=half) for number, half in enumerate(are_half))
    part = Part(name="a", title="A", result="", views=views)
    assert [["|".join("".join(view.name for view in stack) for stack in row)] for row in part.rows] == rows


LINK = "../plotly-1.2.3.min.js"


@pytest.mark.parametrize(("keeps", "folder", "compiled"), [(True, "", 1), (False, "", 2), (True, "not/there", 2)])
def test_a_template_is_compiled_once_where_python_keeps_what_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool, folder: str, compiled: int
) -> None:
    generated: list[str] = []
    generate = Environment._generate
    monkeypatch.setattr(Environment, "_generate", lambda *args, **rest: generated.append("") or generate(*args, **rest))
    monkeypatch.setattr(page, "__file__", str(tmp_path / folder / "page.py"))
    monkeypatch.setattr(sys, "dont_write_bytecode", not keeps)
    (tmp_path / "__pycache__").mkdir()
    for _ in range(2):
        page.new_environment().get_template("page.html")
    assert len(generated) == compiled


def test_the_file_is_named_after_the_version() -> None:
    assert f"plotly-{get_plotlyjs_version()}.min.js" == page.PLOTLY_FILE
    assert page.plotly_source() == get_plotlyjs()


def test_a_page_that_shares_it_is_small_and_says_what_it_loads() -> None:
    html = page.render(of_run(runs.cpu_run()), plotly_link=LINK)
    assert Elements(html).plotly == []
    assert len(html) < len(page.render(of_run(runs.cpu_run()))) - 1_900_000
    (said,) = re.findall("<footer>(.*?)</footer>", html, re.DOTALL)
    assert LINK in said
    assert "loads nothing" not in said
    assert "loads nothing" in page.render(of_run(runs.cpu_run())).rpartition("<footer>")[2]


def test_no_element_loads_it_but_our_script_by_its_hash() -> None:
    found = Elements(page.render(of_run(runs.cpu_run()), plotly_link=LINK)).found
    assert not [name for _, attributes in found for name in LOADING & set(attributes) if name != "href"]
    (loader,) = [attributes for tag, attributes in found if tag == "script" and "data-link" in attributes]
    digest = base64.b64encode(hashlib.sha256(get_plotlyjs().encode()).digest()).decode()
    assert loader == {
        "type": "application/gzip",
        "id": "plotly",
        "data-link": LINK,
        "data-integrity": f"sha256-{digest}",
    }


def test_the_policy_trusts_our_scripts_and_what_they_load() -> None:
    html = page.render(of_run(runs.cpu_run()), plotly_link=LINK)
    scripts = [*re.findall(r"<script>(.*?)</script>", html, re.DOTALL), get_plotlyjs()]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    trusted = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert policy.replace("&#39;", "'") == (
        f"default-src 'none'; script-src {trusted} 'strict-dynamic'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def test_what_to_do_without_it_is_hidden_until_it_is_missed() -> None:
    html = page.render(of_run(runs.cpu_run()), plotly_link=LINK)
    notices = [item for item in Elements(html).found if item[0] == "aside"]
    (notice,) = [attributes for _, attributes in notices if attributes.get("id") == "no-plotly"]
    assert "hidden" in notice
    assert "DecompressionStream" in page.render(of_run(runs.cpu_run())).partition("<main ")[2].partition("<section")[0]
