"""Tables: sorted by what a number means, filtered by what a row says, and within their own width."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator

from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from tests.browser.many_rows import CALLS, many_rows
from tests.browser.visit import Visit, visiting
from tests.builders import runs, traced_runs

pytestmark = pytest.mark.browser

UNITS = {
    "ns": 1e-9,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
}


def meaning(text: str) -> float | None:
    """Return the number that a cell means, in its unit's base; None where it is unknown."""
    found = re.match(r"(-?[\d,.]+) ?([a-zA-Zµ]*)", text)
    return float(found[1].replace(",", "")) * UNITS.get(found[2], 1.0) if found else None


def column(table: Locator, title: str) -> list[str]:
    """Return what the visible cells below a title say."""
    return table.evaluate(
        """(table, title) => {
          const head = [...table.tHead.rows[0].cells];
          const place = head.findIndex((cell) => cell.textContent.trim().startsWith(title));
          return [...table.tBodies[0].rows].filter((row) => row.checkVisibility()).map((row) => {
            const copy = row.cells[place].cloneNode(true);
            copy.querySelectorAll("small, sup").forEach((other) => other.remove());
            return copy.textContent.trim();
          });
        }""",
        title,
    )


@pytest.fixture(scope="module")
def many(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """Yield a page of long tables, which every test may put into another order."""
    with visiting(browser, page.render(of_run(many_rows())), tmp_path_factory.mktemp("page")) as visit:
        visit.unfold()
        visit.page.evaluate("document.querySelectorAll('.full').forEach((name) => { name.open = false; })")
        yield visit


def table_of(visit: Visit, section: str, title: str) -> Locator:
    """Return the first table of a section that has a column of this title."""
    return visit.page.locator(f"#{section} table", has=visit.page.locator("th", has_text=title)).first


@pytest.mark.parametrize(
    ("section", "title"), [("kernels", "Total"), ("kernels", "Mean"), ("kernels", "Calls"), ("collectives", "Size")]
)
def test_a_click_sorts_by_the_quantity_not_by_its_text(many: Visit, section: str, title: str) -> None:
    table = table_of(many, section, title)
    head = table.locator("th", has_text=title).first
    orders = {}
    before = sorted(column(table, title))
    for _ in range(2):
        head.locator("button.sort").click()
        orders[head.get_attribute("aria-sort")] = column(table, title)
    assert set(orders) == {"ascending", "descending"}
    for direction, cells in orders.items():
        known = [value for cell in cells if (value := meaning(cell)) is not None]
        assert known == sorted(known, reverse=direction == "descending")
        assert sorted(cells) == before
        assert cells[: len(known)] == [cell for cell in cells if meaning(cell) is not None], (
            "what is unknown comes last"
        )
    assert table.locator("th[aria-sort=ascending], th[aria-sort=descending]").count() == 1


def test_names_are_sorted_too(many: Visit) -> None:
    table = table_of(many, "kernels", "Kernel")
    table.locator("button.sort").first.click()
    names = column(table, "Kernel")
    assert names[0].startswith("even_kernel")
    assert names[-1].startswith("odd_kernel")
    assert len(names) == len(CALLS)


def test_a_row_stays_together_when_it_is_moved(many: Visit) -> None:
    table = table_of(many, "kernels", "Kernel")
    calls = dict(zip(column(table, "Kernel"), column(table, "Calls"), strict=True))
    orders = []
    for _ in range(2):
        table.locator("th", has_text="Mean").locator("button.sort").click()
        orders.append(column(table, "Kernel"))
        assert dict(zip(orders[-1], column(table, "Calls"), strict=True)) == calls
    assert orders[0] != orders[1]


@pytest.mark.parametrize(
    ("section", "title", "word"), [("kernels", "Kernel", "ODD"), ("collectives", "Operation", "reduce")]
)
def test_a_filter_keeps_the_rows_that_hold_the_words(many: Visit, section: str, title: str, word: str) -> None:
    field = many.page.locator(f"#{section} input.filter").first
    table = field.locator("xpath=following::table[1]")
    names = column(table, title)
    field.fill(word)
    assert column(table, title) == [name for name in names if word.lower() in name.lower()] != names
    field.fill("nothing is called this")
    assert column(table, title) == []
    field.fill("")
    assert column(table, title) == names


def test_the_whole_of_a_long_name_opens_at_a_click(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(traced_runs.hostile_traces())), width=360)
    visited.page.locator("#operators > details > summary").click()
    name = visited.page.locator("#kernels .full").first
    before = name.bounding_box()
    name.locator("summary").click()
    after = name.bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] > before["height"]
    assert name.evaluate("(name) => name.lastChild.textContent") == traced_runs.HOSTILE[2]


def test_on_a_phone_a_row_keeps_its_name_while_its_figures_scroll_by(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(runs.cpu_run())), width=360, scripts=False)
    moved = visited.page.locator("#overview .scroll").first.evaluate(
        """(scroll) => {
          document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
          scroll.scrollLeft = 100;
          const left = (one) => one.getBoundingClientRect().left;
          return [scroll.scrollLeft, left(scroll.querySelector("tbody th")) - left(scroll)];
        }"""
    )
    assert moved == [100, 0]


def test_a_long_table_scrolls_in_itself_below_its_titles(visit: Callable[..., Visit]) -> None:
    visited = visit(page.render(of_run(many_rows())))
    visited.unfold()
    visited.page.set_viewport_size({"width": 1280, "height": 400})
    region = visited.page.locator("#kernels .scroll").first
    height, scrolled, below = region.evaluate(
        """(scroll) => {
          scroll.scrollTop = 50;
          const top = (one) => one.getBoundingClientRect().top;
          return [scroll.clientHeight, scroll.scrollTop, top(scroll.querySelector("thead th")) - top(scroll)];
        }"""
    )
    assert height <= 0.8 * 400
    assert (scrolled, below) == (50, 0)
