"""How far launches of one program lie apart in this run, and so what watching costs, by its bare launches.

In a bare launch only the ends of steps are seen; of a script that distributes itself, in windows of the same launch.
nn.DataParallel without a GPU calls the plain module, so that the mode does what the baseline did, as long as it did.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import LaunchFacts, of_one_kind, with_edges
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import ModeSummary, why_unlike_steps, with_speedup
from dpdoctor.records import Launch
from dpdoctor.spec import BASELINE

DISTURBED = "{} while one device was measured, so that bare launches at other times do not compare with it"
NO_CONTROL = "the script was not also run bare"
NO_BASELINE = "no step of one device was measured that a bare one could be held against"
NEVER_BARE = "a script that distributes itself is not also run bare, and intervals of its rates reach that"
# The ablation in whose windows nothing but the ends of steps is seen.
UNWATCHED = "unwatched"
# What it takes at least to get a page of 4 KiB from the kernel and to clear it: on a machine of 2026, 1.3 us of a step.
PAGE_FAULT_S = 0.5e-6
# Where that is this part of what launches differ by, it is named.
LEAST_OF_PAGES = 0.25
ANEW = (
    "launches of the same script differ by what malloc does with freed memory: a step of the bare script took {} in "
    "one, with {} page faults, and {} in another, with {}: memory that goes back to the system and is taken anew in "
    "every step. Modes may differ by that alone. MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432 in "
    "the environment (mallopt(3)) has it kept, or another malloc, such as jemalloc"
)
NO_STEADY_WINDOW = "no window of a bare launch has steady steps as those of the baseline"
OTHER_PROGRAM = (
    "a bare launch runs as one graph what is watched runs as Python: a compiled function that calls the model"
)
# Where all of its interval is above this share of a step, figures are not the script's.
MOST_SHARE = 0.05
# A rate that watched steps made is right to this share.
LEAST_CORRECTED = 0.01
# Where the interval reaches this share of a step, it says too little.
WIDEST = 0.2
# Where launches of one program are further apart than this, so may modes be that are the same.
MOST_APART = 1.08
TOO_MUCH = (
    "watching this script takes {} of each step, so that what was measured is not what the script does; "
    "if it writes files while it trains, --allow-writes watches less"
)
NOT_KNOWN = (
    "how much of each step watching takes is not known: launches of the script, or windows of one, lie too far apart; "
    "repeat the run while nothing else uses the machine"
)


def steps_of(launches: Sequence[LaunchFacts], baseline: Sequence[LaunchFacts]) -> list[Figure]:
    """Return the seconds of a steady step of each launch of the control that went well, as `comparable` has it."""
    return [step for _, step in comparable(launches, baseline)]


def comparable(
    launches: Sequence[LaunchFacts], baseline: Sequence[LaunchFacts]
) -> Iterator[tuple[LaunchFacts, Figure]]:
    """Yield each launch of the control that went well, with the seconds of a steady step.

    The steps that are left out of the baseline, because an epoch began or an evaluation ran in them, are left out by
    their numbers here, too; where it leaves none out, none is.
    """
    of_baseline = {step.step for launch in baseline for rank in launch.ranks for step in rank.steps if step.epoch_edge}
    are_steady = any(launch.edges_are_steady for launch in of_one_kind(baseline))
    good = [launch for launch in launches if launch.record.status == "ok"]
    marked = [_without_edges(launch) if are_steady else _with_edges(launch, of_baseline) for launch in good]
    for launch in marked:
        step = stats.ratio_of_totals([window.step() for window in launch.windows()], "s")
        # Else most of its steps have edges, and what is steady there is none of what is compared.
        if not launch.edges_are_steady and step.value is not None:
            yield launch, step


def watched_steps(modes: Mapping[str, ModeSummary]) -> list[Figure]:
    """Return the seconds of a step of the baseline's launch, and of the mode that ran the same program, if one did."""
    same = _inactive(modes)
    names = [BASELINE] if same is None or modes[same].step.value is None else [BASELINE, same]
    return [modes[name].step for name in names if name in modes]


