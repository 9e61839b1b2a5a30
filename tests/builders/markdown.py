"""Markdown read back by a parser of CommonMark with GitHub's tables."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


# What GitHub makes a link, a notification or a picture of, in the text that a reader sees.
ALIVE = re.compile(
    r"@\w|#\d|[A-Z]-\d|://|\bwww\.|:(?!\d\d:)[\w+-]+:|(?<![0-9a-zA-Z])[0-9a-f]{7,40}(?![0-9a-zA-Z])",
    re.IGNORECASE,
)


UNSEEN = "\N{ZERO WIDTH SPACE}"


def tokens(text: str) -> list[Token]:
    """Return what a text is parsed to, from outside to inside."""
    return [inner for token in PARSER.parse(text) for inner in (token, *(token.children or ()))]


def seen(text: str) -> str:
    """Return the text that a reader sees."""
    return "".join(token.content for token in tokens(text) if token.type == "text")


def elements(text: str) -> set[str]:
    """Return the HTML in a text."""
    return {token.content.strip() for token in tokens(text) if token.type in ("html_inline", "html_block")}
