"""What watching costs: the baseline against bare launches of the script, in which only the ends of steps are seen."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import msgspec

from dpdoctor import units
from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.summary import ModeSummary
from dpdoctor.records import Launch
from dpdoctor.spec import BASELINE

DISTURBED = "{} while one device was measured, which bare launches at other times cannot be held against"
NO_CONTROL = "the script was not also run bare"
# Above this share of a step, where the interval leaves no doubt that there is a cost, figures are not the script's.
MOST_SHARE = 0.05
# Where launches of one program are further apart than this, so may modes be that are the same.
MOST_APART = 1.08
TOO_MUCH = (
    "watching this script takes {} of each step, so that what was measured is not what the script does; "
    "if it writes files while it trains, --allow-writes watches less"
)


def bare_steps(bare: Sequence[LaunchFacts], baseline: Sequence[LaunchFacts]) -> list[Figure]:
    """Return the seconds of a steady step of each bare launch that went well.

    The steps that are left out of the baseline, because an epoch began or an evaluation ran in them, are left out by
    their numbers here, too.
    """
    edges = {step.step for launch in baseline for rank in launch.ranks for step in rank.steps if step.epoch_edge}
    good = [_without(launch, edges) for launch in bare if launch.record.status == "ok"]
    found = [stats.ratio_of_totals([window.step() for window in launch.windows()], "s") for launch in good]
    return [figure for figure in found if figure.value is not None]


def bare_step(steps: Sequence[Figure], bare: Sequence[Launch], beside: str | None) -> Figure:
    """Return the mean seconds of a step of the bare launches, with its interval between launches.

    `beside`: what else ran while the baseline was measured, so that it cannot be compared with them; None: nothing.
    """
    if beside is not None:
        return stats.unknown("s", DISTURBED.format(beside))
    reason = next((launch.record.reason for launch in bare if launch.record.reason), None)
    why_not = f"the bare launch failed: {reason}" if reason else NO_CONTROL
    return stats.mean_interval([step.value or 0.0 for step in steps], "s", scope="launches", reason=why_not)


def launch_spread(steps: Sequence[Figure]) -> float | None:
    """Return half the width of the 95 % interval in which launches lie within this run, relative to their mean.

    It holds what launches differ by beyond what their own windows do: the component of variance between groups, by its
    moments (Searle, Casella and McCulloch, Variance Components, 1992, chapter 3), 0 where it comes out below. None:
    there were too few launches or windows to tell.
    """
    if len(steps) < 2 or any(step.high is None for step in steps):
        return None
    means = [step.value or 0.0 for step in steps]
    within = [stats.half_width(step) / stats.student_t(step.n - 1) for step in steps]
    between = statistics.variance(means) - statistics.fmean(error**2 for error in within)
    return stats.student_t(len(steps) - 1) * math.sqrt(max(0.0, between)) / statistics.fmean(means)


def pace(steps: Sequence[Figure]) -> str:
    """Return that the machine did not keep its pace, where one program differs much between the bare launches."""
    seconds = [step.value or 0.0 for step in steps]
    if len(seconds) < 2 or max(seconds) <= MOST_APART * min(seconds):
        return ""
    slow, fast = units.seconds(max(seconds)), units.seconds(min(seconds))
    return (
        f"the machine did not keep its pace: a step of the bare script took {fast} in one launch of this run and "
        f"{slow} in another. Differences between modes may be its doing: repeat the run while nothing else uses it"
    )


def _without(launch: LaunchFacts, edges: set[int]) -> LaunchFacts:
    (rank,) = launch.ranks
    steps = tuple(msgspec.structs.replace(step, epoch_edge=True) if step.step in edges else step for step in rank.steps)
    return dataclasses.replace(launch, ranks=(dataclasses.replace(rank, steps=steps),))


def with_own_cost(modes: dict[str, ModeSummary], bare: Figure, spread: float | None) -> dict[str, ModeSummary]:
    """Return the modes with dpdoctor's own share of a step, and without figures that it makes untrue.

    The other modes are watched like the baseline, so that a step of theirs holds as many seconds of it.
    """
    baseline = modes.get(BASELINE)
    if baseline is None or baseline.step.value is None:
        return modes
    if bare.value is None:
        return {name: _estimated(mode, bare.reason) for name, mode in modes.items()}
    # The baseline is one launch more, which may lie as far from the others as these from each other.
    cost = stats.combination([(1.0, stats.calibrated(baseline.step, spread)), (-1.0, bare)], "s")
    shares = {name: _share(cost, mode.step) for name, mode in modes.items()}
    changed = {name: dataclasses.replace(mode, observer_overhead=shares[name]) for name, mode in modes.items()}
    if not is_too_much(shares[BASELINE]):
        return changed
    return {name: _corrected(mode, bare) if name == BASELINE else _withheld(mode) for name, mode in changed.items()}


def is_too_much(share: Figure) -> bool:
    """Return whether dpdoctor's own share of a step is such that what was measured is not what the script does."""
    return share.value is not None and share.value > MOST_SHARE and share.low is not None and share.low > 0


def _estimated(mode: ModeSummary, reason: str | None) -> ModeSummary:
    """Return a mode whose own cost is only that of the hooks; the reason says so beside the figure."""
    if mode.observer_overhead.value is None:
        return mode
    return dataclasses.replace(mode, observer_overhead=dataclasses.replace(mode.observer_overhead, reason=reason))


def _share(cost: Figure, step: Figure) -> Figure:
    if step.value is None:
        return stats.unknown("ratio", step.reason or "no step was measured")
    return dataclasses.replace(stats.scaled(cost, 1 / step.value), unit="ratio", scope="launches")


def _in_percent(share: Figure) -> str:
    if share.value is None:
        return "an unknown part"
    value = units.share(share.value)
    if share.low is None or share.high is None:
        return value
    return f"{value} ({units.share(share.low)} to {units.share(share.high)})"


def _corrected(mode: ModeSummary, bare: Figure) -> ModeSummary:
    """Return the baseline with the rate of the bare launches: they take the same steps."""
    withheld = _withheld(mode)
    samples = mode.batch.global_
    if samples is None:
        return withheld
    rate = stats.ratio(Figure(value=samples, low=samples, high=samples, unit="samples"), bare, "samples/s")
    return dataclasses.replace(withheld, throughput=dataclasses.replace(rate, scope="launches", n=bare.n))


def _withheld(mode: ModeSummary) -> ModeSummary:
    reason = TOO_MUCH.format(_in_percent(mode.observer_overhead))
    rate, ratio = stats.unknown("samples/s", reason), stats.unknown("ratio", reason)
    return dataclasses.replace(
        mode,
        throughput=rate,
        throughput_all_steps=rate,
        epoch_s=stats.unknown("s", reason),
        speedup=stats.unknown("x", reason),
        scaling_efficiency=ratio,
    )
