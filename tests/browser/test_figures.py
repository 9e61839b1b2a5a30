"""The numbers on the page are those of the run.json inside of it, each where it belongs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dpdoctor import rundir
from dpdoctor.analysis import Analysis
from dpdoctor.report import page
from dpdoctor.report.documents.run import SECTIONS, of_run
from dpdoctor.report.text import mode_label
from dpdoctor.rules import BY_NAME
from tests.browser import figures
from tests.browser.pages import RUNS
from tests.browser.visit import Visit
from tests.builders import diagnosed_runs, runs

pytestmark = pytest.mark.browser

COLUMNS = {
    "Throughput": "throughput",
    "Step": "step",
    "Speedup": "speedup",
    "Of linear": "scaling_efficiency",
    "Epoch": "epoch_s",
}
COMPARED = ("Speedup", "Of linear")
MEASURED = [runs.cpu_run, runs.gpu_run, runs.repeated_run, diagnosed_runs.diagnosed_run]
# Of each cell what it says itself, and the small line below.
READ_TABLE = """
(table) => {
  const own = (cell) => {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll("small, sup").forEach((other) => other.remove());
    return copy.textContent.trim();
  };
  const titles = [...table.tHead.rows[0].cells].map(own);
  return [...table.tBodies[0].rows].map((row) => Object.fromEntries([...row.cells].map(
    (cell, place) => [titles[place], { text: own(cell), note: cell.querySelector("small")?.textContent ?? "" }],
  )));
}
"""
READ_CARDS = """
(cards) => cards.map((card) => ({
  title: card.querySelector("h3").textContent.trim(),
  badges: [...card.querySelectorAll(".badge")].map((badge) => badge.textContent.trim()),
  pairs: Object.fromEntries([...card.querySelectorAll("dl div")].map(
    (pair) => [pair.querySelector("dt").textContent.trim(), pair.querySelector("dd").textContent.trim()],
  )),
  code: card.querySelector("pre code")?.textContent ?? null,
  points: [...card.querySelectorAll("li")].map((point) => point.textContent.trim()),
}))
"""
# What a rule says of itself has numbers of its own, and those of references to footnotes are none.
READ_SECTION = """
(section) => {
  section.querySelectorAll("details").forEach((fold) => { fold.open = true; });
  section.querySelectorAll("sup").forEach((reference) => reference.remove());
  section.querySelectorAll(".card .words").forEach((about) => about.remove());
  return section.innerText;
}
"""


@pytest.fixture(params=MEASURED, ids=lambda run: run.__name__)
def read(request: pytest.FixtureRequest, visit: Callable[..., Visit]) -> Visit:
    """Return the page of a run, read without its scripts: nothing of what it says may hang on them."""
    return visit(page.render(of_run(request.param())), scripts=False)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_page_holds_run_json_and_every_section_that_applies(
    visit: Callable[..., Visit], run: Callable[[], Analysis]
) -> None:
    analysis = run()
    visited = visit(page.render(of_run(analysis)), scripts=False)
    assert visited.run_json() == json.loads(rundir.encode(analysis.summary))
    assert [section.get_attribute("id") for section in visited.page.locator("main > section").all()] == [
        section.name for section in SECTIONS
    ]


def test_the_table_of_modes_shows_the_figures_of_each(read: Visit) -> None:
    modes = read.run_json()["modes"]
    rows = read.page.locator("#overview table:not(.bars)").evaluate(READ_TABLE)
    assert [row["Mode"]["text"] for row in rows] == [mode_label(name) for name in modes]
    for row, (name, mode) in zip(rows, modes.items(), strict=True):
        assert {title: row[title]["text"] for title in COLUMNS} == {
            title: _expected(name, mode, title) for title in COLUMNS
        }
        for title, field in COLUMNS.items():
            if row[title]["text"] != figures.NOTHING:
                assert row[title]["note"] == _below(mode[field])


def _expected(name: str, mode: dict[str, Any], title: str) -> str:
    compared = name != figures.BASELINE and mode["status"] != "inactive"
    if figures.is_withheld(mode) or (title in COMPARED and not compared):
        return figures.NOTHING
    if title == "Of linear" and mode["num_devices"] == 1:
        return figures.NOTHING
    return figures.shown(mode[COLUMNS[title]])


def _below(figure: dict[str, Any]) -> str:
    """Return the interval as it stands below its figure, which has the unit already."""
    unit = figures.shown(figure).lstrip("-,.0123456789")
    return figures.interval(figure).removesuffix(unit)


def test_every_finding_has_a_card_with_its_figures(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(diagnosed_runs.diagnosed_run())), scripts=False)
    run = visited.run_json()
    cards = visited.page.locator("#findings .card").evaluate_all(READ_CARDS)
    assert len(cards) == len(run["findings"])
    for finding in run["findings"]:
        title = finding["title"][0].upper() + finding["title"][1:]
        (card,) = (card for card in cards if card["title"] == title and finding["status"] in card["badges"])
        cost, predicted = finding["cost"], finding["speedup"]
        of = "an epoch" if finding["share_of"] == "epoch" else "each step"
        assert card["pairs"]["Cost"] == f"{_with_interval(cost)} of {of}"
        assert mode_label(finding["mode"]) in card["badges"]
        assert card["code"] == finding["code"]
        assert card["points"] == finding["evidence"]
        if predicted is not None and finding["status"] != "refuted":
            assert card["pairs"]["Speedup"].partition(", ")[0] == _with_interval(predicted)


def _with_interval(figure: dict[str, Any]) -> str:
    spread = _below(figure)
    return f"{figures.shown(figure)} ({spread})" if spread else figures.shown(figure)


@pytest.mark.parametrize("section", ["overview", "findings"])
def test_no_number_is_shown_that_is_not_in_run_json(read: Visit, section: str) -> None:
    text = read.page.locator(f"#{section}").evaluate(READ_SECTION)
    allowed = figures.known_numbers(read.run_json()) | figures.numbers(str(len(BY_NAME)))
    assert figures.numbers(text) - allowed == set()
