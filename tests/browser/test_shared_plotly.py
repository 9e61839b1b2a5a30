"""A page whose plotly.js lies in the folder above: opened from a file and from a server, and without the file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from tests.browser.visit import Visit, visiting
from tests.builders import runs

pytestmark = pytest.mark.browser

NOTICE = "#no-plotly"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a run directory; the folder above is where reports share plotly.js."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def html() -> str:
    return page.render(of_run(runs.cpu_run()), plotly_link=f"../{page.PLOTLY_FILE}")


def share(folder: Path, text: str) -> Path:
    """Write what stands where plotly.js ought to."""
    file = folder.parent / page.PLOTLY_FILE
    file.write_text(text, encoding="utf-8")
    return file


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yield the address of a server of this machine that hands out the folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def visiting_server(browser: Browser, folder: Path, html: str) -> Iterator[Page]:
    """Yield the page as a server hands it out."""
    (folder / "report.html").write_text(html, encoding="utf-8")
    with served(folder.parent) as address:
        found = browser.new_page()
        try:
            found.goto(f"{address}/{folder.name}/report.html")
            yield found
        finally:
            found.close()


def test_from_a_file_every_chart_is_drawn_and_nothing_else_is_asked_for(
    browser: Browser, folder: Path, html: str
) -> None:
    shared = share(folder, page.plotly_source())
    with visiting(browser, html, folder) as visit:
        assert visit.undrawn() == []
        assert visit.requests == [shared.as_uri()]
        assert visit.said == []
        assert not visit.page.locator(NOTICE).is_visible()


@pytest.mark.parametrize("text", [None, "// not plotly.js"])
def test_without_it_the_page_says_so_and_tells_the_charts_in_words(
    browser: Browser, folder: Path, html: str, text: str | None
) -> None:
    if text is not None:
        share(folder, text)
    with visiting(browser, html, folder) as visit:
        visit.unfold()
        visit.page.locator(".chart").first.scroll_into_view_if_needed()
        visit.page.locator(NOTICE).wait_for()
        assert page.PLOTLY_FILE in visit.page.locator(NOTICE).inner_text()
        expect_words(visit)


def expect_words(visit: Visit) -> None:
    """Check that every chart in sight says that it could not be drawn."""
    visit.page.locator(".chart").first.scroll_into_view_if_needed()
    visit.page.locator(".chart", has_text="could not be drawn").first.wait_for()
    assert visit.page.locator("main h2").count() > 5


def test_from_a_server_it_is_checked_by_its_hash(browser: Browser, folder: Path, html: str) -> None:
    share(folder, page.plotly_source())
    with visiting_server(browser, folder, html) as found:
        found.locator("#unfold").click()
        found.locator(".chart").first.scroll_into_view_if_needed()
        found.locator('.chart[data-drawn="yes"]').first.wait_for()
        assert not found.locator(NOTICE).is_visible()


def test_from_a_server_another_script_in_its_place_does_not_run(browser: Browser, folder: Path, html: str) -> None:
    share(folder, "document.title = 'taken over';")
    with visiting_server(browser, folder, html) as found:
        found.locator("#unfold").click()
        found.locator(".chart").first.scroll_into_view_if_needed()
        found.locator(NOTICE).wait_for()
        assert found.title() != "taken over"


def test_a_script_that_is_not_ours_does_not_run(browser: Browser, folder: Path, html: str) -> None:
    share(folder, page.plotly_source())
    planted = "<script>document.title = 'taken over'</script><script src='planted.js'></script></main>"
    (folder / "planted.js").write_text("document.title = 'taken over'")
    with visiting(browser, html.replace("</main>", planted), folder) as visit:
        assert visit.undrawn() == []
        assert visit.page.title() != "taken over"
        assert sum("Content Security Policy" in line for line in visit.said) == 2
