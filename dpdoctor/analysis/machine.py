"""The machine while a launch was measured: who took its cores, how fast those computed, and what held it down.

How fast a core computes is told by a fixed piece of arithmetic at every window's end.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from dpdoctor import units
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import MEASURE, NS, LaunchFacts, Window
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import NOT_TRIED
from dpdoctor.analysis.weighing import COVERAGE, SMALL, above_zero
from dpdoctor.records import Launch, Sample
from dpdoctor.spec import BASELINE, BESIDE

# Share of the cores that other processes may use while something is measured, ...
OTHERS = 0.1
# ... the share in use, by whomever, below which they take nothing from anybody that may use the other cores, ...
ALL = 0.9
# ... and the share of its time that a rank waits for a core from which it may not, as one that is pinned to a core.
WAITING = 0.2
# The host and the ranks are sampled in rounds, more than a second apart; their readings may come in any order.
HALF_ROUND_NS = 500_000_000
# A reading is of about the second before it.
PERIOD_NS = 1_100_000_000
OTHERS_USED = "other processes used"


def taken_words(launches: Mapping[str, LaunchFacts], cores: int) -> str:
    """Return in which modes others took cores that were missed; empty: in none that is known."""
    taken = {name: found for name, launch in launches.items() if (found := taken_by_others(launch, cores)) is not None}
    if not taken:
        return ""
    of = "" if BASELINE in taken else f" of {', '.join(taken)}"
    each = ", ".join(f"{units.digits(number, 2)} ({name})" for name, number in taken.items())
    return (
        f"of {units.count(cores, 'core')} other processes used {each}, which the ranks missed: no speedup{of} is "
        "given. Repeat the run while nothing else uses the machine"
    )


def while_measured(launch: LaunchFacts | None, cores: int) -> str | None:
    """Return that others took cores while a launch was measured; None: none that were missed, or unknown."""
    taken = taken_by_others(launch, cores) if launch is not None else None
    return None if taken is None else f"{OTHERS_USED} {_of_cores(taken, cores)}"


def taken_by_others(launch: LaunchFacts, cores: int) -> float | None:
    """Return how many of the cores other processes used while a launch was measured and its ranks missed them.

    None where that is too little to matter, where cores were left that a rank could take, and where it cannot be told:
    the host's load is that of all its CPUs, which says nothing of `cores` where those are fewer, and what loader
    processes used that came and went between two readings is in it and in no reading of the launch.
    """
    used = _used(launch, cores)
    if used is None:
        return None
    in_use = used.others + used.ranks + used.workers
    return used.others if in_use > ALL * cores or _is_waited_for(launch, used) else None


def taken_from_a_worker(launch: LaunchFacts, cores: int) -> str | None:
    """Return that others took cores that a loader process beside the ranks would have had; None: none, or unknown."""
    used = _used(launch, cores)
    if used is None:
        return None
    left = cores - used.ranks - used.workers
    would_have_it = left > OTHERS * cores and left - used.others < min(left, 1.0)
    return f"{OTHERS_USED} {_of_cores(used.others, cores)}" if would_have_it else None


def _of_cores(number: float, cores: int) -> str:
    return f"{units.digits(number, 2)} of {units.count(cores, 'core')}"


class _Used(NamedTuple):
    """How many cores ranks, their loader processes and other processes used, the mean while a launch was measured."""

    ranks: float
    workers: float
    others: float


def _used(launch: LaunchFacts, cores: int) -> _Used | None:
    """Return it; None where others used too little to matter, or it cannot be told."""
    rounds = _rounds_while_measured(launch)
    if len({found.num_workers for found in rounds}) > 1:
        return None
    known = [found for found in rounds if found.host.values.get("num_cpus") == cores and found.own]
    if not known:
        return None
    own, workers = fmean(found.own for found in known), fmean(found.workers for found in known)
    in_use = fmean(found.host.values["cpu_ratio"] * cores for found in known)
    others = in_use - own
    return _Used(own - workers, workers, others) if others > OTHERS * cores else None


def _is_waited_for(launch: LaunchFacts, used: _Used) -> bool:
    """Return whether ranks waited for cores that others took.

    Others took as much, and neither loader processes of the ranks nor further threads of theirs did.
    """
    of_all = waiting_for_cores(launch)
    waits = [of_all[place] for place in _sampled(launch)] if of_all else []
    other_threads = used.ranks - sum(1 - share for share in waits)
    is_long = max(waits, default=0.0) >= WAITING
    are_others = used.others > used.workers and other_threads < (1 - COVERAGE) * sum(waits)
    return is_long and are_others and used.others >= COVERAGE * sum(waits)


def waiting_for_cores(launch: LaunchFacts) -> list[float]:
    """Return the share of its measured time in which each rank's training thread waited for a core; empty: unknown."""
    windows = launch.windows()
    of_ranks = [[window.ranks[place].window for window in windows] for place in range(len(launch.ranks))]
    if not windows or any(found.queued_ns is None for ranks in of_ranks for found in ranks):
        return []
    return [
        sum(found.queued_ns or 0 for found in ranks) / sum(found.end_ns - found.begin_ns for found in ranks)
        for ranks in of_ranks
    ]


