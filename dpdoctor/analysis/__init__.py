"""From records to figures: pure functions over a Run. numpy only; no files, no plots."""

from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.summary import Analysis, Figure, ModeSummary, RankSummary, RunSummary
from dpdoctor.records import PHASES, Adoption, Launch, Rank, Sample, StepRecord
from dpdoctor.spec import TRACE_MODE

__all__ = [
    "PHASES",
    "TRACE_MODE",
    "Adoption",
    "Analysis",
    "Figure",
    "Launch",
    "ModeSummary",
    "Rank",
    "RankSummary",
    "RunSummary",
    "Sample",
    "StepRecord",
    "analyse",
]
