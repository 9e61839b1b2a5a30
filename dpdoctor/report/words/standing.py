"""Which modes may be shown, and which of them lead."""

from __future__ import annotations

from collections.abc import Collection

from dpdoctor.analysis import BASELINE, Figure, ModeSummary, RunSummary
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.summary import why_unlike_steps, why_withheld

__all__ = [
    "ended_badly",
    "focus",
    "has_failed_later",
    "is_baseline",
    "is_measurably_faster",
    "leaders",
    "quotient",
    "shown_modes",
    "why_withheld",
    "withheld_briefly",
    "without_throughput",
]


def is_baseline(name: str) -> bool:
    """Return whether the other modes are compared with this one."""
    return name == BASELINE


def withheld_briefly(mode: ModeSummary) -> str | None:
    """Return that a mode's figures are withheld, for sections below the one that says why; None when they are not."""
    if why_withheld(mode) is None:
        return None
    return f"the mode {'was skipped' if mode.status == 'skipped' else 'failed'}; the reason stands at the top"


def shown_modes(summary: RunSummary) -> dict[str, ModeSummary]:
    """Return the modes whose figures may be shown, in the order of the run."""
    return {name: mode for name, mode in summary.modes.items() if why_withheld(mode) is None}


def without_throughput(summary: RunSummary) -> dict[str, str]:
    """Return why the throughput of each mode is unknown whose other figures may be shown."""
    return {
        name: mode.throughput.reason or "no reason was recorded"
        for name, mode in shown_modes(summary).items()
        if mode.throughput.value is None and mode.status == "ok"
    }


def leaders(summary: RunSummary) -> dict[str, ModeSummary]:
    """Return the modes that the headline is about: the parallel ones than which no other is measurably faster.

    Without a parallel mode it is the baseline; without any figure none. Several leaders are measurably different from
    the rest but not from each other.
    """
    measured = {
        name: mode
        for name, mode in shown_modes(summary).items()
        if mode.throughput.value is not None and mode.status == "ok"
    }
    rivals = {name: mode for name, mode in measured.items() if not is_baseline(name)} or measured
    return {
        name: mode
        for name, mode in rivals.items()
        if not any(is_measurably_faster(other, mode) for other in rivals.values())
    }


def is_measurably_faster(mode: ModeSummary, other: ModeSummary) -> bool:
    """Return whether the measurement supports that one mode is faster: the interval of their ratio lies above 1.

    The interval is that of `stats.ratio` at 95%. Where there is none no difference is supported.
    """
    low = quotient(mode, other).low
    return low is not None and low > 1


def quotient(mode: ModeSummary, other: ModeSummary) -> Figure:
    """Return one mode's throughput over another's; unknown where their steady steps are not of one kind."""
    reason = why_unlike_steps(mode, other)
    return stats.ratio(mode.throughput, other.throughput, "x") if reason is None else stats.unknown("x", reason)


def has_failed_later(mode: ModeSummary) -> bool:
    """Return whether a mode was measured well, and its job went on and failed; the reason says how."""
    return mode.status == "ok" and mode.reason is not None


def focus(summary: RunSummary) -> str | None:
    """Return the leader with the highest throughput; None when nothing was measured."""
    leading = leaders(summary)
    return max(leading, key=lambda name: leading[name].throughput.value or 0.0, default=None)


def ended_badly(summary: RunSummary, *, but: Collection[str]) -> list[list[str]]:
    """Return the modes that did not end well, `but` for those of some statuses; what failed alike is told of once."""
    alike: dict[tuple[str, str | None, tuple[str, ...]], list[str]] = {}
    for name, mode in summary.modes.items():
        why = why_withheld(mode)
        if why is not None or (mode.status != "ok" and mode.status not in but) or has_failed_later(mode):
            # Each of those that have figures is told with its own.
            alike.setdefault((mode.status, why or name, mode.stderr_tail), []).append(name)
    return list(alike.values())
