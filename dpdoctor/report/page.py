"""A document as one HTML page: styles, scripts and all data are inside; plotly.js, too, or several pages share it.

What the first screen shows is HTML. What is large lies in it as gzip in base64, a third of its size, in which nothing
can end an element, and is inflated once a reader comes to a chart.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import hashlib
import json
import re
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from dpdoctor import units
from dpdoctor.report.blocks import Chart, Document

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
    theme, plotly, script = asset("theme.js"), plotly_script(plotly_link), _script()
    return (
        _page_environment()
        .get_template("page.html")
        .render(
            page=document,
            style=Markup("").join(map(asset, _STYLES)),
            dark=asset("dark.css"),
            theme=theme,
            plotly=plotly,
            script=script,
            policy=_policy(theme, plotly, script),
            data=packed_json(document.data),
        )
    )


def _script() -> Markup:
    """Return the page's own script: its files in one block, so that no name of theirs is seen outside."""
    files = Markup("").join(map(asset, _SCRIPTS))
    return Markup('"use strict";\n{\n') + files + Markup("}\n")


@functools.cache
def _page_environment() -> Environment:
    environment = new_environment()
    environment.globals["chart_json"] = _chart_json
    environment.globals["trace_json"] = lambda events: packed_json({"traceEvents": events})
    return environment


def _chart_json(chart: Chart) -> Markup:
    return packed_json({"data": chart.traces, "layout": chart.layout})


def _policy(theme: str, plotly: _PlotlyScript, script: str) -> str:
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


class _PlotlyScript(msgspec.Struct, frozen=True, kw_only=True):
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
def plotly_script(link: str) -> _PlotlyScript:
    """Return the script for a page that finds a shared FILE at `link`, or has it inside where the link is empty."""
    text = plotly_source()
    return _PlotlyScript(packed=Markup("") if link else packed(text), link=link, integrity=_digest(text))


def _digest(text: str) -> str:
    """Return the SHA-256 of a script as policies and integrity attributes spell it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def asset(name: str) -> Markup:
    """Return the text of one of our own files, for a template to take as it is."""
    return Markup(resources.files("dpdoctor.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8"))


class _Compiled(FileSystemBytecodeCache):
    """Compiled templates, kept beside the package's compiled modules: to compile them takes most of a page's time."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep one, unless Python is to keep none either, or may not write there."""
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):
                super().dump_bytecode(bucket)


def new_environment() -> Environment:
    """Return an environment that escapes all text, refuses names that it is not given, and shows shares as all do."""
    made = Environment(
        loader=PackageLoader("dpdoctor.report", "assets"),
        bytecode_cache=_Compiled(str(Path(__file__).with_name("__pycache__"))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["share"] = units.share
    return made


# Level 9 makes plotly.js 1% smaller and takes 1.8 times as long.
_LEVEL = 5


def packed(text: str) -> Markup:
    """Return a text for packed.js to inflate; the same text gives the same bytes."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), _LEVEL, mtime=0)).decode("ascii"))


def packed_json(value: Any) -> Markup:
    """Return a value as packed JSON.

    Raises:
        ValueError: `value` holds NaN or infinity; JSON has no such numbers.
    """
    return packed(json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False))
