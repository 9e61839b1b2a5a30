"""A picture of a report's first screen."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 900
QUALITY = 60  # of 100


def take(report: Path, picture: Path) -> None:
    """Write a JPEG of what a report shows first on a light page of WIDTH by HEIGHT, half as large."""
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None:
        sys.exit("a gallery has pictures, and there is no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=("--no-sandbox",))
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=0.5, color_scheme="light"
        )
        page.goto(report.resolve().as_uri())
        page.screenshot(path=picture, type="jpeg", quality=QUALITY)
        browser.close()
