"""A page as a reader meets it: opened from a file, in a browser that lets nothing out and remembers what happened."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Dialog, Page

from tests.builders.html import unpacked

HEIGHT = 900
# What hostile text would call: a call is remembered and does nothing.
TRAP = """
window.fired = [];
for (const name of ["alert", "confirm", "prompt", "open"])
  window[name] = (...values) => { window.fired.push(`${name}(${values})`); };
"""
DRAW_ALL = """
async (patienceMs) => {
  document.getElementById("mode-all")?.click();
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  // In the colours that the page has now, and wide enough to be seen.
  const soft = () => getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
  const isDrawn = (chart) => chart.dataset.drawn === "yes" && chart.layout.font.color === soft()
    && chart.querySelector("svg.main-svg")?.clientWidth > 0;
  const charts = [...document.querySelectorAll(".chart")];
  for (const chart of charts) {
    chart.scrollIntoView({ block: "center", behavior: "instant" });
    const end = performance.now() + patienceMs;
    while (!isDrawn(chart) && performance.now() < end) await new Promise(requestAnimationFrame);
  }
  scrollTo({ top: 0, behavior: "instant" });
  return charts.filter((chart) => !isDrawn(chart)).map((chart) => chart.ariaLabel);
}
"""
# Charts follow the width of the window a moment later.
TOO_WIDE = """
async (patienceMs) => {
  const root = document.documentElement, end = performance.now() + patienceMs;
  do await new Promise(requestAnimationFrame);
  while (root.scrollWidth > root.clientWidth && performance.now() < end);
  return root.scrollWidth - root.clientWidth;
}
"""
BRIGHTNESS = """
getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0)
"""
PATIENCE_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """An open page, and what it did that a reader does not see.

    Attributes:
        requests: addresses that it asked for, its own file left out; none was answered but for files.
        said: what stands on the console, errors that nobody caught and dialogs.
    """

    page: Page
    requests: list[str]
    said: list[str]

    def unfold(self) -> None:
        """Open every section and every fold."""
        self.page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")

    def undrawn(self) -> list[str]:
        """Open every fold, choose all modes, scroll past every chart; return the labels of those not drawn."""
        return self.page.evaluate(DRAW_ALL, PATIENCE_MS)

    def prefer(self, scheme: str) -> None:
        """Let the reader prefer a light or a dark page from now on."""
        self.page.emulate_media(color_scheme=scheme)

    def is_dark(self) -> bool:
        """Return whether the page has a dark ground."""
        return self.page.evaluate(BRIGHTNESS) < 3 * 128

    def too_wide(self, width: int) -> int:
        """Return by how many pixels the page is wider than a window of this width."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        return self.page.evaluate(TOO_WIDE, PATIENCE_MS)

    def fired(self) -> list[str]:
        """Return the calls that no text of a run may lead to."""
        return self.page.evaluate("window.fired")

    def run_json(self) -> dict[str, Any]:
        """Return run.json as it stands inside the page."""
        return json.loads(unpacked(self.page.locator("#run").text_content() or ""))


@contextmanager
def visiting(
    browser: Browser, html: str, folder: Path, *, scheme: str = "light", width: int = 1280, scripts: bool = True
) -> Iterator[Visit]:
    """Write a page into the folder and yield it opened; without `scripts` it is read as HTML alone, which is fast."""
    file = folder / "report.html"
    file.write_text(html, encoding="utf-8")
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": width, "height": HEIGHT},
        java_script_enabled=scripts,
        permissions=["clipboard-read", "clipboard-write"],
        offline=True,
    )
    context.add_init_script(TRAP)
    try:
        yield _open(context, file.as_uri())
    finally:
        context.close()


def _open(context: BrowserContext, address: str) -> Visit:
    page = context.new_page()
    visit = Visit(page=page, requests=[], said=[])
    # Offline stops these as well, but only this stops what would be sent to this machine itself.
    context.route(re.compile("^(https?|wss?):"), lambda route: route.abort())
    context.on("request", lambda request: _remember(visit, request.url, address))
    page.on("websocket", lambda socket: visit.requests.append(socket.url))
    page.on("console", lambda message: visit.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: visit.said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: _dismiss(visit, dialog))
    page.goto(address)
    return visit


def _remember(visit: Visit, url: str, own: str) -> None:
    # What is made inside of the page, and handed out by it, is no request.
    if url.partition("#")[0] != own and not url.startswith(("data:", "blob:")):
        visit.requests.append(url)


def _dismiss(visit: Visit, dialog: Dialog) -> None:
    visit.said.append(f"dialog: {dialog.message}")
    dialog.dismiss()
