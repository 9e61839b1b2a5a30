"""The shape of a comparison of runs, which `dpdoctor compare --format json` writes as it is.

    {"schema": 2, "runs": [{"label": "A", "path": ..., "command": [...], ...}, {"label": "B", ...}],
     "modes": {"ddp": {
       "states": [{"status": "ok", "withheld": null, "batch": {"global": 64, ...}, ...}, ...],
       "figures": {"throughput": {"figures": [{"value", "low", "high", ...}, ...],
                                  "changes": [{"ratio": {...}, "difference": {...}, "verdict": "less"}]}, ...},
       "phases": {"data_wait": ...}, "budget": {"compute": ..., "idle.data": ...}, "ablations": {"no_comm": ...},
       "counters": [{"name": "all_reduce.bytes", "values": [46758048, 46758048], "differs": [false]}]}},
     "findings": [{"rule", "mode", "runs": [...], "cost": {...}, "changes": ["appeared"]}],
     "environment": [{"name": "torch", "values": ["2.11.0", "2.15.0"], "differs": [true]}]}

What has an entry for each run keeps the order of `runs`; what has one for each change, of the runs after the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.figure import Figure
from dpdoctor.analysis.base.summary import Batch, Finding

SCHEMA = 2

Direction = Literal["more", "less", "alike", "unclear", "unknown"]
FindingVerdict = Literal["appeared", "gone", "more", "less", "alike", "unclear", "absent", "unknown"]
Value = str | int | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How a run's figure stands to the base's.

    Attributes:
        ratio: the run's over the base's; unit "x".
        difference: the run's less the base's, in their unit.
        verdict: more or less: the 95% interval of the difference leaves out 0; alike: it does not; unclear: there is
            no interval; unknown: one of the figures is.
    """

    ratio: Figure
    difference: Figure
    verdict: Direction


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of every run, and the change of each run after the first."""

    figures: tuple[Figure, ...]
    changes: tuple[Change, ...]


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is counted or known without error, of every run; None: unknown.

    `differs`: of each run after the first, whether it is another value than the base's; None: one of them is unknown.
    """

    name: str
    values: tuple[Value, ...]
    differs: tuple[bool | None, ...]


class ModeState(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a mode in one run.

    Attributes:
        status: as in run.json; None: the run has no such mode.
        withheld: why none of its figures may be compared; None: they may.
        reason: of a status that is not ok, as the run gives it.
        placement: ModeSpec's; num_devices and batch are None without the mode.
    """

    status: str | None
    withheld: str | None
    reason: str | None = None
    num_devices: int | None = None
    placement: str = ""
    launches: int = 0
    batch: Batch | None = None


class ModeComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One mode in all runs.

    Attributes:
        figures: throughput, throughput_all_steps, step, epoch_s, speedup, scaling_efficiency, peak_memory_bytes; of
            traces alone traced_step.
        phases: seconds per step on the host's clock, keys of PHASES.
        budget: shares of the traced steps, keys of `trace_breakdown.breakdown_shares`.
        ablations: seconds per step that switching something off gains.
        counters: of one step after warm-up; the same in every step and on any machine.
    """

    states: tuple[ModeState, ...]
    figures: dict[str, Compared]
    phases: dict[str, Compared]
    budget: dict[str, Compared]
    ablations: dict[str, Compared]
    counters: tuple[Fact, ...]


class FindingState(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says of one mode of one run: a finding, nothing, or why it cannot tell."""

    finding: Finding | None = None
    reason: str | None = None


class FindingComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule says of one mode in all runs; at least one run has a finding that is not refuted.

    Attributes:
        of: step or epoch, of which the cost is a share.
        cost: of the findings that are not refuted.
        changes: appeared, gone; of one that both have more, less, alike or unclear, by its cost; absent: neither has
            it; unknown: the rule could not tell of one of them.
    """

    rule: str
    mode: str
    of: str
    runs: tuple[FindingState, ...]
    cost: Compared
    changes: tuple[FindingVerdict, ...]


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Which run a label stands for. `of_traces`: it was made of traces that existed before; nothing was run."""

    label: str
    path: str
    created: str
    dpdoctor: str
    script: str
    args: tuple[str, ...]
    command: tuple[str, ...]
    of_traces: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two or more runs; the first is the base. The module's docstring shows it as JSON."""

    schema: int = SCHEMA
    runs: tuple[ComparedRun, ...]
    modes: dict[str, ModeComparison]
    findings: tuple[FindingComparison, ...]
    environment: tuple[Fact, ...]


# Share of a figure below which a difference is that of floating-point sums in another order.
ROUNDING = 1e-9


def compared(figures: Sequence[Figure]) -> Compared:
    """Return figures of one unit, one of each run, and how each stands to the first."""
    base, *others = figures
    return Compared(figures=tuple(figures), changes=tuple(_change(base, other) for other in others))


def fact(name: str, values: Sequence[Value]) -> Fact:
    """Return values that are known without error, one of each run, and which of them are others than the first."""
    base, *others = values
    differs = tuple(None if None in (base, other) else other != base for other in others)
    return Fact(name=name, values=tuple(values), differs=differs)


def _change(base: Figure, other: Figure) -> Change:
    difference = stats.combination([(1.0, other), (-1.0, base)], other.unit)
    if difference.value is not None and base.scope == other.scope:
        difference = replace(difference, scope=base.scope)
    rounding = ROUNDING * max(abs(base.value or 0.0), abs(other.value or 0.0))
    return Change(ratio=stats.ratio(other, base, "x"), difference=difference, verdict=_verdict(difference, rounding))


def _verdict(difference: Figure, rounding: float) -> Direction:
    """Return whether the interval of the difference leaves out 0 by more than rounding.

    By Fieller's theorem it does exactly where the interval of the ratio leaves out 1; but the ratio has none where the
    base's interval reaches 0, as that of a phase that hardly takes time.
    """
    if difference.value is None:
        return "unknown"
    if difference.low is None or difference.high is None:
        return "unclear"
    if difference.low > rounding:
        return "more"
    return "less" if difference.high < -rounding else "alike"
