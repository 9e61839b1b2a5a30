"""A document as one HTML page: styles, scripts and all data are inside; plotly.js, too, or several pages share it."""

from __future__ import annotations

import functools
import json
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from dpdoctor.report import plotlyjs, templates
from dpdoctor.report.blocks import Chart, Document
from dpdoctor.report.plotlyjs import PlotlyScript

# Escapes that mean the same inside a JSON string and cannot end a script element.
_INERT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
# In this order: what comes first is used by what comes later.
_STYLES = ("page.css", "first.css", "controls.css")
_SCRIPTS = ("element.js", "charts.js", "paper.js", "tables.js", "copy.js", "header.js")


def render(document: Document, *, plotly_link: str = "") -> str:
    """Return the page of a document; it loads nothing but the plotly.js at `plotly_link`, seen from the page, if any.

    Raises:
        ValueError: a number in it is NaN or infinite; JSON has no such numbers.
    """
    theme, plotly, script = templates.asset("theme.js"), plotlyjs.script(plotly_link), _script()
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
            data=inert_json(document.data),
        )
    )


def inert_json(value: Any) -> Markup:
    """Return JSON that is safe between script tags.

    Raises:
        ValueError: `value` holds NaN or infinity.
    """
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_INERT))


def _script() -> Markup:
    """Return the page's own script: its files in one block, so that no name of theirs is seen outside."""
    files = Markup("").join(map(templates.asset, _SCRIPTS))
    return Markup('"use strict";\n{\n') + files + Markup("}\n")


@functools.cache
def _environment() -> Environment:
    environment = templates.environment()
    environment.globals["chart_json"] = _chart_json
    return environment


def _chart_json(chart: Chart) -> Markup:
    return inert_json({"data": chart.traces, "layout": chart.layout})


def _policy(theme: str, plotly: PlotlyScript, script: str) -> str:
    """Return the content security policy: only our own scripts run, and nothing is fetched but what they load."""
    hashes = " ".join(f"'{plotlyjs.digest(text)}'" for text in (theme, plotly.text, script))
    dynamic = " 'strict-dynamic'" if plotly.link else ""
    return (
        f"default-src 'none'; script-src {hashes}{dynamic}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
