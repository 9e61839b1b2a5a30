"""What only all ranks together show: who waits for whom in collectives, and how far their clocks are apart."""

from dpdoctor.analysis.across.compare import across
from dpdoctor.analysis.across.model import (
    AcrossRanks,
    CameLast,
    ClockOffset,
    CommonCalls,
    GroupAcross,
    LateStep,
    StepLateness,
    Verdict,
)
from dpdoctor.analysis.across.pauses import Pause, pauses_of

__all__ = [
    "AcrossRanks",
    "CameLast",
    "ClockOffset",
    "CommonCalls",
    "GroupAcross",
    "LateStep",
    "Pause",
    "StepLateness",
    "Verdict",
    "across",
    "pauses_of",
]
