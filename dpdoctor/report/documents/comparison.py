"""The document of a comparison: its sections, in the order in which they are read."""

from __future__ import annotations

import msgspec

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Document, Section, parts
from dpdoctor.report.comparison.sections import (
    arms,
    changes,
    counters,
    environment,
    findings,
    overview,
    phases,
    throughput,
    time_budget,
)
from dpdoctor.report.comparison.words import run_name, title
from dpdoctor.version import __version__

SECTIONS: tuple[Section[Comparison], ...] = (
    overview.SECTION,
    changes.SECTION,
    findings.SECTION,
    throughput.SECTION,
    phases.SECTION,
    time_budget.SECTION,
    arms.SECTION,
    counters.SECTION,
    environment.SECTION,
)


def of_comparison(comparison: Comparison) -> Document:
    """Return the document of runs side by side."""
    return Document(
        title=title(comparison),
        origin=[f"{run.label}: {run_name(run)}, {run.created}" for run in comparison.runs],
        parts=parts(SECTIONS, comparison),
        written=f"dpdoctor {__version__}, comparison schema {comparison.schema}",
        data=msgspec.to_builtins(comparison),
        file_name="comparison.json",
    )
