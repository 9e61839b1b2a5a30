"""The numbers in a text: what it says, however it is worded."""

from __future__ import annotations

import re

# Digits of names (`gpu0`) are none; `num_workers=4` has one.
NUMBER = re.compile(
    r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:x\b|%| (?:samples/s|[kMGT]?B(?:/s)?|[µm]?s|W|MHz|cores)\b)?"
)


def figures(text: str) -> list[str]:
    """Return the numbers in a text, in order and with their units."""
    return NUMBER.findall(text)
