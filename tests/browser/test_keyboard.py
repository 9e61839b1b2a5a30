"""The page without a mouse: Tab reaches everything that can be used, and shows where it is; Enter and Space use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpdoctor.report import page
from tests.browser.many_rows import many_rows
from tests.browser.visit import Visit
from tests.unit.report import diagnosed_runs

pytestmark = pytest.mark.browser

WATCH = """
() => {
  window.reached = new Set();
  window.unmarked = new Set();
  addEventListener("focusin", ({ target }) => {
    window.reached.add(target);
    if (getComputedStyle(target).outlineStyle === "none") window.unmarked.add(target);
  });
  const usable = [...document.querySelectorAll('a[href], button, input, summary, [tabindex="0"]')];
  window.usable = usable.filter((one) => one.checkVisibility() && !one.disabled && !one.closest(".chart"));
  return window.usable.length;
}
"""
MISSED = """
() => {
  const words = (one) => `${one.tagName} ${one.className} ${one.textContent.trim().slice(0, 60)}`;
  return {
    unreached: window.usable.filter((one) => !window.reached.has(one)).map(words),
    unmarked: window.usable.filter((one) => window.unmarked.has(one)).map(words),
  };
}
"""


@pytest.mark.parametrize("run", [diagnosed_runs.diagnosed_run, many_rows])
def test_tab_reaches_everything_that_can_be_used_and_shows_where_it_is(
    visit: Callable[..., Visit], run: Callable
) -> None:
    visited = visit(page.render(run()))
    visited.page.evaluate("document.querySelectorAll('details.fold').forEach((fold) => { fold.open = true; })")
    usable = visited.page.evaluate(WATCH)
    # Charts may have stops of their own between.
    for _ in range(2 * usable):
        visited.page.keyboard.press("Tab")
    assert usable > 20
    assert visited.page.evaluate(MISSED) == {"unreached": [], "unmarked": []}


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_fold_opens_and_closes(visit: Callable[..., Visit], key: str) -> None:
    visited = visit(page.render(diagnosed_runs.diagnosed_run()))
    fold = visited.page.locator("details.fold").first
    was_open = fold.evaluate("(fold) => fold.open")
    for _ in range(2):
        fold.locator("summary").first.press(key)
        was_open = not was_open
        assert fold.evaluate("(fold) => fold.open") is was_open


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_table_is_sorted(visit: Callable[..., Visit], key: str) -> None:
    visited = visit(page.render(many_rows()))
    button = visited.page.locator("#kernels th:not([aria-sort=ascending], [aria-sort=descending]) button.sort").first
    head = button.locator("xpath=ancestor::th").element_handle()
    button.press(key)
    assert head.get_attribute("aria-sort") in ("ascending", "descending")


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_line_is_copied_the_theme_changed_and_run_json_handed_out(visit: Callable[..., Visit], key: str) -> None:
    visited = visit(page.render(diagnosed_runs.diagnosed_run()))
    visited.page.locator("#findings button.copy").first.press(key)
    assert visited.page.evaluate("navigator.clipboard.readText()") == "DataLoader(..., num_workers=4)"
    themes = [visited.is_dark()]
    for _ in range(3):
        visited.page.locator("button.theme").press(key)
        themes.append(visited.is_dark())
    assert set(themes) == {True, False}
    with visited.page.expect_download() as download:
        visited.page.locator("#download").press(key)
    assert download.value.suggested_filename == "run.json"
