"""A report as one HTML page: styles, scripts and all data are inside; plotly.js, too, or several pages share it."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from jinja2 import Environment
from markupsafe import Markup

from dpdoctor import plugins
from dpdoctor.analysis import Diagnosis
from dpdoctor.report import plotlyjs, sections, templates
from dpdoctor.report.blocks import Block, Chart, Section
from dpdoctor.report.plotlyjs import PlotlyScript
from dpdoctor.report.text import run_title

# Escapes that mean the same inside a JSON string and cannot end a script element.
_INERT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
# In this order: what comes first is used by what comes later.
_STYLES = ("page.css", "first.css", "controls.css")
_SCRIPTS = ("element.js", "charts.js", "paper.js", "tables.js", "copy.js", "header.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One section as it is drawn; `name` is its address within the page."""

    name: str
    title: str
    question: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a page is made of.

    Attributes:
        origin: when and where it comes from, below the title.
        written: what wrote it, for the foot.
        data: all numbers as JSON has them, which the page hands out as `file_name`.
    """

    title: str
    origin: Sequence[str]
    parts: Sequence[Part]
    written: str
    data: Any
    file_name: str


def render(analysis: Diagnosis, *, plotly_link: str = "") -> str:
    """Return the page of a run; it loads nothing but the plotly.js at `plotly_link`, seen from the page, if any.

    Raises:
        ValueError: a figure is NaN or infinite; JSON has no such numbers.
    """
    summary = analysis.summary
    return draw(
        Document(
            title=run_title(analysis),
            origin=(summary.created, summary.fingerprint.host),
            parts=[
                Part(name=name, title=section.title, question=section.question, blocks=section.build(analysis))
                for name, section in _sections(analysis)
            ],
            written=f"dpdoctor {summary.dpdoctor}, schema {summary.schema}",
            data=msgspec.to_builtins(summary),
            file_name="run.json",
        ),
        plotly_link=plotly_link,
    )


def draw(document: Document, *, plotly_link: str = "") -> str:
    """Return the page of a document; `plotly_link` as for `render`.

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


def _sections(analysis: Diagnosis) -> list[tuple[str, Section]]:
    found: dict[str, Section] = plugins.collect(sections, "SECTION")
    applying = ((name, section) for name, section in found.items() if section.applies(analysis))
    return sorted(applying, key=lambda item: item[1].order)


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
