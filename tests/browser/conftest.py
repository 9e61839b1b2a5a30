"""One Chromium for all pages, and each page in a context of its own, from which nothing gets out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.visit import Visit, visiting

# Set by whoever installs Chromium and wants to know that these tests ran: a missing browser is then an error.
NEEDED = "DPDOCTOR_NEEDS_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome")
# plotly.js throws and catches while it loads; V8 would read all of it again each time for the lines of the stack.
ARGS = ("--no-sandbox", "--js-flags=--no-enable-lazy-source-positions")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Yield the system's Chromium; without one the tests are skipped or, where it is needed, fail."""
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None:
        why = "no Chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get(NEEDED) == "1":
            pytest.fail(f"{why}, and {NEEDED}=1")
        pytest.skip(why)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable, args=ARGS)
        yield found
        found.close()


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """Yield a function that opens any HTML as `visiting` does; all that it opened closes with the test."""
    with ExitStack() as stack:
        yield lambda html, **how: stack.enter_context(visiting(browser, html, tmp_path, **how))
