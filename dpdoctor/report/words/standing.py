"""How a mode stands: whether its figures may be shown, whether it leads, and what it is to one device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dpdoctor import units
from dpdoctor.analysis import BASELINE, Figure, ModeSummary, RunSummary
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.summary import why_unlike_steps, why_withheld
from dpdoctor.report.text import as_one, but_for_times, listed_figures, with_interval

# A gain below this is not worth a word.
NOTABLE_GAIN = 0.05
TONES = {"faster": "good", "slower": "bad", "alike": "warn", "unclear": "plain", "unknown": "plain"}


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
        if not any(_is_measurably_faster(other, mode) for other in rivals.values())
    }


def _is_measurably_faster(mode: ModeSummary, other: ModeSummary) -> bool:
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


def ended_badly(summary: RunSummary, *, but: Collection[str]) -> list[dict[str, ModeSummary]]:
    """Return the modes that did not end well, `but` for those of some statuses; what failed alike is told of once."""
    alike: dict[tuple[str, str, tuple[str, ...]], dict[str, ModeSummary]] = {}
    for name, mode in summary.modes.items():
        why = why_withheld(mode)
        if why is not None or (mode.status != "ok" and mode.status not in but) or has_failed_later(mode):
            # Each of those that have figures is told with its own.
            told = name if why is None else but_for_times(why)
            alike.setdefault((mode.status, told, mode.stderr_tail), {})[name] = mode
    return list(alike.values())


def why_badly(alike: Mapping[str, ModeSummary]) -> str | None:
    """Return why modes have no figures that failed alike; None: the one that they are has."""
    reasons = [reason for reason in map(why_withheld, alike.values()) if reason is not None]
    return as_one(reasons) if reasons else None


def ranks(mode: ModeSummary) -> str:
    """Return a mode's ranks or, where replicas were placed by hand, where they lie."""
    return mode.placement or units.count(mode.world_size, "rank")


def devices(mode: ModeSummary) -> str:
    """Return what a mode runs on: its ranks or, where one process drives all of them, its devices."""
    by_rank = mode.placement or mode.world_size > 1
    return ranks(mode) if by_rank else units.count(mode.num_devices, "device")


def against_one(speedup: Figure) -> str:
    """Return how a mode stands to one device: faster, slower or alike; unclear without an interval; else unknown."""
    if speedup.value is None:
        return "unknown"
    if speedup.low is None or speedup.high is None:
        return "unclear"
    if speedup.high < 1:
        return "slower"
    return "faster" if speedup.low > 1 else "alike"


def linear(mode: ModeSummary) -> Figure | None:
    """Return the mode's share of linear scaling; None for one device, where the word says nothing."""
    return mode.scaling_efficiency if mode.num_devices > 1 else None


def of_linear(modes: Sequence[ModeSummary]) -> str:
    """Return the modes' shares of linear scaling in brackets; empty where one has none."""
    shares = [share for mode in modes if (share := linear(mode)) is not None and share.value is not None]
    return f" ({listed_figures(shares)} of linear)" if len(shares) == len(modes) else ""


def loader_control(mode: ModeSummary) -> str | None:
    """Return in a clause what one device would give with as many loader processes as all ranks of the mode have.

    None where that is unknown or next to nothing: then the mode's gain is its own.
    """
    fall = mode.waterfall
    if fall is None or not fall.ideal.value:
        return None
    factor = _sped_up(fall.ideal.value, fall.terms["loader_processes"])
    if factor is None or factor.value is None or factor.value - 1 < NOTABLE_GAIN:
        return None
    return f"one device with as many loader processes would give {with_interval(factor)}, simulated"


def _sped_up(step: float, change: Figure) -> Figure | None:
    """Return how many times as fast steps are that take `change` more than `step`; None where that is unknown."""
    value, low, high = (
        None if end is None or step + end <= 0 else step / (step + end)
        for end in (change.value, change.high, change.low)
    )
    return None if value is None else Figure(value=value, low=low, high=high, unit="x")


def rests_on(figure: Figure) -> str:
    """Return what an interval of a speedup is taken over."""
    if figure.scope == "launches":
        return f"over {units.count(figure.n, 'launch')}."
    if figure.scope == "calibrated":
        return "between launches, by how far those of this script differ here."
    return "over the windows of one launch each. Another launch may differ by more."


def scaling_words(mode: ModeSummary) -> str:
    """Return which kind of scaling the speedup shows."""
    if mode.native is not None and mode.batch.rule == "own":
        return "How much of a batch a rank takes is the script's own affair."
    if mode.batch.rule == "global":
        return "Strong scaling: the devices share the script's batch."
    if mode.conversion is not None and mode.conversion.same_samples:
        return "Each device trains on the same batches: a step trains on no more samples than on one device."
    if mode.native is not None:
        return "Weak scaling: a rank takes as many samples as one alone does, so a step trains on more samples."
    return "Weak scaling: each device takes the script's whole batch, so a step trains on more samples."