def own_cost(watched: Sequence[Figure], bare: Sequence[Figure], unknown: str | None) -> Figure:
    """Return the seconds of a step that watching takes: the mean of watched launches less that of bare ones.

    Both kinds tell how far launches lie apart, for the interval: there is none before one kind has two launches.
    `unknown`: why it cannot be told; None: it can.
    """
    if unknown is not None:
        return stats.unknown("s", unknown)
    spread = launch_spread(watched, bare)
    cost = stats.combination(
        [
            *((1 / len(watched), stats.calibrated(step, spread)) for step in watched),
            *((-1 / len(bare), stats.calibrated(step, spread)) for step in bare),
        ],
        "s",
    )
    return cost if spread is not None else replace(cost, low=None, high=None)


def why_cost_unknown(
    bare: Sequence[Launch], steps: Sequence[Figure], beside: str | None, *, is_other_program: bool = False
) -> str | None:
    """Return why bare launches, of which these steps are known, tell nothing; None: they tell.

    `beside`: what else ran while the baseline was measured, so that it cannot be compared with them; None: nothing.
    `is_other_program`: what the baseline runs is not what they run.
    """
    if bare and beside is not None:
        return DISTURBED.format(beside)
    if steps:
        return OTHER_PROGRAM if is_other_program else None
    reason = next((launch.record.reason for launch in bare if launch.record.reason), None)
    if reason:
        return f"the bare launch failed: {reason}"
    return NO_STEADY_WINDOW if any(launch.record.status == "ok" for launch in bare) else NO_CONTROL


def launch_spread(*programs: Sequence[Figure]) -> float | None:
    """Return half the width of the 95% interval in which launches of one program lie within this run, relative.

    It holds what launches differ by beyond what their own windows do: the component of variance between groups, by its
    moments (Searle, Casella and McCulloch, Variance Components, 1992, chapter 3), 0 where it comes out below; pooled
    over several programs of which the steps of some launches are known. None: no program had two.
    """
    repeated = [[step.value or 0.0 for step in steps] for steps in programs if len(steps) > 1]
    degrees = sum(len(seconds) - 1 for seconds in repeated)
    if not degrees:
        return None
    apart = sum((second / statistics.fmean(of) - 1) ** 2 for of in repeated for second in of) / degrees
    within = statistics.fmean(_standard_error(step) ** 2 for steps in programs if len(steps) > 1 for step in steps)
    return stats.student_t(degrees) * math.sqrt(max(0.0, apart - within))


def _standard_error(step: Figure) -> float:
    """Return what a launch's own windows say of how well its step is known, relative; 0: nothing.

    The interval of a calibrated step holds what launches differ by, too, and that is what is asked for.
    """
    if not step.value or step.high is None or step.scope == "calibrated":
        return 0.0
    return stats.half_width(step) / stats.student_t(step.n - 1) / step.value


def why_apart(bare: Sequence[tuple[LaunchFacts, Figure]]) -> str:
    """Return why bare launches differ much in their steps, where they do: by the machine's pace, or by malloc."""
    found = sorted((step.value or 0.0, _page_faults(launch)) for launch, step in bare)
    if len(found) < 2 or found[-1][0] <= MOST_APART * found[0][0]:
        return ""
    (fast_s, few), (slow_s, many) = found[0], found[-1]
    fast, slow = units.seconds(fast_s), units.seconds(slow_s)
    if (many - few) * PAGE_FAULT_S > LEAST_OF_PAGES * (slow_s - fast_s):
        return ANEW.format(fast, units.whole(round(few)), slow, units.whole(round(many)))
    return (
        f"the machine did not keep its pace: a step of the bare script took {fast} in one launch and {slow} in "
        "another. Modes may differ by that alone: repeat the run while nothing else uses it"
    )


def _page_faults(launch: LaunchFacts) -> float:
    """Return how many pages a step of a launch of one rank took from the kernel; 0 where nobody looked."""
    windows = [window.ranks[0].window for window in launch.windows(with_edges=True)]
    return sum(of.page_faults or 0 for of in windows) / max(1, sum(of.num_steps for of in windows))


