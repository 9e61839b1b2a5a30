"""The package's templates and styles, and packed data for them.

What a template is given is escaped, unless it is marked as safe. What is large lies in a page as gzip in base64: a
third of its size, and nothing in it can end an element.
"""

from __future__ import annotations

import base64
import gzip
import json
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dpdoctor import units


def asset(name: str) -> Markup:
    """Return the text of one of our own files, for a template to take as it is."""
    return Markup(resources.files("dpdoctor.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8"))


def environment() -> Environment:
    """Return an environment that escapes all text, refuses names that it is not given, and shows shares as all do."""
    made = Environment(
        loader=PackageLoader("dpdoctor.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["share"] = units.share
    return made


# Level 9 makes plotly.js 1% smaller and takes 1.8 times as long.
LEVEL = 5


def packed(text: str) -> Markup:
    """Return a text for packed.js to inflate; the same text gives the same bytes."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode("ascii"))


def packed_json(value: Any) -> Markup:
    """Return a value as packed JSON.

    Raises:
        ValueError: `value` holds NaN or infinity; JSON has no such numbers.
    """
    return packed(json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False))