class _Round(NamedTuple):
    """What was read at once: the host, cores that ranks with their loader processes used (0 where not each was
    read), what of that these, and how many they were.
    """

    host: Sample
    own: float
    workers: float
    num_workers: float


def _rounds_while_measured(launch: LaunchFacts) -> list[_Round]:
    """Return the readings, but for those of a second in which an ablation had a loader process of its own."""
    beside = _sampled(launch)
    windows = [window.ranks[place].window for window in launch.windows() for place in beside]
    begin, end = min((w.begin_ns for w in windows), default=0), max((w.end_ns for w in windows), default=0)
    tried = [
        (before.end_ns, window.end_ns + PERIOD_NS)
        for place in beside
        for before, window in itertools.pairwise(launch.ranks[place].windows)
        if window.ablation == BESIDE
    ]
    of_ranks = sorted((s for s in launch.samples if s.source.startswith("rank")), key=lambda sample: sample.at_ns)
    sources = {sample.source for sample in of_ranks if not sample.source.endswith(".workers")}
    times = [sample.at_ns for sample in of_ranks]
    return [
        _round(
            host,
            of_ranks[bisect_left(times, host.at_ns - HALF_ROUND_NS) : bisect_left(times, host.at_ns + HALF_ROUND_NS)],
            sources,
        )
        for host in launch.samples
        if host.source == "host"
        and begin <= host.at_ns <= end
        and not any(since <= host.at_ns <= until for since, until in tried)
    ]


def _sampled(launch: Launch) -> list[int]:
    """Return the places of the ranks on the first host, which is the one that is sampled: each has its own clock."""
    hosts = [rank.record.host if rank.record else None for rank in launch.ranks]
    first = next((host for host in hosts if host is not None), None)
    return [place for place, host in enumerate(hosts) if host in {first, None}]


def _round(host: Sample, of_ranks: Sequence[Sample], sources: set[str]) -> _Round:
    workers = [sample for sample in of_ranks if sample.source.endswith(".workers")]
    told = {sample.source for sample in of_ranks if "cpu_cores" in sample.values}
    return _Round(
        host=host,
        own=sum(sample.values.get("cpu_cores", 0.0) for sample in of_ranks) if sources <= told else 0.0,
        workers=sum(sample.values.get("cpu_cores", 0.0) for sample in workers),
        num_workers=sum(sample.values["num_processes"] for sample in workers),
    )


# Bits of NVML's clocks event reasons that say something is wrong, as nvml.h names them. The power cap (0x4) is usual
# under load, and idle (0x1) or clocks set by the user (0x2) are no fault.
FAULTS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
REASONS, CLOCK = "throttle_reasons", "sm_clock_mhz"
# Share of a quota's periods from which the alert CPUThrottlingHigh of kubernetes-mixin fires.
QUOTA_USED_UP = 0.25