def _with_edges(launch: LaunchFacts, edges: set[int]) -> LaunchFacts:
    """Return a launch of one rank with these steps as edges beside its own."""
    (rank,) = launch.ranks
    return replace(launch, ranks=(with_edges(rank, edges),))


def _without_edges(launch: LaunchFacts) -> LaunchFacts:
    """Return a launch of one rank without any."""
    (rank,) = launch.ranks
    steps = tuple(replace(step, epoch_edge=False) for step in rank.steps)
    return replace(launch, ranks=(replace(rank, steps=steps),))


def with_own_cost(modes: dict[str, ModeSummary], cost: Figure, bare: Sequence[Figure]) -> dict[str, ModeSummary]:
    """Return the modes with dpdoctor's own share of a step, and with figures that it does not make untrue.

    The other modes are watched like the baseline, so that a step of theirs holds as many seconds of it. Where it is
    known to be too much, the baseline's rate is that of the `bare` launches, and others are not known. Where it may be,
    intervals hold what the script may reach alone.
    """
    baseline = modes.get(BASELINE)
    if baseline is None or baseline.step.value is None:
        return _with_estimates(modes, NO_BASELINE)
    if cost.value is None:
        return _with_estimates(modes, cost.reason)
    shares = {name: _share(cost, mode.step) for name, mode in modes.items()}
    changed = {name: replace(mode, observer_overhead=shares[name]) for name, mode in modes.items()}
    if is_too_much(shares[BASELINE]):
        alone = stats.mean_interval([step.value or 0.0 for step in bare], "s", scope="launches")
        return {
            name: _with_rate_of(_too_much(mode), alone) if name == BASELINE else _too_much(mode)
            for name, mode in changed.items()
        }
    if is_unclear(shares[BASELINE]):
        return {name: _widened(mode, shares[BASELINE]) for name, mode in changed.items()}
    return changed


def is_too_much(share: Figure) -> bool:
    """Return whether what was measured is known not to be what the script does, by dpdoctor's own share of a step."""
    return share.low is not None and share.low > MOST_SHARE


def is_unclear(share: Figure) -> bool:
    """Return whether dpdoctor's own share of a step seems to be too much, and may not be."""
    return _seems_too_much(share) and not is_too_much(share)


def is_known(share: Figure) -> bool:
    """Return whether more launches would tell nothing that matters of dpdoctor's own share, or cannot tell."""
    if share.low is None or share.high is None:
        return True
    return not is_unclear(share) and (is_too_much(share) or share.high < WIDEST)


def is_notable(share: Figure) -> bool:
    """Return whether dpdoctor's own share of a step seems to be too much, and is known to be something."""
    return _seems_too_much(share) and share.low is not None and share.low > 0


def _seems_too_much(share: Figure) -> bool:
    return share.value is not None and share.value > MOST_SHARE and share.low is not None


def has_unwatched_rate(mode: ModeSummary) -> bool:
    """Return whether the rate of a script that distributes itself is that of its unwatched steps."""
    share = mode.observer_overhead
    if mode.native is None or mode.throughput.value is None or mode.batch.global_ is None:
        return False
    if share.value is None or share.low is None or share.high is None:
        return False
    return share.low > 0 and share.value > LEAST_CORRECTED and share.high < 1


def _with_estimates(modes: Mapping[str, ModeSummary], reason: str | None) -> dict[str, ModeSummary]:
    """Return modes whose own cost no bare launch tells, for that reason."""
    found = {name: _estimated(mode, reason) for name, mode in modes.items()}
    return {name: _compared_anew(mode, found.get(BASELINE), modes[name].speedup) for name, mode in found.items()}


