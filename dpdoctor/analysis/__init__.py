"""From records to figures: pure functions over a Run. numpy only; no files, no plots."""

from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.facts import ModeFacts
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.loader.model import LoaderPrediction, LoaderSummary, SlowFetches
from dpdoctor.analysis.results import Analysis, Diagnosis
from dpdoctor.analysis.summary import (
    WATERFALL_TERMS,
    AblationSummary,
    CrossCheck,
    Finding,
    Inconclusive,
    ModeSummary,
    RankSummary,
    RunSummary,
    Waterfall,
)
from dpdoctor.records import (
    ALL_PHASES,
    FULL,
    HAND_WRITTEN,
    PHASES,
    CallNode,
    Conversion,
    EventRecord,
    HostSync,
    Launch,
    LineShare,
    Loader,
    MemoryRecord,
    Rank,
    Run,
    Sample,
    StepRecord,
    Strategy,
)
from dpdoctor.spec import BASELINE, TRACE_MODE

__all__ = [
    "ALL_PHASES",
    "BASELINE",
    "FULL",
    "HAND_WRITTEN",
    "PHASES",
    "TRACE_MODE",
    "WATERFALL_TERMS",
    "AblationSummary",
    "Analysis",
    "CallNode",
    "Conversion",
    "CrossCheck",
    "Diagnosis",
    "EventRecord",
    "Figure",
    "Finding",
    "HostSync",
    "Inconclusive",
    "Launch",
    "LineShare",
    "Loader",
    "LoaderPrediction",
    "LoaderSummary",
    "MemoryRecord",
    "ModeFacts",
    "ModeSummary",
    "Rank",
    "RankSummary",
    "Run",
    "RunSummary",
    "Sample",
    "SlowFetches",
    "StepRecord",
    "Strategy",
    "Waterfall",
    "analyse",
]
