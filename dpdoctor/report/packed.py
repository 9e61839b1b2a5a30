"""What is large lies in a page as gzip in base64: a third of its size, and nothing in it can end an element."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from markupsafe import Markup

# Higher levels make plotly.js less than 0.1 % smaller.
LEVEL = 7


def packed(text: str) -> Markup:
    """Return a text for packed.js to inflate; the same text gives the same bytes."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode("ascii"))


def packed_json(value: Any) -> Markup:
    """Return a value as packed JSON.

    Raises:
        ValueError: `value` holds NaN or infinity; JSON has no such numbers.
    """
    return packed(json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False))
