"""What holds on every page, light and dark: it is drawn, silent, alone, as wide as its window, and open to everybody.

The tests of one page share a visit; each asks for the colours and the width that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.pages import PAGES
from tests.browser.visit import Visit, visiting

pytestmark = pytest.mark.browser

SECTIONS = """
() => [...document.querySelectorAll("main > section")].map((section) => ({
  id: section.id,
  title: section.querySelector("h2")?.textContent.trim() ?? "",
  says: [...section.querySelectorAll(".view, .result")].some((one) => one.textContent.trim()),
}))
"""
GRAVE = ("serious", "critical")
# Between them these have every kind of block; axe takes seconds for each.
AUDITED = ("diagnosed_run", "hostile_traces", "cpu_trace", "empty_run", "compared_mended")
# axe judges contrast by `color`, which the text of a drawing does not use.
DRAWINGS = {"exclude": ["svg.main-svg"]}


@pytest.fixture(scope="module", params=PAGES.values(), ids=PAGES)
def visited(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visit]:
    """Yield a page in light colours."""
    html: Callable[[], str] = request.param
    with visiting(browser, html(), tmp_path_factory.mktemp("page")) as visit:
        yield visit


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_is_drawn_and_nothing_complains_or_loads(visited: Visit, scheme: str) -> None:
    visited.prefer(scheme)
    assert visited.undrawn() == []
    assert visited.is_dark() == (scheme == "dark")
    assert visited.said == []
    assert visited.requests == []
    assert visited.fired() == []


@pytest.mark.parametrize("visited", [PAGES[name] for name in AUDITED], ids=AUDITED, indirect=True)
def test_nobody_is_shut_out(visited: Visit) -> None:
    visited.undrawn()
    violations = _violations(visited)
    visited.prefer("dark")
    # Nothing but colours is different now.
    violations += _violations(visited, runOnly=["color-contrast"])
    assert violations == []


def _violations(visited: Visit, **options: object) -> list[str]:
    """Return what axe finds grave, with the element and what to do."""
    found = Axe().run(visited.page, DRAWINGS, {"resultTypes": ["violations"], **options}).response["violations"]
    return [
        f"{violation['id']}: {node['target']}: {node['failureSummary']}"
        for violation in found
        if violation["impact"] in GRAVE
        for node in violation["nodes"]
    ]


def test_every_section_is_in_the_contents_and_has_something_to_say(visited: Visit) -> None:
    sections = visited.page.evaluate(SECTIONS)
    links = [link.get_attribute("href") for link in visited.page.locator(".tabs a").all()]
    assert links == [f"#{section['id']}" for section in sections] != []
    assert [section["id"] for section in sections if not section["title"] or not section["says"]] == []


def test_what_is_absent_has_a_reason(visited: Visit) -> None:
    # Of what lies in a closed fold, Chromium's innerText is empty.
    for missing in visited.page.locator(".reasons li").all():
        what = missing.locator("strong").text_content() or ""
        assert what
        assert len((missing.text_content() or "").removeprefix(what)) > len("none")


@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_the_page_never_scrolls_sideways(visited: Visit, width: int) -> None:
    assert visited.too_wide(width) == 0
