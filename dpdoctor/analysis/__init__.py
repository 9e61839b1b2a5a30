"""From records to figures: pure functions over a Run. numpy only; no files, no plots."""

from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.summary import Analysis, Figure, ModeSummary, RankSummary, RunSummary
from dpdoctor.records import PHASES, Adoption, Launch, Rank, Sample, StepRecord

__all__ = [
    "PHASES",
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
