"""The document of a run: its sections and their views, in the order in which they are read.

A new view is a file and two lines here.
"""

from __future__ import annotations

import msgspec

from dpdoctor.analysis import Diagnosis
from dpdoctor.report.blocks import Document, Section
from dpdoctor.report.documents import assembly
from dpdoctor.report.text import run_title
from dpdoctor.report.views import (
    ablations,
    breakdown,
    call_tree,
    collectives,
    conversion,
    environment,
    findings,
    kernels,
    loader,
    memory,
    memory_over_time,
    overhead,
    overview,
    parallel,
    phases,
    ranks,
    samplers,
    steps,
    traced_step,
    traces,
    waterfall,
)
from dpdoctor.report.words import standing

SECTIONS: tuple[Section[Diagnosis], ...] = (
    Section(name="summary", title="Summary", views=(overview.VIEW, traces.VIEW, findings.VIEW)),
    Section(
        name="step-time",
        title="Step time",
        views=(phases.VIEW, waterfall.VIEW, ablations.VIEW, breakdown.VIEW, steps.VIEW),
    ),
    Section(
        name="data-loading",
        title="Data loading",
        views=(loader.VIEW,),
        why_empty="not measured: a trace does not show the loader from inside",
    ),
    Section(
        name="communication",
        title="Communication",
        views=(collectives.VIEW, parallel.VIEW, ranks.VIEW),
        why_empty="not measured: no step was traced",
    ),
    Section(name="timeline", title="Timeline", views=(traced_step.VIEW, samplers.VIEW)),
    Section(name="operators", title="Operators", views=(kernels.VIEW, call_tree.VIEW)),
    Section(name="memory", title="Memory", views=(memory.VIEW, memory_over_time.VIEW)),
    Section(name="run-details", title="Run details", views=(conversion.VIEW, overhead.VIEW, environment.VIEW)),
)


def of_run(diagnosis: Diagnosis) -> Document:
    """Return the document of a run."""
    summary = diagnosis.summary
    parts = assembly.parts(SECTIONS, diagnosis)
    return Document(
        title=run_title(diagnosis),
        origin=(summary.created, summary.fingerprint.host),
        parts=parts,
        modes=assembly.shown_modes(parts, summary.modes),
        focus=standing.focus(summary) or "",
        written=f"dpdoctor {summary.dpdoctor}, schema {summary.schema}",
        data=msgspec.to_builtins(summary),
        file_name="run.json",
    )
