"""Runs side by side: what changed, as far as the evidence goes."""

from dpdoctor.analysis.comparison.compare import compare, counter_facts, counter_values
from dpdoctor.analysis.comparison.model import (
    Change,
    Compared,
    ComparedRun,
    Comparison,
    Direction,
    Fact,
    FindingComparison,
    FindingState,
    FindingVerdict,
    ModeComparison,
    ModeState,
    Value,
)

__all__ = [
    "Change",
    "Compared",
    "ComparedRun",
    "Comparison",
    "Direction",
    "Fact",
    "FindingComparison",
    "FindingState",
    "FindingVerdict",
    "ModeComparison",
    "ModeState",
    "Value",
    "compare",
    "counter_facts",
    "counter_values",
]