def _compared_anew(mode: ModeSummary, baseline: ModeSummary | None, watched: Figure) -> ModeSummary:
    """Return a mode with the speedup of its rate, where either rate is now that of unwatched steps.

    `watched`: the speedup of watched ones.
    """
    if baseline is None or watched.value is None or not (has_unwatched_rate(mode) or has_unwatched_rate(baseline)):
        return mode
    return with_speedup(mode, stats.ratio(mode.throughput, baseline.throughput, "x"))


def _estimated(mode: ModeSummary, reason: str | None) -> ModeSummary:
    """Return a mode whose own cost is only that of the hooks; the reason says so beside the figure.

    A script that distributes itself is never run bare: intervals of its rates reach what it does without the hooks, by
    windows in which they were out, if those tell it well.
    """
    share, is_native = mode.observer_overhead.value, mode.native is not None
    unwatched = mode.ablations.get(UNWATCHED)
    if unwatched is not None and _tells(unwatched.share):
        return _measured(replace(mode, observer_overhead=unwatched.share), unwatched.step)
    if share is None:
        return mode
    told = replace(mode, observer_overhead=replace(mode.observer_overhead, reason=NEVER_BARE if is_native else reason))
    return _faster_alone(told, 1 / (1 - share)) if is_native and share < 1 else told


def _tells(share: Figure) -> bool:
    """Return whether windows tell dpdoctor's own share of a step better than what one hook costs does.

    They do where it is known to be something, or well. Where unwatched steps take longer, they hold what is left out of
    others, such as an evaluation without a loader.
    """
    if share.value is None or share.low is None or share.high is None:
        return False
    return share.low > 0 or (share.high >= 0 and stats.half_width(share) <= MOST_SHARE)


def _measured(mode: ModeSummary, unwatched: Figure) -> ModeSummary:
    """Return a mode whose own cost was measured within its launch: its rate is that of the unwatched steps if that is
    something, and intervals of the others reach that; others are withheld where it is too much.
    """
    share = mode.observer_overhead
    if share.high is None or share.high >= 1:
        return _withheld(mode, NOT_KNOWN)
    told = _too_much(mode) if is_too_much(share) else _faster_alone(mode, 1 / (1 - max(0.0, share.high)))
    return _with_rate_of(told, unwatched) if has_unwatched_rate(mode) else told


def _share(cost: Figure, step: Figure) -> Figure:
    if step.value is None:
        return stats.unknown("ratio", step.reason or "no step was measured")
    return replace(stats.scaled(cost, 1 / step.value), unit="ratio", scope="launches")


def _in_percent(share: Figure) -> str:
    if share.value is None:
        return "an unknown part"
    value = units.share(share.value)
    if share.low is None or share.high is None:
        return value
    return units.within(value, units.share(share.low), units.share(share.high))


def _with_rate_of(mode: ModeSummary, alone: Figure) -> ModeSummary:
    """Return a mode with the rate of the steps that the script takes alone: they train on as many samples."""
    samples = mode.batch.global_
    if samples is None:
        return mode
    rate = stats.ratio(Figure(value=samples, low=samples, high=samples, unit="samples"), alone, "samples/s")
    return replace(mode, throughput=replace(rate, scope=alone.scope, n=alone.n))


def _widened(mode: ModeSummary, of_baseline: Figure) -> ModeSummary:
    """Return a mode whose intervals hold what the script may reach alone, where watching takes as much as it may.

    Of a step D of which watching takes c, the script's own rate is 1 / (1 - c / D) of the measured one. It takes c of
    the baseline's step S as well, so that of the speedup only (1 - c / S) / (1 - c / D) is not known. Ranks that share
    cores may need longer for the same hooks: up to the same share of each step, intervals hold that, too.
    """
    most, most_of_baseline = mode.observer_overhead.high, of_baseline.high
    if most is None or most_of_baseline is None:
        return mode
    if max(most, most_of_baseline) >= 1:
        return _withheld(mode, NOT_KNOWN)
    alone = 1 / (1 - max(0.0, most, most_of_baseline))
    against = (1 - max(0.0, most_of_baseline)) / (1 - max(0.0, most))
    return replace(
        _faster_alone(mode, alone),
        speedup=_reaching(mode.speedup, against),
        scaling_efficiency=_reaching(mode.scaling_efficiency, against),
    )


