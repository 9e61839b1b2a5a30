"""Paper is light, has the summary on one page and what is open; afterwards the page is as it was."""

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
    undrawn: [...document.querySelectorAll(".chart")].filter((chart) => !chart.querySelector("svg.main-svg")
      && !(chart.hidden && chart.parentElement.querySelector(".words").open)).length,
    drawn: document.querySelectorAll(".chart svg.main-svg").length > 0,
    light: {BRIGHTNESS.strip()} > 3 * 128,
  }};
}})
"""
OPEN = "() => document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"
OPEN_SECTIONS = "() => document.querySelectorAll('section > details').forEach((fold) => { fold.open = true; })"


def num_pages(pdf: bytes) -> int:
    """Return the number of pages of a PDF."""
    return len(re.findall(rb"/Type /Page\b", pdf))


def test_the_summary_is_one_page_and_the_lines_of_closed_sections_another(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(diagnosed_runs.diagnosed_run())))
    assert num_pages(visited.page.pdf(format="A4")) == 2


def test_paper_is_light_has_what_is_open_and_the_page_returns_to_what_it_was(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(diagnosed_runs.diagnosed_run())), scheme="dark")
    visited.page.evaluate(OPEN_SECTIONS)
    visited.page.locator(".chart:visible").first.scroll_into_view_if_needed()
    visited.page.locator('.chart[data-drawn="yes"]').first.wait_for()
    visited.page.evaluate(LOOK)
    pdf = visited.page.pdf(format="A4", print_background=True)
    assert visited.page.evaluate("window.onPaper") == {"undrawn": 0, "drawn": True, "light": True}
    assert num_pages(pdf) > 3
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
