"""Text of a run for a terminal: shown, never obeyed, on as many columns as there are and without blanks behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

from dpdoctor.redact import printable


def literal(text: str, style: str = "") -> Text:
    """Return text without rich's markup in it and without the characters that would command the terminal."""
    return Text(printable(text), style=style)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """A paragraph whose first `head` characters are styled; what follows the first line is indented."""

    text: str
    style: str = ""
    head: int = 0
    head_style: str = "bold"
    indent: int = 0

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield a line at a time; a word that is longer than a line stays whole."""
        lines = textwrap.wrap(
            self.text,
            options.max_width,
            subsequent_indent=" " * self.indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, line in enumerate(lines):
            text = literal(line, self.style)
            if number == 0 and self.head:
                text.stylize(self.head_style, 0, self.head)
            yield text
