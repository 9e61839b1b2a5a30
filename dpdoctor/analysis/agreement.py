"""Do the trace and the experiment say the same? Where they do not, a report shows both instead of choosing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpdoctor.analysis import stats
from dpdoctor.analysis.analyse import shown_launch
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.summary import Analysis, ModeSummary
from dpdoctor.analysis.trace_budget import exposed_share
from dpdoctor.analysis.windows import measured
from dpdoctor.records import Launch

# Two measurements of one share of a step agree within this much of the step, or within two standard errors.
TOLERANCE = 0.05
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One share of a step, as seen while it was there and as gained when it was taken away.

    Attributes:
        what: that takes the share, in words.
        arm: the one that removes it.
        seen: share of a step in the trace or on the host's clock.
        gained: share of a step that the arm gains.
        agrees: whether they differ by at most `allowed`; None: that cannot be told, `reason` says why.
        allowed: max(TOLERANCE, STANDARD_ERRORS of the difference); ratio.
    """

    what: str
    arm: str
    seen: Figure
    gained: Figure
    agrees: bool | None
    allowed: float
    reason: str = ""


def agreements(analysis: Analysis, name: str) -> tuple[Agreement, ...]:
    """Return the comparisons of a mode for which both sides were measured, or one is there without the other."""
    launches = analysis.run.modes[name]
    return tuple(_compared(analysis.summary.modes[name], shown_launch(launches))) if launches else ()


def allowed(a: Figure, b: Figure) -> float:
    """Return by how much two measurements of one share of a step may differ; ratio."""
    return max(TOLERANCE, STANDARD_ERRORS * math.hypot(stats.standard_error(a), stats.standard_error(b)))


def _compared(mode: ModeSummary, launch: Launch) -> Iterator[Agreement]:
    if "no_comm" in mode.arms:
        seen = exposed_share([rank.digest for rank in launch.ranks if rank.digest])
        yield _agreement("exposed communication, in the trace", "no_comm", seen, mode)
    if "cached_batches" in mode.arms:
        yield _agreement("waiting for data, on the host's clock", "cached_batches", _waited_share(launch), mode)


def _waited_share(launch: Launch) -> Figure:
    """Return the share of the ranks' steady time in full windows that waits for data."""
    windows = measured(launch)
    parts = [(window.phase("data_wait")[0], sum(rank.steady_s for rank in window.ranks)) for window in windows]
    return stats.ratio_of_totals(parts, "ratio")


def _agreement(what: str, arm: str, seen: Figure, mode: ModeSummary) -> Agreement:
    gained = mode.arms[arm].share
    limit, reason, agrees = allowed(seen, gained), seen.reason or gained.reason or "", None
    if seen.value is not None and gained.value is not None:
        agrees = abs(seen.value - gained.value) <= limit
        if not agrees and gained.low is None:
            agrees, reason = None, "one round gives no interval: they differ by more than chance is known to explain"
    return Agreement(what=what, arm=arm, seen=seen, gained=gained, agrees=agrees, allowed=limit, reason=reason)