def _faster_alone(mode: ModeSummary, times: float) -> ModeSummary:
    """Return a mode whose intervals of rates reach what a script does that is so many times as fast alone."""
    return replace(
        mode,
        throughput=_reaching(mode.throughput, times),
        throughput_all_steps=_reaching(mode.throughput_all_steps, times),
        epoch_s=_reaching(mode.epoch_s, 1 / times),
    )


def _reaching(figure: Figure, factor: float) -> Figure:
    """Return a figure that may be so many times what was measured, or anything between."""
    if figure.low is None or figure.high is None:
        return figure
    return replace(figure, low=figure.low * min(1.0, factor), high=figure.high * max(1.0, factor))


def _too_much(mode: ModeSummary) -> ModeSummary:
    return _withheld(mode, TOO_MUCH.format(_in_percent(mode.observer_overhead)))


def _withheld(mode: ModeSummary, reason: str) -> ModeSummary:
    """Return a mode without rates; one that was unknown before stays so for its own reason, which lasts."""
    return replace(
        mode,
        throughput=_unless_unknown(mode.throughput, reason),
        throughput_all_steps=_unless_unknown(mode.throughput_all_steps, reason),
        epoch_s=_unless_unknown(mode.epoch_s, reason),
        speedup=_unless_unknown(mode.speedup, reason),
        scaling_efficiency=_unless_unknown(mode.scaling_efficiency, reason),
    )


def _unless_unknown(figure: Figure, reason: str) -> Figure:
    return figure if figure.value is None else stats.unknown(figure.unit, reason)


# A smaller difference is not worth a word.
NOTABLE_SPREAD = 0.02


def same_program_spread(modes: Mapping[str, ModeSummary]) -> float:
    """Return by how much these launches differ beyond what their windows do, relative; 0: not at all, or unknown."""
    same = _inactive(modes)
    if same is None:
        return 0.0
    ratio = stats.ratio(modes[same].throughput, modes[BASELINE].throughput, "ratio")
    if ratio.value is None or ratio.high is None:
        return 0.0
    return math.sqrt(max(0.0, (ratio.value - 1) ** 2 - stats.half_width(ratio) ** 2))


def with_launch_spread(modes: Mapping[str, ModeSummary]) -> dict[str, ModeSummary]:
    """Return the modes with rates whose intervals hold what launches of one program differ by in this run.

    Shares of a step are of one launch, and stay as they are.
    """
    apart = same_program_spread(modes)
    if not apart:
        return dict(modes)
    return {
        name: replace(
            mode,
            throughput=_wider(mode.throughput, apart),
            throughput_all_steps=_wider(mode.throughput_all_steps, apart),
            epoch_s=_wider(mode.epoch_s, apart),
        )
        for name, mode in modes.items()
    }


def same_program_words(modes: Mapping[str, ModeSummary]) -> str:
    """Return what the two launches tell of this run; empty: nothing that is worth a word."""
    same, apart = _inactive(modes), same_program_spread(modes)
    if same is None or apart < NOTABLE_SPREAD:
        return ""
    hold = "intervals of rates and speedups hold that, and " if modes[BASELINE].throughput.scope == "run" else ""
    return (
        f"{BASELINE} and {same} ran the same program and differ by {units.share(apart)} more than their windows do: "
        f"{hold}smaller differences between modes are no differences"
    )


def _wider(figure: Figure, apart: float) -> Figure:
    """Return a figure whose interval is wider, and says no more than before: two launches are no calibration."""
    return replace(stats.calibrated(figure, apart), scope=figure.scope)


def _inactive(modes: Mapping[str, ModeSummary]) -> str | None:
    if BASELINE not in modes or modes[BASELINE].status != "ok":
        return None
    found = ((name, mode) for name, mode in modes.items() if mode.status == "inactive")
    return next((name for name, mode in found if why_unlike_steps(mode, modes[BASELINE]) is None), None)
