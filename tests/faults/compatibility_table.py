"""Reads the table of scripts in docs/compatibility.md, the one statement of how each ends in each mode."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
HEADING = "## Scripts written for one device\n"
# `yes` or `failed` alone, or followed by a remark.
CELL = re.compile(r"(yes|failed)(?:[,:;] (.+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """How a script ends in a mode: `yes` or `failed`, and what else the table says of it."""

    outcome: str
    remark: str


def read() -> dict[str, dict[str, Cell]]:
    """Return the table: for every kind of script, in its own words, its cell by mode.

    Raises:
        ValueError: a cell begins with neither `yes` nor `failed`, a row is there twice, or one has too many cells.
    """
    section = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    (_, *modes), _, *rows = lines
    table = {kind: dict(zip(modes, map(_cell, cells), strict=True)) for kind, *cells in rows}
    if len(table) < len(rows):
        raise ValueError("the table has a row twice")
    return table


def _cell(text: str) -> Cell:
    match = CELL.fullmatch(text)
    if match is None:
        raise ValueError(f"the table has the cell {text!r}: it begins with neither `yes` nor `failed`")
    return Cell(outcome=match[1], remark=match[2] or "")
