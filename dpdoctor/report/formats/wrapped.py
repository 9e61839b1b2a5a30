"""Text of a run on as many columns as the terminal has, without blanks behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

from dpdoctor.report.formats.literal import literal


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
