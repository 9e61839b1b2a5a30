"""Analyses -> Comparison: every run against the first."""

from __future__ import annotations

import string
from collections.abc import Sequence

from dpdoctor.analysis.comparison.environment import environment_facts
from dpdoctor.analysis.comparison.findings import finding_comparisons
from dpdoctor.analysis.comparison.model import ComparedRun, Comparison
from dpdoctor.analysis.comparison.modes import mode_comparison, why_inconclusive
from dpdoctor.analysis.results import Diagnosis
from dpdoctor.spec import TRACE_MODE


def compare(analyses: Sequence[Diagnosis]) -> Comparison:
    """Return what differs between runs, which are labelled A, B, C, ...; A is the base.

    Raises:
        ValueError: fewer than two runs.
    """
    if len(analyses) < 2:
        raise ValueError(f"a comparison needs two runs or more, not {len(analyses)}")
    names = dict.fromkeys(name for one in analyses for name in one.summary.modes)
    return Comparison(
        runs=tuple(_run(one, _label(place)) for place, one in enumerate(analyses)),
        modes={name: mode_comparison(name, analyses) for name in names},
        findings=finding_comparisons(analyses, why_inconclusive),
        environment=environment_facts(analyses),
    )


def _label(place: int) -> str:
    """Return A to Z; beyond, which nobody reads side by side, the number of the run."""
    letters = string.ascii_uppercase
    return letters[place] if place < len(letters) else f"run {place + 1}"


def _run(analysis: Diagnosis, label: str) -> ComparedRun:
    summary = analysis.summary
    return ComparedRun(
        label=label,
        path=str(analysis.run.path),
        created=summary.created,
        dpdoctor=summary.dpdoctor,
        script=summary.script.path,
        args=summary.script.args,
        command=summary.command,
        of_traces=[*summary.modes] == [TRACE_MODE],
    )
