"""The report as one HTML page that loads nothing: styles, scripts, plotly.js and all data are inside."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
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
from dpdoctor.report.blocks import Block, Chart, Section

# Escapes that mean the same inside a JSON string and cannot end a script element.
_INERT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


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


def render(analysis: Analysis) -> str:
    """Return the page of a run.

    Raises:
        ValueError: a figure is NaN or infinite; JSON has no such numbers.
    """
    summary = analysis.summary
    return draw(
        Document(
            title=_title(analysis),
            origin=(summary.created, summary.fingerprint.host),
            parts=[
                Part(name=name, title=section.title, question=section.question, blocks=section.build(analysis))
                for name, section in _sections(analysis)
            ],
            written=f"dpdoctor {summary.dpdoctor}, schema {summary.schema}",
            data=msgspec.to_builtins(summary),
            file_name="run.json",
        )
    )


def draw(document: Document) -> str:
    """Return the page of a document.

    Raises:
        ValueError: a number in it is NaN or infinite; JSON has no such numbers.
    """
    script, plotly = _asset("page.js"), get_plotlyjs()
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=document,
            style=Markup(_asset("page.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            policy=_policy(plotly, script),
            data=inert_json(document.data, indent=1),
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
