"""The button that hands the trace to Perfetto, against a page that answers as Perfetto does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route

from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from dpdoctor.report.traces import timeline as perfetto
from dpdoctor.report.traces.timeline import timeline
from tests.builders import traced_runs

pytestmark = pytest.mark.browser

ADDRESS = "https://ui.perfetto.dev/"
# It is deaf at first, as a page is while it loads.
ANSWERS = """<script>
let pings = 0;
addEventListener("message", ({ source, origin, data }) => {
  if (data === "PING") { if (++pings > 2) source.postMessage("PONG", "*"); return; }
  window.got = { title: data.perfetto.title, text: new TextDecoder().decode(data.perfetto.buffer) };
});
</script>"""


@contextmanager
def report(browser: Browser, folder: Path, answers: str = ANSWERS) -> Iterator[tuple[Page, BrowserContext, list[str]]]:
    """Yield the report of traces, opened, and what it asked for; nothing is answered but for Perfetto's page."""
    (file := folder / "report.html").write_text(page.render(of_run(traced_runs.late_run())), encoding="utf-8")
    context, asked = browser.new_context(), []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(content_type="text/html", body=answers) if route.request.url == ADDRESS else route.abort()

    context.route(lambda url: url.startswith("http"), answer)
    found = context.new_page()
    found.goto(f"{file.as_uri()}#traced_step")
    try:
        yield found, context, asked
    finally:
        context.close()


def test_a_click_hands_over_the_trace_of_all_ranks(browser: Browser, tmp_path: Path) -> None:
    with report(browser, tmp_path) as (found, context, asked):
        assert asked == []
        with context.expect_page() as opened:
            found.get_by_role("button", name="Open all ranks in Perfetto").click()
        opened.value.wait_for_function("window.got")
        got = opened.value.evaluate("window.got")
        assert json.loads(got["text"]) == {"traceEvents": json.loads(json.dumps(timeline(traced_runs.late_run())))}
        assert got["title"].startswith("traces")
        assert asked == [ADDRESS]
        found.get_by_text("Handed to Perfetto").wait_for()


def test_a_file_that_is_picked_is_handed_over_as_it_is(browser: Browser, tmp_path: Path) -> None:
    (trace := tmp_path / "trace.json").write_text('{"traceEvents": [1]}')
    with report(browser, tmp_path) as (found, context, asked):
        with found.expect_file_chooser() as chooser:
            found.get_by_role("button", name="Open a trace file").click()
        assert asked == []
        with context.expect_page() as opened:
            chooser.value.set_files(trace)
        opened.value.wait_for_function("window.got")
        assert opened.value.evaluate("window.got") == {"title": "trace.json", "text": '{"traceEvents": [1]}'}


def test_another_page_in_its_place_gets_nothing(browser: Browser, tmp_path: Path) -> None:
    """A tab that went elsewhere meanwhile is not Perfetto's any more."""
    elsewhere = (
        "<script>addEventListener('message', ({ data }) => { window.got = data; }); opener.postMessage('PONG', '*');"
    )
    with report(browser, tmp_path) as (found, context, _):
        context.route(ADDRESS, lambda route: route.fulfill(status=302, headers={"location": "https://other.example/"}))
        context.route("https://other.example/", lambda route: route.fulfill(content_type="text/html", body=elsewhere))
        with context.expect_page() as opened:
            found.get_by_role("button", name="Open all ranks in Perfetto").click()
        opened.value.wait_for_url("https://other.example/")
        opened.value.wait_for_timeout(1000)
        assert opened.value.evaluate("window.got === undefined")


def test_what_is_too_large_to_carry_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MOST_CALLS", 0)
    block = perfetto.perfetto(traced_runs.late_run())
    assert block.events == ()
    assert block.files[0] == "all ranks: timeline.json.gz"
