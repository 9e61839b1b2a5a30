"""What only all ranks together show: who waits for whom in collectives, and how far their clocks are apart."""

from dpdoctor.analysis.cross_rank.compare import compare_ranks
from dpdoctor.analysis.cross_rank.model import (
    CameLast,
    ClockOffset,
    CommonCalls,
    CrossRank,
    CrossRankGroup,
    LateStep,
    StepLateness,
    Stragglers,
)
from dpdoctor.analysis.cross_rank.stragglers import Pause, pauses_of

__all__ = [
    "CameLast",
    "ClockOffset",
    "CommonCalls",
    "CrossRank",
    "CrossRankGroup",
    "LateStep",
    "Pause",
    "StepLateness",
    "Stragglers",
    "compare_ranks",
    "pauses_of",
]
