"""The document of a comparison: its sections, in the order in which they are read."""

from __future__ import annotations

import msgspec

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Document, Section
from dpdoctor.report.comparison import views
from dpdoctor.report.comparison.words import run_name, title
from dpdoctor.report.documents import assembly
from dpdoctor.version import __version__

SECTIONS: tuple[Section[Comparison], ...] = (
    Section(name="summary", title="Summary", views=(views.OVERVIEW,)),
    Section(name="what-changed", title="What changed", views=(views.CHANGES, views.FINDINGS)),
    Section(
        name="step-time",
        title="Step time",
        views=(views.THROUGHPUT, views.PHASES, views.BREAKDOWN, views.ABLATIONS),
    ),
    Section(name="run-details", title="Run details", views=(views.COUNTERS, views.ENVIRONMENT)),
)


def of_comparison(comparison: Comparison) -> Document:
    """Return the document of runs side by side."""
    parts = assembly.parts(SECTIONS, comparison)
    return Document(
        title=title(comparison),
        origin=[f"{run.label}: {run_name(run)}, {run.created}" for run in comparison.runs],
        parts=parts,
        modes=assembly.shown_modes(parts, comparison.modes),
        focus="",
        written=f"dpdoctor {__version__}, comparison schema {comparison.schema}",
        data=msgspec.to_builtins(comparison),
        file_name="comparison.json",
    )
