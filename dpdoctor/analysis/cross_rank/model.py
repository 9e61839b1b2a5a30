"""What comparing ranks gives. Ranks go by their number in the job; columns of arrays are in the order of `ranks`."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Kind = Literal["persistent", "rotating", "periodic", "single", "none", "unknown"]


class CommonCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The n synchronising calls of one group that all its k ranks hold; times from durations alone, no clocks compared.

    Attributes:
        rows: int64[n, k], of each rank's Calls.
        step: int64[n], as the first of the ranks counts; -1 outside of every step.
        judged: bool[n], False where a rank's trace does not hold what came before: the first call after a profiler
            was started. Its wait is the profiler's, not the training's.
        transfer_ns: int64[n], the shortest duration over the ranks.
        wait_ns: int64[n, k], the rest. Calls that overlap wait together: do not add these up, see StepLateness.
        last: int64[n], the rank that came last.
        cause: of the segment before the call on that rank, where its lateness is the most of that segment, else None.
        lateness_ns: int64[n, k], how much later than the median of the others a rank came, charged to the one call
            before which it was lost; negative: earlier. 0 where not judged.
    """

    rows: NDArray[np.int64]
    step: NDArray[np.int64]
    judged: NDArray[np.bool_]
    transfer_ns: NDArray[np.int64]
    wait_ns: NDArray[np.int64]
    last: NDArray[np.int64]
    cause: tuple[str | None, ...]
    lateness_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.step)


class CrossRankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One process group over all ranks that have calls in it.

    Attributes:
        name: empty where the traces do not say it; what is in it may then be of several groups, which matching refuses.
        num_missing: members whose trace is not here; None: the traces do not say how many there are.
        matched_by: sequence, the numbers that the backend counts; order, the n-th call of an operation and size.
        left_out: calls of each rank that not all ranks hold: a profiler that started late or stopped early.
        calls: None where the group was refused.
        reason: why it was refused.
    """

    name: str
    ranks: tuple[int, ...]
    num_missing: int | None
    matched_by: Literal["sequence", "order"] | None = None
    left_out: tuple[int, ...] = ()
    calls: CommonCalls | None = None
    reason: str | None = None


class StepLateness(msgspec.Struct, frozen=True, kw_only=True):
    """Lateness per step and rank over all groups: s whole steps whose calls are all judged, r ranks.

    Attributes:
        steps: int64[s].
        lateness_ns: int64[s, r], how much later than the median of the others, as far as they computed nothing
            meanwhile; negative: earlier.
        wait_ns: int64[s, r], for the others while nothing computed, overlapping calls counted once.
        step_ns: the median time from step to step; None: fewer than two steps.
    """

    steps: NDArray[np.int64]
    lateness_ns: NDArray[np.int64]
    wait_ns: NDArray[np.int64]
    step_ns: int | None


class LateStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step in which one rank was late far beyond its usual."""

    step: int
    rank: int
    lateness_ns: int
    cause: str | None


class Stragglers(msgspec.Struct, frozen=True, kw_only=True):
    """Who keeps the others waiting.

    Attributes:
        kind: persistent, one rank in most steps; rotating, in most steps another one; periodic, every `period` steps;
            single, now and then, see `events`; none; unknown, with its reason.
        rank: the culprit; None where there are several.
        lateness_ns: median over the `times` steps of the pattern, of the rank that was last in each.
        times: steps in which the culprit was late or, where ranks take turns, one was late enough for that.
        num_late: steps in which somebody was late.
        num_steps: steps that could be judged.
        cause: of Calls.causes or a kind of EventRecord, where one covers enough of the lateness.
        events: single late steps, whatever the kind.
    """

    kind: Kind
    rank: int | None = None
    lateness_ns: int | None = None
    times: int = 0
    num_late: int = 0
    num_steps: int = 0
    period: int | None = None
    cause: str | None = None
    reason: str | None = None
    events: tuple[LateStep, ...] = ()


class CameLast(msgspec.Struct, frozen=True, kw_only=True):
    """One rank came last to `times` of its `of` common calls, whether or not that is a pattern.

    Attributes:
        waited_ns: for it, by the median of the others; without the first call, before which a profiler may have begun.
    """

    rank: int
    times: int
    of: int
    waited_ns: int


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """What to subtract from a rank's times to draw them on the first rank's axis. For drawing only.

    Attributes:
        offset_ns: unix time of this rank minus that of the first rank, at `at_ns`.
        error_ns: median absolute deviation over the calls.
        drift: offset gained per time; 0 for traces too short to tell.
        at_ns: unix time on this rank.
    """

    rank: int
    offset_ns: int
    error_ns: int
    drift: float
    at_ns: int

    def shift(self, unix_ns: int) -> int:
        """Return a time of this rank on the first rank's axis."""
        return unix_ns - self.offset_ns - round(self.drift * (unix_ns - self.at_ns))


class CrossRank(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of one job, compared.

    Attributes:
        ranks: that are here.
        missing: of the job and not here.
        came_last: who came last to most calls; None: nobody.
        clocks: of the ranks that could be put on the axis of the first one.
        notes: what was left out, one sentence each.
    """

    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    groups: tuple[CrossRankGroup, ...]
    steps: StepLateness
    verdict: Stragglers
    clocks: tuple[ClockOffset, ...]
    came_last: CameLast | None = None
    notes: tuple[str, ...] = ()
