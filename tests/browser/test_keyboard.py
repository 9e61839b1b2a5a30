"""The page without a mouse: Tab reaches everything that can be used, and shows where it is; Enter and Space use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from dpdoctor.analysis import Analysis
from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from tests.browser.many_rows import many_rows
from tests.browser.visit import Visit, visiting
from tests.builders import diagnosed_runs

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
  // Of modes to choose from Tab reaches the chosen one, arrows the others.
  const isOther = (one) => one.type === "radio" && !one.checked;
  const isSeen = (one) => one.checkVisibility() && !one.closest(".chart");
  window.usable = usable.filter((one) => isSeen(one) && !one.disabled && !isOther(one));
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


@pytest.fixture(scope="module", params=[diagnosed_runs.diagnosed_run, many_rows], ids=["cards", "tables"])
def visited(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visit]:
    """Yield a page with all folds open; the tests of a page leave it as usable as it was."""
    run: Callable[[], Analysis] = request.param
    with visiting(browser, page.render(of_run(run())), tmp_path_factory.mktemp("page")) as visit:
        visit.unfold()
        yield visit


def test_tab_reaches_everything_that_can_be_used_and_shows_where_it_is(visited: Visit) -> None:
    usable = visited.page.evaluate(WATCH)
    # Charts have stops of their own between.
    for _ in range(2 * usable):
        visited.page.keyboard.press("Tab")
    assert usable > 20
    assert visited.page.evaluate(MISSED) == {"unreached": [], "unmarked": []}


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_what_folds_opens_and_closes(visited: Visit, key: str) -> None:
    fold = visited.page.locator("main details").first
    was_open = fold.evaluate("(fold) => fold.open")
    for _ in range(2):
        fold.locator("summary").first.press(key)
        was_open = not was_open
        assert fold.evaluate("(fold) => fold.open") is was_open


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_table_is_sorted(visited: Visit, key: str) -> None:
    button = visited.page.locator("th:not([aria-sort]) button.sort").first
    head = button.locator("xpath=ancestor::th").element_handle()
    button.press(key)
    assert head.get_attribute("aria-sort") in ("ascending", "descending")


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_code_is_copied_the_theme_changed_and_run_json_handed_out(visited: Visit, key: str) -> None:
    code = visited.page.locator("div:has(> button.copy)").first
    code.locator("button.copy").press(key)
    assert visited.page.evaluate("navigator.clipboard.readText()") == code.locator("pre").text_content()
    themes = [visited.is_dark()]
    for _ in range(3):
        visited.page.locator("button.theme").press(key)
        themes.append(visited.is_dark())
    assert set(themes) == {True, False}
    with visited.page.expect_download() as download:
        visited.page.locator("#download").press(key)
    assert download.value.suggested_filename == "run.json"


def test_arrows_choose_the_mode_of_every_section_and_the_address_keeps_it(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(diagnosed_runs.diagnosed_run())))
    visited.unfold()
    chosen = visited.page.locator(".modes input:checked")
    first = chosen.get_attribute("value")
    chosen.focus()
    visited.page.keyboard.press("ArrowRight")
    second = visited.page.locator(".modes input:checked").get_attribute("value")
    assert second != first
    assert visited.page.evaluate("location.hash") == f"#mode-{second}"
    shown = visited.page.locator(".of-mode:not([hidden])").evaluate_all("(all) => all.map((one) => one.dataset.mode)")
    assert set(shown) == {second}
    visited.page.reload()
    assert visited.page.locator(".modes input:checked").get_attribute("value") == second


def test_a_link_to_a_finding_opens_it_in_its_mode(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(diagnosed_runs.diagnosed_run())))
    visited.page.locator("#mode-all").focus()
    visited.page.locator(".ranking h4 a").first.click()
    target = visited.page.locator(":target")
    assert target.is_visible()
    mode = target.evaluate("(card) => card.closest('.of-mode').dataset.mode")
    assert visited.page.locator(".modes input:checked").get_attribute("value") == mode
