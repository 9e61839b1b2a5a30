"""plotly.js for a page: in the page itself, or in a file that several pages share."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from markupsafe import Markup
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from dpdoctor.report.templates import asset

FILE = f"plotly-{get_plotlyjs_version()}.min.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotlyScript:
    """The script that gives a page plotly.js.

    Attributes:
        text: plotly.js or, where it is shared, what loads it.
        link: address of the shared file as seen from the page; empty: plotly.js is in the page.
        integrity: the hash by which a browser knows the shared file.
    """

    text: Markup
    link: str = ""
    integrity: str = ""


def source() -> str:
    """Return plotly.js as a page or a shared FILE holds it."""
    text: str = get_plotlyjs()
    return text


def script(link: str) -> PlotlyScript:
    """Return the script for a page that finds a shared FILE at `link`, or has it inside where the link is empty."""
    if not link:
        return PlotlyScript(text=Markup(source()))
    return PlotlyScript(text=asset("shared_plotly.js"), link=link, integrity=digest(source()))


def digest(text: str) -> str:
    """Return the SHA-256 of a script as policies and integrity attributes spell it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
