"""Text of a run for a terminal: shown, never obeyed."""

from __future__ import annotations

from rich.text import Text

from dpdoctor.redact import printable


def literal(text: str, style: str = "") -> Text:
    """Return text without rich's markup in it and without the characters that would command the terminal."""
    return Text(printable(text), style=style)
