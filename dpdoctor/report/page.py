"""The report as one HTML page that loads nothing: styles, scripts, plotly.js and all data are inside."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import PurePath
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from dpdoctor import plugins
from dpdoctor.analysis import Analysis
from dpdoctor.report import sections
from dpdoctor.report.blocks import Chart, Section

# Escapes that mean the same inside a JSON string and cannot end a script element.
_INERT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def render(analysis: Analysis) -> str:
    """Return the page.

    Raises:
        ValueError: a figure is NaN or infinite; JSON has no such numbers.
    """
    script, plotly = _asset("page.js"), get_plotlyjs()
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=_title(analysis),
            summary=analysis.summary,
            sections=[(name, section, section.build(analysis)) for name, section in _sections(analysis)],
            style=Markup(_asset("page.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            policy=_policy(plotly, script),
            run_json=inert_json(msgspec.to_builtins(analysis.summary)),
        )
    )


def inert_json(value: Any) -> Markup:
    """Return JSON that is safe between script tags.

    Raises:
        ValueError: `value` holds NaN or infinity.
    """
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_INERT))


def _sections(analysis: Analysis) -> list[tuple[str, Section]]:
    found: dict[str, Section] = plugins.collect(sections, "SECTION")
    applying = ((name, section) for name, section in found.items() if section.applies(analysis))
    return sorted(applying, key=lambda item: item[1].order)


def _asset(name: str) -> str:
    return resources.files("dpdoctor.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dpdoctor.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["chart_json"] = _chart_json
    return environment


def _chart_json(chart: Chart) -> Markup:
    return inert_json({"data": chart.traces, "layout": chart.layout})


def _title(analysis: Analysis) -> str:
    script = analysis.summary.script.path
    return script if analysis.run.header.spec.is_module else PurePath(script).name


def _policy(*scripts: str) -> str:
    """Return the content security policy: only our own scripts run, and nothing is fetched from anywhere."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
