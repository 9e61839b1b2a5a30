"""plotly.js for a page: packed in it, or in a file that several pages share; it runs once a chart is near."""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass

from markupsafe import Markup
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from dpdoctor.report.templates import packed

FILE = f"plotly-{get_plotlyjs_version()}.min.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotlyScript:
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
    text: str = get_plotlyjs()
    return text


def script(link: str) -> PlotlyScript:
    """Return the script for a page that finds a shared FILE at `link`, or has it inside where the link is empty."""
    return PlotlyScript(packed=Markup("") if link else _packed(), link=link, integrity=_integrity())


def digest(text: str) -> str:
    """Return the SHA-256 of a script as policies and integrity attributes spell it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@functools.cache
def _packed() -> Markup:
    return packed(source())


@functools.cache
def _integrity() -> str:
    return digest(source())
