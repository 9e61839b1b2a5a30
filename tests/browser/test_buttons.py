"""What the buttons of the page do: copy a line, change the theme, hand out run.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from tests.browser.visit import PATIENCE_MS, Visit
from tests.builders import diagnosed_runs, runs

pytestmark = pytest.mark.browser

# Charts that were drawn have the colour of the page's small print.
CHARTS_FOLLOW = """
() => {
  const soft = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
  const drawn = [...document.querySelectorAll('.chart[data-drawn="yes"]')];
  return drawn.length > 0 && drawn.every((chart) => chart.layout.font.color === soft);
}
"""


@pytest.fixture
def diagnosed(visit: Callable[..., Visit]) -> Visit:
    """Return the page of a run with findings."""
    return visit(page.render(of_run(diagnosed_runs.diagnosed_run())))


def test_a_line_of_code_is_copied_as_it_stands(diagnosed: Visit) -> None:
    diagnosed.page.goto(f"{diagnosed.page.url}#finding-1")
    card = diagnosed.page.locator("#findings .card:has(button.copy)").first
    card.locator("button.copy").click()
    (code,) = card.locator("pre code").all_text_contents()
    assert diagnosed.page.evaluate("navigator.clipboard.readText()") == code == "DataLoader(..., num_workers=4)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_button_turns_the_page_and_its_charts_over_and_back(visit: Callable[..., Visit], scheme: str) -> None:
    visited = visit(page.render(of_run(runs.cpu_run())), scheme=scheme)
    visited.page.locator("section > details > summary").first.click()
    visited.page.locator(".chart:visible").first.scroll_into_view_if_needed()
    visited.page.locator('.chart[data-drawn="yes"]').first.wait_for(timeout=PATIENCE_MS)
    seen = [visited.is_dark()]
    for _ in range(3):
        visited.page.locator("button.theme").click()
        visited.page.wait_for_function(CHARTS_FOLLOW, timeout=PATIENCE_MS)
        seen.append(visited.is_dark())
    assert seen[0] == (scheme == "dark")
    assert set(seen) == {True, False}
    assert visited.said == []


def test_the_download_is_run_json(visit: Callable[..., Visit], tmp_path: Path) -> None:
    analysis = runs.hostile_run()
    visited = visit(page.render(of_run(analysis)))
    with visited.page.expect_download() as download:
        visited.page.locator("#download").click()
    assert download.value.suggested_filename == "run.json"
    download.value.save_as(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_bytes()) == json.loads(rundir.encode(analysis.summary))
    assert visited.requests == []
