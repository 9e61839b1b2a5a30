"""Reads the walk of docs/ci.md through gating a pull request: its commands, in order, and its workflow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "ci.md"
BEGIN, END = "<!-- gate -->\n", "<!-- end of gate -->\n"
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return the commands of the walk, a line each, without what is written beside them."""
    found = [line for language, text in _blocks() if not language for line in text.splitlines()]
    return [line.partition("  #")[0].rstrip() for line in found if line.strip()]


def workflow() -> dict[str, Any]:
    """Return the workflow that the walk ends with."""
    (text,) = (text for language, text in _blocks() if language == "yaml")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def _blocks() -> list[tuple[str, str]]:
    _, begun, after = PAGE.read_text().partition(BEGIN)
    walk, ended, _ = after.partition(END)
    if not begun or not ended:
        raise ValueError(f"{PAGE} has no walk between {BEGIN.strip()} and {END.strip()}")
    return [(match["language"], match["text"]) for match in _BLOCK.finditer(walk)]
