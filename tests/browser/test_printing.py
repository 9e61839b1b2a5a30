"""On paper everything is open and light, and afterwards the page is as it was."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from tests.browser.visit import BRIGHTNESS, Visit
from tests.builders import diagnosed_runs

pytestmark = pytest.mark.browser

# Added after the listener of the page, so that it sees what that did for paper.
LOOK = f"""
() => addEventListener("beforeprint", () => {{
  window.onPaper = {{
    closed: document.querySelectorAll("details.fold:not([open])").length,
    undrawn: [...document.querySelectorAll(".chart")].filter((chart) => !chart.querySelector("svg.main-svg")
      && !(chart.hidden && chart.parentElement.querySelector(".words").open)).length,
    drawn: document.querySelectorAll(".chart svg.main-svg").length > 0,
    light: {BRIGHTNESS.strip()} > 3 * 128,
  }};
}})
"""
CLOSED = "() => document.querySelectorAll('details.fold:not([open])').length"
OPEN = "() => document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"


def test_paper_shows_everything_and_the_page_returns_to_what_it_was(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(diagnosed_runs.diagnosed_run())), scheme="dark")
    closed = visited.page.evaluate(CLOSED)
    visited.page.locator(".chart:visible").first.scroll_into_view_if_needed()
    visited.page.locator('.chart[data-drawn="yes"]').first.wait_for()
    visited.page.evaluate(LOOK)
    pdf = visited.page.pdf(format="A4", print_background=True)
    assert visited.page.evaluate("window.onPaper") == {"closed": 0, "undrawn": 0, "drawn": True, "light": True}
    assert len(re.findall(rb"/Type /Page\b", pdf)) > 3
    assert closed == visited.page.evaluate(CLOSED) > 0
    assert visited.is_dark()
    assert visited.undrawn() == []
    assert visited.said == []


def test_without_scripts_every_chart_is_told_in_words(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(diagnosed_runs.diagnosed_run())), scripts=False)
    visited.page.evaluate(OPEN)
    for chart in visited.page.locator(".chart").all():
        title, _, words = (chart.get_attribute("aria-label") or "").partition(". ")
        assert title
        assert words
        assert chart.inner_text().split() == words.split()
