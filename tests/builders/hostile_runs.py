"""Analyses in which every text that a run brings is an attack on whoever shows it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis import Analysis
from tests.builders import diagnosed_runs, runs, traced_runs

# Ends a script, an attribute, a tag and a comment; draws and links what a browser or plotly.js would run; is TeX.
MARKUP = (
    "</script><script>alert('script')</script></title></style></pre><img src=x onerror=alert('image')>"
    "<svg onload=alert('svg')></svg><a href=\"javascript:alert('link')\">link</a> --> ]]> "
    "\"' autofocus onfocus=alert('focus') onmouseover=alert('hover') x=\"' "
    "{{ 7 * 7 }} ${alert('template')} \\u003cb\\n%{x} $\\pi$"
)
# 10 kB without a space to break at, read from right to left to the end of its line.
LONG = "\N{RIGHT-TO-LEFT OVERRIDE}" + "<שלום>'&amp;\"" * 900
TEXTS = {"markup": MARKUP, "long": LONG}


def hostile_machine(text: str) -> Analysis:
    """Return a run of a script, on a machine with packages and files that all bear this name."""
    found = poisoned(runs.hostile_run(), text)
    machine = replace(
        found.summary.fingerprint,
        host=text,
        cpu=text,
        system=text,
        driver=text,
        packages={text: text},
        gpus=(replace(runs.H100, name=text, uuid=text),),
    )
    return replace(found, summary=replace(found.summary, fingerprint=machine))


def hostile_findings(text: str) -> Analysis:
    """Return findings, ablations and a loader with this text in all that the script or its data may bring."""
    return poisoned(diagnosed_runs.hostile_findings(), text)


def hostile_traces(text: str) -> Analysis:
    """Return traces whose kernels, operators, groups, hosts and files bear this name."""
    return poisoned(traced_runs.hostile_traces(), text)


def poisoned(analysis: Analysis, text: str) -> Analysis:
    """Return the analysis with `text` in place of the hostile texts that it has."""
    return _replaced(analysis, text)


def _replaced(value: Any, text: str) -> Any:
    if isinstance(value, str):
        for mark in traced_runs.HOSTILE[:3]:
            value = value.replace(mark, text)
        return value
    if isinstance(value, tuple):
        return tuple(_replaced(inner, text) for inner in value)
    if isinstance(value, dict):
        return {_replaced(key, text): _replaced(inner, text) for key, inner in value.items()}
    if isinstance(value, msgspec.Struct):
        fields = {name: _replaced(getattr(value, name), text) for name in value.__struct_fields__}
        return replace(value, **fields)
    return value
