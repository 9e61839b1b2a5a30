"""A document as one HTML page: styles, scripts and all data are inside; plotly.js, too, or several pages share it.

What the first screen shows is HTML. Data and plotly.js are compressed, and inflated once a reader comes to a chart.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

import msgspec
from jinja2 import Environment
from markupsafe import Markup

from dpdoctor.report import templates
from dpdoctor.report.blocks import Chart, Document
from dpdoctor.report.templates import packed, packed_json

# In this order: what comes first is used by what comes later.
_STYLES = ("page.css", "first.css", "controls.css")
_SCRIPTS = (
    "element.js",
    "sections.js",
    "packed.js",
    "plotly.js",
    "charts.js",
    "paper.js",
    "tables.js",
    "copy.js",
    "perfetto.js",
    "header.js",
)


def render(document: Document, *, plotly_link: str = "") -> str:
    """Return the page of a document; it loads nothing but the plotly.js at `plotly_link`, seen from the page, if any.

    Raises:
        ValueError: a number in it is NaN or infinite; JSON has no such numbers.
    """
    theme, plotly, script = templates.asset("theme.js"), plotly_script(plotly_link), _script()
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=document,
            style=Markup("").join(map(templates.asset, _STYLES)),
            dark=templates.asset("dark.css"),
            theme=theme,
            plotly=plotly,
            script=script,
            policy=_policy(theme, plotly, script),
            data=packed_json(document.data),
        )
    )


def _script() -> Markup:
    """Return the page's own script: its files in one block, so that no name of theirs is seen outside."""
    files = Markup("").join(map(templates.asset, _SCRIPTS))
    return Markup('"use strict";\n{\n') + files + Markup("}\n")


@functools.cache
def _environment() -> Environment:
    environment = templates.environment()
    environment.globals["chart_json"] = _chart_json
    environment.globals["trace_json"] = lambda events: packed_json({"traceEvents": events})
    return environment


def _chart_json(chart: Chart) -> Markup:
    return packed_json({"data": chart.traces, "layout": chart.layout})


def _policy(theme: str, plotly: PlotlyScript, script: str) -> str:
    """Return the content security policy: only our own scripts run, and nothing is fetched but what they load."""
    hashes = " ".join(f"'{known}'" for known in (*map(_digest, (theme, script)), plotly.integrity))
    # A file beside the page has no hash that a browser could check.
    dynamic = " 'strict-dynamic'" if plotly.link else ""
    return (
        f"default-src 'none'; script-src {hashes}{dynamic}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _plotlyjs() -> Path:
    """Return where plotly has plotly.js, without importing it: that takes half as long as numpy, for one file."""
    plotly = find_spec("plotly")
    assert plotly is not None
    assert plotly.origin is not None
    return Path(plotly.origin).parent / "package_data" / "plotly.min.js"


def _plotly_version() -> str:
    """Return the version that plotly.js names in its first lines."""
    with _plotlyjs().open(encoding="utf-8") as file:
        named = re.search(r"plotly\.js v([\w.-]+)", file.read(200))
    assert named is not None
    return named[1]


PLOTLY_FILE = f"plotly-{_plotly_version()}.min.js"


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


def plotly_source() -> str:
    """Return plotly.js as a page or a shared FILE holds it."""
    return _plotlyjs().read_bytes().decode()


@functools.cache
def plotly_script(link: str) -> PlotlyScript:
    """Return the script for a page that finds a shared FILE at `link`, or has it inside where the link is empty."""
    text = plotly_source()
    return PlotlyScript(packed=Markup("") if link else packed(text), link=link, integrity=_digest(text))


def _digest(text: str) -> str:
    """Return the SHA-256 of a script as policies and integrity attributes spell it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
