"""What lies compressed in the page: inflated once a reader comes to it, run only as what it was, and told in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from dpdoctor.report.page import packed
from tests.browser.visit import Visit
from tests.builders import diagnosed_runs, runs

pytestmark = pytest.mark.browser

OPEN = "() => document.querySelectorAll('main details').forEach((fold) => { fold.open = true; })"
RUNS = "typeof Plotly !== 'undefined'"


def test_plotly_runs_only_once_a_chart_is_near(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(diagnosed_runs.diagnosed_run())))
    visited.page.wait_for_timeout(500)
    assert not visited.page.evaluate(RUNS)
    visited.page.evaluate(OPEN)
    visited.page.locator(".chart:visible").first.scroll_into_view_if_needed()
    visited.page.locator('.chart[data-drawn="yes"]').first.wait_for()
    assert visited.page.evaluate(RUNS)
    assert visited.said == []


def test_another_script_in_its_place_does_not_run(visit: Callable[..., Visit]) -> None:
    """The policy knows plotly.js by its hash, also where it is inflated."""
    html = page.render(of_run(runs.cpu_run())).replace(packed(page.plotly_source()), packed("document.title = 'taken'"))
    visited = visit(html)
    visited.page.evaluate(OPEN)
    visited.page.locator(".chart:visible").first.scroll_into_view_if_needed()
    visited.page.locator("#no-plotly").wait_for()
    assert visited.page.title() != "taken"
    assert any("Content Security Policy" in line for line in visited.said)


def test_a_browser_that_cannot_inflate_tells_the_charts_in_words(browser: Browser, tmp_path: Path) -> None:
    (file := tmp_path / "report.html").write_text(page.render(of_run(runs.cpu_run())), encoding="utf-8")
    context = browser.new_context(offline=True)
    context.add_init_script("delete window.DecompressionStream")
    found = context.new_page()
    found.goto(file.as_uri())
    found.evaluate(OPEN)
    chart = found.locator(".chart:visible").first
    chart.scroll_into_view_if_needed()
    found.locator("#no-plotly").wait_for()
    assert "DecompressionStream" in found.locator("#no-plotly").inner_text()
    assert "could not be drawn" in chart.inner_text()
    assert chart.locator("xpath=..").locator(".words p").is_visible()
    assert not found.locator("#download").is_visible()
    context.close()
