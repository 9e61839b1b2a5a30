"""What a comment on GitHub is put together from: parts, of which whole items are shown as far as there is room.

Text of a run is shown as it is, whatever it says. Escaping is not enough: GitHub looks for @mentions, #123, addresses,
:emoji: and hashes of commits in the text that a reader would see. An invisible character inside each keeps it from
being one. Code blocks are left alone by GitHub.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dpdoctor import units
from dpdoctor.redact import printable
from dpdoctor.report.blocks import Cell, Table
from dpdoctor.report.text import clipped, listed

LONGEST_TEXT = 1_000
LONGEST_LINE = 300
MOST_LINES = 20

_UNSEEN = "\N{ZERO WIDTH SPACE}"
# Each ends where the invisible character goes.
_TRIGGERS = re.compile(
    r"@|#"
    r"|:(?=//|(?!\d\d:)[\w+-]+:)"  # https://, :emoji:, but not 12:34:56
    r"|(?i:www)(?=\.)"
    r"|(?<=[A-Za-z])-(?=\d)"  # GH-12, and what a repository may have set up like it
    r"|[0-9a-f]{6}(?=[0-9a-f])"  # seven digits may name a commit
)
_SPECIAL = re.compile(r"[\\`*_\[\]<>#|~&]")
# At the beginning of a line 1. 1) - + = : would make a list, a rule or a heading.
_STRUCTURE = re.compile(r"^(?:\d{1,9}(?=[.)](?:\s|$))|(?=[-+=:]))")
_BACKTICKS = re.compile("`+")


def plain(text: str, most: int = LONGEST_TEXT) -> str:
    """Return text for a paragraph, a heading or a cell: one line of at most so many characters, before escaping."""
    marked = _TRIGGERS.sub(rf"\g<0>{_UNSEEN}", printable(clipped(text, most)))
    escaped = _STRUCTURE.sub(r"\g<0>\\", _SPECIAL.sub(r"\\\g<0>", marked))
    # Two dollars would make a formula; no backslash prevents it, an element of its own does.
    return escaped.replace("$", "<span>$</span>").replace(_UNSEEN, "&#8203;")


def fenced(lines: Iterable[str], language: str) -> str:
    """Return the last of the lines as a code block, long ones cut; its fence is longer than any in them."""
    every = [line for text in lines for line in text.splitlines() or [""]]
    kept = [printable(_cut(line)) for line in every[-MOST_LINES:]]
    longest = max((len(found) for line in kept for found in _BACKTICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join((f"{fence}{language}", *kept, fence))


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}\N{HORIZONTAL ELLIPSIS}"


# GitHub takes 65,536 characters. Whoever posts this may want to add a line.
MOST_CHARACTERS = 60_000
LONGEST_NAME = 200
PARAGRAPHS = "\n\n"
_ROOM_FOR_LEFT_OUT = 300


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Items of one kind, of which as many are shown, whole, as there is room for; `head` stands before the first."""

    noun: str
    items: tuple[str, ...]
    head: str = ""
    joint: str = PARAGRAPHS

    def first(self, number: int) -> str:
        """Return the first items below their head; empty: none."""
        return self.joint.join(filter(None, (self.head, *self.items[:number]))) if number > 0 else ""

    def fitting(self, room: int) -> int:
        """Return how many items there is room for, in characters."""
        lengths = (len(self.joint) + len(item) for item in self.items)
        return sum(length <= room for length in itertools.accumulate(lengths, initial=len(self.head))) - 1


def assembled(first: str, parts: Sequence[Part], last: str) -> str:
    """Return a comment of at most MOST_CHARACTERS from escaped text; what had to be left out of the parts is said."""
    room = MOST_CHARACTERS - len(first) - len(last) - _ROOM_FOR_LEFT_OUT
    return PARAGRAPHS.join((first, *_fitted(parts, room), last)) + "\n"


def _fitted(parts: Sequence[Part], room: int) -> Iterator[str]:
    """Yield of each part what there is room for, then what was left out."""
    left_out = []
    for part in parts:
        number = max(0, part.fitting(room - len(PARAGRAPHS)))
        if shown := part.first(number):
            yield shown
            room -= len(PARAGRAPHS) + len(shown)
        if number < len(part.items):
            left_out.append(units.count(len(part.items) - number, part.noun))
    if left_out:
        yield f"Left out, because a comment holds no more: {listed(left_out)}."


def table_parts(table: Table) -> Iterator[Part]:
    """Yield the rows under their heads, and what the numbers in them refer to."""
    heads = " | ".join(plain(column.title) for column in table.columns)
    rules = " | ".join("---:" if column.numeric else "---" for column in table.columns)
    footnotes = table.footnotes
    rows = (" | ".join(_cell(cell, footnotes) for cell in row) for row in table.rows)
    yield Part(
        noun="row",
        items=tuple(f"| {row} |" for row in rows),
        head=f"{plain(table.caption)}\n\n| {heads} |\n| {rules} |",
        joint="\n",
    )
    numbered = tuple(f"{number}. {plain(text)}" for number, text in enumerate(footnotes, 1))
    yield Part(noun="footnote", items=numbered, joint="\n")


def _cell(cell: Cell, footnotes: Sequence[str]) -> str:
    mark = f"<sup>{footnotes.index(cell.footnote) + 1}</sup>" if cell.footnote else ""
    note = f"<br>{plain(cell.note, LONGEST_NAME)}" if cell.note else ""
    return f"{plain(cell.text, LONGEST_NAME)}{mark}{note}"
