"""The report as one HTML page: styles, scripts and all data are inside; plotly.js, too, or several pages share it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from jinja2 import Environment
from markupsafe import Markup

from dpdoctor import plugins
from dpdoctor.analysis import Analysis
from dpdoctor.report import plotlyjs, sections, templates
from dpdoctor.report.blocks import Chart, Section
from dpdoctor.report.plotlyjs import PlotlyScript
from dpdoctor.report.text import run_title

# Escapes that mean the same inside a JSON string and cannot end a script element.
_INERT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def render(analysis: Analysis, *, plotly_link: str = "") -> str:
    """Return the page; it loads nothing but the plotly.js at `plotly_link`, seen from the page, where there is one.

    Raises:
        ValueError: a figure is NaN or infinite; JSON has no such numbers.
    """
    script, plotly = templates.asset("page.js"), plotlyjs.script(plotly_link)
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=run_title(analysis),
            summary=analysis.summary,
            sections=[(name, section, section.build(analysis)) for name, section in _sections(analysis)],
            style=templates.asset("page.css"),
            plotly=plotly,
            script=script,
            policy=_policy(plotly, script),
            run_json=inert_json(msgspec.to_builtins(analysis.summary), indent=1),
        )
    )


def inert_json(value: Any, *, indent: int | None = None) -> Markup:
    """Return JSON that is safe between script tags.

    Raises:
        ValueError: `value` holds NaN or infinity.
    """
    separators = (",", ": ") if indent else (",", ":")
    return Markup(json.dumps(value, allow_nan=False, indent=indent, separators=separators).translate(_INERT))


def _sections(analysis: Analysis) -> list[tuple[str, Section]]:
    found: dict[str, Section] = plugins.collect(sections, "SECTION")
    applying = ((name, section) for name, section in found.items() if section.applies(analysis))
    return sorted(applying, key=lambda item: item[1].order)


def _environment() -> Environment:
    environment = templates.environment()
    environment.globals["chart_json"] = _chart_json
    return environment


def _chart_json(chart: Chart) -> Markup:
    return inert_json({"data": chart.traces, "layout": chart.layout})


def _policy(plotly: PlotlyScript, script: str) -> str:
    """Return the content security policy: only our own scripts run, and nothing is fetched but what they load."""
    hashes = " ".join(f"'{plotlyjs.digest(text)}'" for text in (plotly.text, script))
    dynamic = " 'strict-dynamic'" if plotly.link else ""
    return (
        f"default-src 'none'; script-src {hashes}{dynamic}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
