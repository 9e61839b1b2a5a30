"""Text of a run in GitHub's Markdown: shown as it is, whatever it says.

Escaping is not enough: GitHub looks for @mentions, #123, addresses, :emoji: and hashes of commits in the text that a
reader would see. An invisible character inside each keeps it from being one. Code blocks are left alone by GitHub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dpdoctor.redact import printable
from dpdoctor.report.text import clipped

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
