"""Text on the page can be read in both themes: WCAG 2.1 level AA, success criteria 1.4.3 and 1.4.11."""

from __future__ import annotations

import re
from importlib import resources

import pytest

TEXT, CONTROL = 4.5, 3.0
PAIRS = [
    *((ink, ground, TEXT) for ink in ("ink", "soft", "accent", "bad") for ground in ("page", "raised")),
    *((tone, f"{tone}-wash", TEXT) for tone in ("good", "warn", "bad")),
    *((ink, "muted-wash", TEXT) for ink in ("ink", "soft")),
    *(("ink", f"{tone}-wash", TEXT) for tone in ("good", "warn", "bad")),
    *((control, ground, CONTROL) for control in ("edge", "accent") for ground in ("page", "raised")),
]


def colors(name: str) -> dict[str, str]:
    """Return the colours that a style sheet names."""
    css = resources.files("dpdoctor.report").joinpath("assets", name).read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css))


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2.1."""
    parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.1, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_ratio_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["page.css", "dark.css"])
@pytest.mark.parametrize(("ink", "ground", "least"), PAIRS)
def test_it_stands_out(theme: str, ink: str, ground: str, least: float) -> None:
    found = colors(theme)
    assert contrast(found[ink], found[ground]) >= least


def test_both_themes_have_the_same_colors() -> None:
    assert colors("page.css").keys() == colors("dark.css").keys()