class Throttled(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that was throttled most while a launch was measured.

    Attributes:
        source: its name, as samples have it.
        share: of its readings, in which a reason of FAULTS was named.
        num_readings: that the share is of.
        reasons: those that were named.
        cost: share of the time that lower clocks take at most, as if all of a step went with the SM clock.
        clock_mhz: its median SM clock meanwhile; None: unknown.
    """

    source: str
    share: float
    num_readings: int
    reasons: tuple[str, ...]
    cost: Figure
    clock_mhz: float | None

    @property
    def costs(self) -> bool:
        """Whether it may cost something: throttled it was, only what that costs may be nothing."""
        return self.cost.low is None or above_zero(self.cost)

    @property
    def words(self) -> str:
        """How much of the time, and at most how much of a step."""
        said = f"{self.source} is throttled in {units.share(self.share)} of the time"
        if self.cost.value is None or not self.costs:
            return said
        return f"{said}: up to {units.share(self.cost.value)} of each step"


def throttled(launch: Launch) -> Throttled | str | None:
    """Return the GPU that was throttled most; None: none that is worth a word; str: why the driver does not tell."""
    samples = gpu_samples(launch)
    known = {source: [s for s in found if REASONS in s.values] for source, found in samples.items()}
    if not any(known.values()):
        return _why_untold(samples.values()) if samples else None
    source = max(known, key=lambda name: _throttled_share(known[name]))
    share = _throttled_share(known[source])
    cost = _clock_cost(known[source], [sample for found in known.values() for sample in found])
    if share < SMALL or (cost.value is not None and cost.value < SMALL):
        return None
    held = [clock for s in known[source] if (clock := s.values.get(CLOCK)) and _is_throttled(s)]
    return Throttled(
        source=source,
        share=share,
        num_readings=len(known[source]),
        reasons=_reasons_named(known[source]),
        cost=cost,
        clock_mhz=median(held) if held else None,
    )


def throttled_periods(launches: Iterable[Launch]) -> Figure:
    """Return the share of the quota's periods in which it was used up, from each launch's first sample to its last."""
    parts = []
    for launch in launches:
        seen = [
            (s.values["num_throttled"], s.values["num_quota_periods"]) for s in launch.samples if _counts_periods(s)
        ]
        if seen and seen[-1][1] > seen[0][1]:
            parts.append((seen[-1][0] - seen[0][0], seen[-1][1] - seen[0][1]))
    return stats.ratio_of_totals(parts, "ratio", reason="this machine does not tell of a CPU quota")


def _counts_periods(sample: Sample) -> bool:
    return {"num_throttled", "num_quota_periods"} <= sample.values.keys()


def _why_untold(samples: Iterable[Sequence[Sample]]) -> str:
    why = next((s.unknown[REASONS] for found in samples for s in found if REASONS in s.unknown), "")
    return f"the driver does not tell why clocks are lowered: {why}".removesuffix(": ")


def gpu_samples(launch: Launch) -> dict[str, list[Sample]]:
    """Return the readings of each GPU that a rank used, by its name in samples, while something was measured."""
    windows = [w for place in _sampled(launch) for w in launch.ranks[place].windows if w.kind == MEASURE]
    begin, end = min((w.begin_ns for w in windows), default=0), max((w.end_ns for w in windows), default=0)
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    unused = _unused_gpus(launch)
    for sample in launch.samples:
        if sample.source.startswith("gpu") and sample.source not in unused and begin <= sample.at_ns <= end:
            found[sample.source].append(sample)
    return dict(found)


def _unused_gpus(launch: Launch) -> set[str]:
    """Return the GPUs on which no rank held anything, as samples name them: other jobs' that somebody else's ranks see.

    Empty where no rank tells what it held.
    """
    seen = [(number, gpu) for rank in launch.ranks if rank.record for number, gpu in rank.record.gpus.items()]
    used = {gpu.uuid for _, gpu in seen if gpu.peak_memory_bytes}
    # Samples that do not tell which GPU theirs is have the rank's number for it, which several may have.
    told = {(sample.source, sample.uuid) for sample in launch.samples if sample.uuid}
    named = told or {(f"gpu{number}", gpu.uuid) for number, gpu in seen}
    return {name for name, _ in named} - {name for name, uuid in named if uuid in used} if used else set()


def _is_throttled(sample: Sample) -> bool:
    return bool(int(sample.values[REASONS]) & sum(FAULTS))


def _throttled_share(samples: list[Sample]) -> float:
    return sum(map(_is_throttled, samples)) / len(samples) if samples else 0.0


def _reasons_named(samples: list[Sample]) -> tuple[str, ...]:
    seen = [int(sample.values[REASONS]) for sample in samples]
    return tuple(name for bit, name in FAULTS.items() if any(bits & bit for bits in seen))


def _clock_cost(samples: list[Sample], of_all: list[Sample]) -> Figure:
    """Return the share of the time that lower clocks take at most: as if all of a step went with the SM clock."""
    # A reading of 0 is no clock of a GPU that runs.
    free = [clock for s in of_all if (clock := s.values.get(CLOCK)) and not _is_throttled(s)]
    held = [clock for s in samples if (clock := s.values.get(CLOCK)) and _is_throttled(s)]
    if not free or not held:
        return stats.unknown("ratio", "no GPU of this run ran at its full clock while it was measured")
    slower = max(0.0, 1 - median(held) / median(free))
    return stats.mean_interval([slower * _is_throttled(sample) for sample in samples], "ratio")


# Share of the machine's cores that are in use, by whomever, from which none is counted as idle.
BUSY = 0.9
# Processes that a rank started and that compute at least this much of what it does itself take its core from it.
OWN_LOAD = 0.5


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """Of one host, all its ranks together.

    Attributes:
        cores: that may be used.
        ranks: that share them.
        threads: that torch computes with, of all ranks.
        workers: loader processes of all ranks.
        ranks_busy, workers_busy: cores that the ranks' own processes, and their loader processes, kept busy in measured
            windows; None: not measured.
        switches: times per second that a thread of a rank had to leave a core to another, all ranks; None: not counted.
    """

    cores: int
    ranks: int
    threads: int
    workers: int
    ranks_busy: float | None
    workers_busy: float | None
    switches: float | None


def cores(launch: Launch, num_cores: int) -> Cores | None:
    """Return what is known of the first host, which has `num_cores`; None: no rank left a record."""
    records = [rank.record for rank in launch.ranks if rank.record]
    if not records:
        return None
    local = [record for record in records if record.host == records[0].host]
    used = [record.cpu for record in local if record.cpu and record.cpu.wall_s > 0]
    whole = len(used) == len(local)
    switches = [use.involuntary_switches / use.wall_s for use in used if use.involuntary_switches is not None]
    return Cores(
        cores=num_cores,
        ranks=len(local),
        threads=sum(record.conversion.num_threads for record in local),
        workers=sum(max((ld.num_workers for ld in record.conversion.loaders), default=0) for record in local),
        ranks_busy=sum(use.cpu_s / use.wall_s for use in used) if whole else None,
        workers_busy=sum(use.workers_cpu_s / use.wall_s for use in used) if whole else None,
        switches=sum(switches) if len(switches) == len(local) else None,
    )


def is_busy(launch: Launch) -> bool:
    """Return whether the whole machine had no idle core while the mode ran, whoever used them."""
    seen = [s.values["cpu_ratio"] for s in launch.samples if s.source == "host" and "cpu_ratio" in s.values]
    return bool(seen) and fmean(seen) >= BUSY


def starts_more_than_others(launch: Launch, rank: int) -> bool:
    """Return whether processes that this rank started keep its core busy, and those of the others do not as much."""
    used = {found.index: found.record.cpu for found in launch.ranks if found.record}
    busy = {index: cpu.workers_cpu_s / cpu.wall_s for index, cpu in used.items() if cpu and cpu.wall_s > 0}
    own = used.get(rank)
    if own is None or rank not in busy or len(busy) < 2:
        return False
    beyond = busy.pop(rank) - median(busy.values())
    return beyond > OWN_LOAD * own.cpu_s / own.wall_s


# Of one core, at other times or beside other ranks: less than this between two means is not worth a word.
NOTABLE_PACE = 1.08


def core_benchmark(launches: Sequence[Sequence[Window]]) -> Figure:
    """Return the seconds that the arithmetic took a core, the mean of all ranks, given the windows of each launch."""
    found = [pace for windows in launches for pace in _told_by_all(windows)]
    return _mean_pace(found) if found else NOT_TRIED


def core_pace_words(launches: Mapping[str, LaunchFacts]) -> str:
    """Return in which modes the cores were slower or faster than in the baseline, or changed meanwhile; empty: none."""
    windows = {name: _told_by_all(launch.windows()) for name, launch in launches.items()}
    return "; ".join((*_pace_against_baseline(windows), *_pace_changes(windows)))


def slower_cores(window: Window) -> list[float] | None:
    """Return by what factor each rank's core computes slower than the other ranks' do; None: not told by all of two."""
    paces = _paces(window)
    if len(paces) < max(2, len(window.ranks)):
        return None
    whole = sum(paces)
    return [pace * (len(paces) - 1) / (whole - pace) for pace in paces]


def _paces(window: Window) -> list[int]:
    return [found for rank in window.ranks if (found := rank.window.core_benchmark_ns)]


def _told_by_all(windows: Sequence[Window]) -> list[float]:
    """Return the mean of all ranks in each window, where each of them told."""
    return [fmean(paces) for window in windows if len(paces := _paces(window)) == len(window.ranks)]


def _mean_pace(paces: Sequence[float]) -> Figure:
    return stats.mean_interval([pace * NS for pace in paces], "s")


def _pace_against_baseline(windows: Mapping[str, Sequence[float]]) -> Iterator[str]:
    baseline = _mean_pace(windows.get(BASELINE, ()))
    found = {name: stats.ratio(_mean_pace(paces), baseline, "x") for name, paces in windows.items() if name != BASELINE}
    behind = {name: figure.value for name, figure in found.items() if figure.value and (figure.low or 0) > NOTABLE_PACE}
    if behind:
        yield (
            f"a core took longer for the same arithmetic than under {BASELINE}, {_words(behind)}: cores that share "
            "hardware threads or power slow each other, and that much of a linear speedup is not to be had"
        )
    ahead = {
        name: 1 / figure.value
        for name, figure in found.items()
        if figure.value and figure.high is not None and figure.high < 1 / NOTABLE_PACE
    }
    if ahead:
        yield (
            f"a core was faster at the same arithmetic than under {BASELINE}, {_words(ahead)}: these speedups are too "
            "large. Repeat the run while nothing else uses the machine"
        )


def _words(factors: Mapping[str, float]) -> str:
    return ", ".join(f"{units.times(factor)} ({name})" for name, factor in factors.items())


def _pace_changes(windows: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield in which modes the cores were much slower in one half of the windows than in the other."""
    for name, paces in windows.items():
        middle = len(paces) // 2
        ratio = stats.ratio(_mean_pace(paces[middle:]), _mean_pace(paces[:middle]), "x")
        if ratio.value and ratio.low and ratio.high and (ratio.low > NOTABLE_PACE or ratio.high < 1 / NOTABLE_PACE):
            slower = max(ratio.value, 1 / ratio.value)
            yield (
                f"the same arithmetic took a core {units.times(slower)} as long in one half of the windows of {name} "
                "as in the other: the machine did not keep its pace"
            )
