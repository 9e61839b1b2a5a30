"""The shape of run.json (schema 1): stable, versioned, every figure with its interval or its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from dpdoctor.analysis.across.model import AcrossRanks
from dpdoctor.records import Adoption, Counters, Run
from dpdoctor.spec import SCHEMA, Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured figure with its 95 % interval, or None with the reason why it is unknown.

    Attributes:
        n: number of values behind it: windows of one launch, or launches.
        scope: "run": the interval holds within one launch, whose windows are correlated and say nothing of
            another launch; "launches": between launches.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit: str
    scope: str = "run"
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("an unknown figure needs a reason")
        if self.scope not in ("run", "launches"):
            raise ValueError(f"scope is {self.scope!r}; known: run, launches")


class Batch(msgspec.Struct, frozen=True, kw_only=True, rename={"global_": "global"}):
    """Mean samples per step: of one device, of all together, the rule that made them and how they were counted.

    A Struct, because the field `global` is a keyword of Python.
    """

    per_device: float | None
    global_: float | None
    rule: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """One rank of one mode. `step` is the mean of its own steps."""

    rank: int
    host: str
    device: str
    status: str
    phase: str
    steps_recorded: int
    step: Figure
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBudget:
    """Means per traced step and device, in seconds; compute, exposed_comm, h2d, copy and idle add up to step.

    `comm` is all communication, exposed or not. `idle_by` splits idle by digest.IDLE_CAUSES.
    """

    step: Figure
    compute: Figure
    exposed_comm: Figure
    h2d: Figure
    copy: Figure
    idle: Figure
    comm: Figure
    idle_by: dict[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSummary:
    """One mode of a run. Throughput is global samples per second, always. `placement` is ModeSpec's."""

    status: str
    reason: str | None
    stderr_tail: tuple[str, ...]
    world_size: int
    num_devices: int
    placement: str = ""
    backend: str | None
    launches: int
    warmup_steady: bool | None
    adoption: Adoption | None
    batch: Batch
    throughput: Figure
    throughput_with_edges: Figure
    epoch_s: Figure
    step: Figure
    speedup: Figure
    scaling_efficiency: Figure
    profiler_cost: Figure
    observer_cost: Figure
    phases: dict[str, Figure]
    budget: TraceBudget | None = None
    counters: Counters | None
    ranks: tuple[RankSummary, ...]
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The profiled script."""

    path: str
    sha256: str | None
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """run.json."""

    schema: int = SCHEMA
    dpdoctor: str
    command: tuple[str, ...]
    script: Script
    created: str
    fingerprint: Fingerprint
    modes: dict[str, ModeSummary]
    findings: tuple[dict[str, Any], ...] = ()
    not_judged: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the report reads: the summary, the run behind it for the curves, and by mode its ranks compared."""

    summary: RunSummary
    run: Run
    across: dict[str, AcrossRanks] = field(default_factory=dict)
