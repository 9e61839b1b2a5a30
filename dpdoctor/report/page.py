"""A document as one HTML page: styles, scripts and all data are inside; plotly.js, too, or several pages share it.

What the first screen shows is HTML. Data and plotly.js are compressed, and inflated once a reader comes to a chart.
"""

from __future__ import annotations

import functools

from jinja2 import Environment
from markupsafe import Markup

from dpdoctor.report import plotlyjs, templates
from dpdoctor.report.blocks import Chart, Document
from dpdoctor.report.plotlyjs import PlotlyScript
from dpdoctor.report.templates import packed_json

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
    hashes = " ".join(f"'{known}'" for known in (*map(plotlyjs.digest, (theme, script)), plotly.integrity))
    # A file beside the page has no hash that a browser could check.
    dynamic = " 'strict-dynamic'" if plotly.link else ""
    return (
        f"default-src 'none'; script-src {hashes}{dynamic}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
