"""Text of a run for a terminal: shown, never obeyed, on as many columns as there are and without blanks behind it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import msgspec
from rich.console import Console, ConsoleOptions
from rich.text import Text

from dpdoctor.redact import printable

_SLASH = re.compile(r"(?<=/)")


def literal(text: str, style: str = "") -> Text:
    """Return text without rich's markup in it and without the characters that would command the terminal."""
    return Text(printable(text), style=style)


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Return the lines of a paragraph; what follows the first is indented.

    A path that is longer than a line is broken at its slashes, so that its file and line number stay one word.
    """
    wrapper = _Wrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)


class _Wrapper(textwrap.TextWrapper):
    def _split(self, text: str) -> list[str]:
        room = self.width - len(self.subsequent_indent)
        words = super()._split(text)
        return [part for word in words for part in (_SLASH.split(word) if len(word) > room else (word,))]


class Wrapped(msgspec.Struct, frozen=True, kw_only=True):
    """A paragraph whose first `head` characters are styled; what follows the first line is indented."""

    text: str
    style: str = ""
    head: int = 0
    head_style: str = "bold"
    indent: int = 0

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield a line at a time."""
        for number, line in enumerate(wrapped(self.text, options.max_width, self.indent)):
            text = literal(line, self.style)
            if number == 0 and self.head:
                text.stylize(self.head_style, 0, self.head)
            yield text
