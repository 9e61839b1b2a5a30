"""The page of a comparison: one HTML file that loads nothing, as that of a run."""

from __future__ import annotations

import msgspec

from dpdoctor import plugins
from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report import page
from dpdoctor.report.comparison import sections
from dpdoctor.report.comparison.section import ComparisonSection
from dpdoctor.report.comparison.words import run_name, title
from dpdoctor.version import __version__

FILE_NAME = "comparison.json"


def render(comparison: Comparison) -> str:
    """Return the page.

    Raises:
        ValueError: a figure is NaN or infinite; JSON has no such numbers.
    """
    found: dict[str, ComparisonSection] = plugins.collect(sections, "SECTION")
    in_order = sorted(found.items(), key=lambda item: item[1].order)
    parts = [
        page.Part(name=name, title=section.title, question=section.question, blocks=section.build(comparison))
        for name, section in in_order
    ]
    return page.draw(
        page.Document(
            title=title(comparison),
            origin=[f"{run.label}: {run_name(run)}, {run.created}" for run in comparison.runs],
            parts=[part for part in parts if part.blocks],
            written=f"dpdoctor {__version__}, comparison schema {comparison.schema}",
            data=msgspec.to_builtins(comparison),
            file_name=FILE_NAME,
        )
    )
