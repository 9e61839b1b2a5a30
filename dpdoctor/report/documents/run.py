"""The document of a run: its sections, in the order in which they are read. A new one is a file and two lines here."""

from __future__ import annotations

import msgspec

from dpdoctor.analysis import Diagnosis
from dpdoctor.report.blocks import Document, Section, parts
from dpdoctor.report.sections import (
    adoption,
    arms,
    collectives,
    environment,
    findings,
    kernels,
    loader,
    overview,
    parallel,
    phases,
    ranks,
    samplers,
    steps,
    throughput,
    time_budget,
    traces,
    waterfall,
)
from dpdoctor.report.text import run_title

SECTIONS: tuple[Section[Diagnosis], ...] = (
    overview.SECTION,
    traces.SECTION,
    findings.SECTION,
    throughput.SECTION,
    waterfall.SECTION,
    arms.SECTION,
    phases.SECTION,
    loader.SECTION,
    time_budget.SECTION,
    collectives.SECTION,
    parallel.SECTION,
    ranks.SECTION,
    kernels.SECTION,
    steps.SECTION,
    samplers.SECTION,
    adoption.SECTION,
    environment.SECTION,
)


def of_run(diagnosis: Diagnosis) -> Document:
    """Return the document of a run."""
    summary = diagnosis.summary
    return Document(
        title=run_title(diagnosis),
        origin=(summary.created, summary.fingerprint.host),
        parts=parts(SECTIONS, diagnosis),
        written=f"dpdoctor {summary.dpdoctor}, schema {summary.schema}",
        data=msgspec.to_builtins(summary),
        file_name="run.json",
    )
