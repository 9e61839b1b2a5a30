"""plotly.js for a page: packed in it, or in a file that several pages share; it runs once a chart is near."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

import msgspec
from markupsafe import Markup

from dpdoctor.report.templates import packed


def _plotlyjs() -> Path:
    """Return where plotly has plotly.js, without importing it: that takes half as long as numpy, for one file."""
    plotly = find_spec("plotly")
    assert plotly is not None
    assert plotly.origin is not None
    return Path(plotly.origin).parent / "package_data" / "plotly.min.js"


def _version() -> str:
    """Return the version that plotly.js names in its first lines."""
    with _plotlyjs().open(encoding="utf-8") as file:
        named = re.search(r"plotly\.js v([\w.-]+)", file.read(200))
    assert named is not None
    return named[1]


FILE = f"plotly-{_version()}.min.js"


class PlotlyScript(msgspec.Struct, frozen=True, kw_only=True):
    """What a page needs to run plotly.js.

    Attributes:
        packed: plotly.js as `packed` has it; empty where it is shared.
        link: address of the shared file as seen from the page; empty: plotly.js is in the page.
        integrity: the hash by which a browser knows the script, wherever it comes from.
    """

    packed: Markup
    link: str
    integrity: str


def source() -> str:
    """Return plotly.js as a page or a shared FILE holds it."""
    return _plotlyjs().read_bytes().decode()


@functools.cache
def script(link: str) -> PlotlyScript:
    """Return the script for a page that finds a shared FILE at `link`, or has it inside where the link is empty."""
    text = source()
    return PlotlyScript(packed=Markup("") if link else packed(text), link=link, integrity=digest(text))


def digest(text: str) -> str:
    """Return the SHA-256 of a script as policies and integrity attributes spell it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
