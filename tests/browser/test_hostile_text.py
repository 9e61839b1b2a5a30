"""Text of a run that attacks its reader is shown, whole, and nothing of it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpdoctor.analysis import Analysis
from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from tests.browser.visit import Visit
from tests.builders import hostile_runs

pytestmark = pytest.mark.browser

# Where the whole text has to stand, by page.
PLACES = {
    hostile_runs.hostile_machine: [
        "#overview .callout p",
        "#overview .callout pre",
        "#environment dd",
        "#conversion td",
    ],
    hostile_runs.hostile_findings: ["#findings .card h3", "#findings .card pre code", "#findings .card li"],
    hostile_runs.hostile_traces: ["#traces .callout pre", "#traces td", "#kernels th", "#collectives th"],
}
USE = """
async () => {
  for (const button of document.querySelectorAll("button:not(#download, #unfold, .all, .pick)")) button.click();
  for (const field of document.querySelectorAll("input.filter")) {
    field.value = "<img src=x onerror=alert('filter')>";
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.value = "";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  await new Promise((done) => setTimeout(done, 200));
}
"""


@pytest.mark.parametrize("text", hostile_runs.TEXTS.values(), ids=hostile_runs.TEXTS)
@pytest.mark.parametrize(("run", "places"), PLACES.items(), ids=[run.__name__ for run in PLACES])
def test_it_is_shown_and_does_not_run(
    visit: Callable[..., Visit], run: Callable[[str], Analysis], places: list[str], text: str
) -> None:
    visited = visit(page.render(of_run(run(text))), width=360)
    assert visited.undrawn() == []
    for place in places:
        assert any(text in " ".join(shown.split()) for shown in visited.page.locator(place).all_text_contents()), place
    assert visited.too_wide(360) == 0
    for button in visited.page.locator("#findings button.copy").all():
        button.click()
        assert visited.page.evaluate("navigator.clipboard.readText()") == text
    visited.page.evaluate(USE)
    for chart in visited.page.locator(".chart").all():
        chart.hover()
    assert visited.fired() == []
    assert visited.said == []
    assert visited.requests == []
    assert visited.page.locator("main img, main a[href^=javascript], main [onload], main [onfocus]").count() == 0


def test_the_trap_would_catch_what_runs_and_what_asks(visit: Callable[..., Visit]) -> None:
    visited = visit(
        f"<body>{hostile_runs.MARKUP}<script src='http://127.0.0.1:9/x.js'></script><script>nonsense()</script>"
    )
    visited.page.wait_for_function("window.fired.length >= 3")
    assert {"alert(script)", "alert(image)", "alert(svg)"} <= set(visited.fired())
    assert "http://127.0.0.1:9/x.js" in visited.requests
    assert any("nonsense is not defined" in line for line in visited.said)


def test_a_script_that_is_not_ours_does_not_run_and_is_reported(visit: Callable[..., Visit]) -> None:
    html = page.render(of_run(hostile_runs.hostile_machine("plain")))
    visited = visit(html.replace("</main>", "<script>alert('taken over')</script></main>"))
    assert visited.fired() == []
    assert any("Content Security Policy" in line for line in visited.said)


def test_what_is_read_from_right_to_left_does_not_turn_around_what_follows(visit: Callable[..., Visit]) -> None:
    run = hostile_runs.hostile_traces("\N{RIGHT-TO-LEFT OVERRIDE}esrever")
    visited = visit(page.render(of_run(run)), scripts=False)
    visited.unfold()
    absent = visited.page.locator(".reasons li", has_text="esrever").first
    places = absent.evaluate(
        "(line) => ['strong', 'span'].map((tag) => line.querySelector(tag).getBoundingClientRect().left)"
    )
    assert places == sorted(places)
