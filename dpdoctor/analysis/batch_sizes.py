"""How unequal the batches are that ranks train on in the same step, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.figure import Figure
from dpdoctor.analysis.base.launch_facts import LaunchFacts
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.base.weighing import COVERAGE
from dpdoctor.analysis.base.windows import NS, Window
from dpdoctor.analysis.breakdown import part_share
from dpdoctor.records import PHASES, StepRecord

_FORWARD, _BACKWARD = PHASES.index("forward"), PHASES.index("backward")
Array = NDArray[np.float64]
# Share of the steps in which one rank has the largest batch, for it to be that rank's fault.
PERSISTENT = 0.6
# Of the difference between forward passes, what sizes have to explain before they are taken to be the cause.
MOSTLY = 0.5


class Unevenness(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks with smaller batches wait for the one with the largest.

    Attributes:
        share: of the step; the mean batch on every rank would save it.
        behind: share of the step by which the rank with the largest batch comes after the median of the others.
        explained: how much of the difference between forward times the sizes explain, beside how much longer a rank
            takes whatever its size; None: on GPUs the host's clock does not time forward, and the work is taken to grow
            with the size.
        sizes: mean elements (or samples) of a step's batch, by rank.
        persistent: the same rank has the largest one in nearly every step.
    """

    share: Figure
    behind: float
    explained: float | None
    sizes: tuple[float, ...]
    unit: str
    persistent: bool

    @property
    def is_cause(self) -> bool:
        """Whether sizes explain most of what forward passes differ by, or nothing told."""
        return self.explained is None or self.explained >= MOSTLY

    def explains(self, late: float) -> bool:
        """Return whether unequal batches explain enough of the share of a step by which a rank is late."""
        return self.is_cause and self.behind >= COVERAGE * late > 0


def unevenness(
    windows: Sequence[tuple[LaunchFacts, Window]], world_size: int, traces: Traces, *, on_gpu: bool
) -> Unevenness | None:
    """Return what unequal batches cost; None: one rank, nothing measured, or all batches of each step are alike."""
    aligned = [(window, of_all) for _, window in windows if (of_all := _aligned(window))]
    if world_size < 2 or not aligned:
        return None
    found, steps = [window for window, _ in aligned], [of_all for _, of_all in aligned]
    unit = "element" if all(s.elements for window in steps for row in window for s in row) else "sample"
    sizes = [_sizes(window, unit) for window in steps]
    every = np.concatenate(sizes)
    if not len(every) or np.all(every == every[:, :1]):
        return None
    share, explained = _on_device(traces, sizes) if on_gpu else _on_host(found, steps, sizes)
    excess, behind = float(_excess(every).sum()), float((every.max(axis=1) - _median_of_others(every)).sum())
    largest = np.bincount(every.argmax(axis=1)).max() / len(every)
    return Unevenness(
        share=share,
        behind=(share.value or 0.0) * behind / excess,
        explained=explained,
        sizes=tuple(every.mean(axis=0).tolist()),
        unit=unit,
        persistent=bool(largest >= PERSISTENT),
    )


def _aligned(window: Window) -> list[tuple[StepRecord, ...]]:
    """Return the steady steps that all ranks have, one entry per step with every rank's record."""
    by_rank = [{step.step: step for step in part.steady} for part in window.ranks]
    common = sorted(set.intersection(*(set(steps) for steps in by_rank)))
    return [tuple(steps[number] for steps in by_rank) for number in common]


def _sizes(steps: list[tuple[StepRecord, ...]], unit: str) -> Array:
    rows = [[s.elements if unit == "element" else s.samples_entered for s in row] for row in steps]
    return np.asarray(rows, dtype=float).reshape(len(steps), -1)


def _on_host(
    found: list[Window], steps: list[list[tuple[StepRecord, ...]]], sizes: list[Array]
) -> tuple[Figure, float | None]:
    """Return the cost from forward times, in which ranks do not wait for each other, and backward in proportion.

    Backward's own share of the work is read from the rank that waits least in it.
    """
    forward = [_phase(window, _FORWARD) for window in steps]
    backward = np.concatenate([_phase(window, _BACKWARD) for window in steps])
    times, every = np.concatenate(forward), np.concatenate(sizes)
    if np.any(times <= 0):
        return stats.unknown("ratio", "forward was not timed"), None
    slope = max(0.0, float(np.polyfit(every.ravel(), times.ravel(), 1)[0]))
    whole = 1 + float(np.median((backward / times).min(axis=1)))
    lost = [slope * whole * float(_excess(window).sum()) for window in sizes]
    share = stats.ratio_of_totals([(s, w.step()[0]) for s, w in zip(lost, found, strict=True)], "ratio")
    by_size = slope * float(_excess(every).mean())
    # Of the ranks' means: single steps vary for other reasons, too.
    otherwise = float(_excess((times - slope * every).mean(axis=0, keepdims=True)).mean())
    return share, by_size / (by_size + otherwise) if by_size > 0 else 0.0


def _on_device(traces: Traces, sizes: list[Array]) -> tuple[Figure, float | None]:
    computing, reason = part_share(traces, "compute"), traces.why_unknown
    if computing.value is None or reason is not None:
        nothing = "without a trace it is not known how much of a step the device computes"
        return stats.unknown("ratio", reason or (computing.reason if traces else None) or nothing), None
    lost = [(computing.value * float((_excess(window) / window.max(axis=1)).sum()), len(window)) for window in sizes]
    return stats.ratio_of_totals(lost, "ratio"), None


def _phase(steps: list[tuple[StepRecord, ...]], phase: int) -> Array:
    rows = [[s.phases_ns[phase] * NS for s in row] for row in steps]
    return np.asarray(rows, dtype=float).reshape(len(steps), -1)


def _excess(of: Array) -> Array:
    """Return by how much the largest of each row exceeds the row's mean."""
    excess: Array = of.max(axis=1) - of.mean(axis=1)
    return excess


def _median_of_others(of: Array) -> Array:
    """Return for each row the median without its largest value."""
    others: Array = np.median(np.sort(of, axis=1)[:, :-1], axis=1)
    return others
