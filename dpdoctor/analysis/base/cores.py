"""What the ranks of a mode and their loader processes take of the machine's cores, and how fast those computed.

The latter by a fixed piece of arithmetic at every window's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

import msgspec

from dpdoctor import units
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.figure import Figure
from dpdoctor.analysis.base.launch_facts import LaunchFacts
from dpdoctor.analysis.base.windows import NS, Window
from dpdoctor.records import Launch
from dpdoctor.spec import BASELINE

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
NOTABLE = 1.08
NOT_TRIED = Figure(value=None, unit="s", reason="how fast the cores compute was not tried")


def core_benchmark(launches: Sequence[Sequence[Window]]) -> Figure:
    """Return the seconds that the arithmetic took a core, the mean of all ranks, given the windows of each launch."""
    found = [pace for windows in launches for pace in _told(windows)]
    return _mean(found) if found else NOT_TRIED


def words(launches: Mapping[str, LaunchFacts]) -> str:
    """Return in which modes the cores were slower or faster than in the baseline, or changed meanwhile; empty: none."""
    windows = {name: _told(launch.windows()) for name, launch in launches.items()}
    return "; ".join((*_against_baseline(windows), *_changed(windows)))


def slower(window: Window) -> list[float] | None:
    """Return by what factor each rank's core computes slower than the other ranks' do; None: not told by all of two."""
    paces = _paces(window)
    if len(paces) < max(2, len(window.ranks)):
        return None
    whole = sum(paces)
    return [pace * (len(paces) - 1) / (whole - pace) for pace in paces]


def _paces(window: Window) -> list[int]:
    return [found for rank in window.ranks if (found := rank.window.core_benchmark_ns)]


def _told(windows: Sequence[Window]) -> list[float]:
    """Return the mean of all ranks in each window, where each of them told."""
    return [fmean(paces) for window in windows if len(paces := _paces(window)) == len(window.ranks)]


def _mean(paces: Sequence[float]) -> Figure:
    return stats.mean_interval([pace * NS for pace in paces], "s")


def _against_baseline(windows: Mapping[str, Sequence[float]]) -> Iterator[str]:
    baseline = _mean(windows.get(BASELINE, ()))
    found = {name: stats.ratio(_mean(paces), baseline, "x") for name, paces in windows.items() if name != BASELINE}
    behind = {name: figure.value for name, figure in found.items() if figure.value and (figure.low or 0) > NOTABLE}
    if behind:
        yield (
            f"a core took longer for the same arithmetic than under {BASELINE}, {_times(behind)}: cores that share "
            "hardware threads or power slow each other, and that much of a linear speedup is not to be had"
        )
    ahead = {
        name: 1 / figure.value
        for name, figure in found.items()
        if figure.value and figure.high is not None and figure.high < 1 / NOTABLE
    }
    if ahead:
        yield (
            f"a core was faster at the same arithmetic than under {BASELINE}, {_times(ahead)}: these speedups are too "
            "large. Repeat the run while nothing else uses the machine"
        )


def _times(factors: Mapping[str, float]) -> str:
    return ", ".join(f"{units.times(factor)} ({name})" for name, factor in factors.items())


def _changed(windows: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield in which modes the cores were much slower in one half of the windows than in the other."""
    for name, paces in windows.items():
        middle = len(paces) // 2
        ratio = stats.ratio(_mean(paces[middle:]), _mean(paces[:middle]), "x")
        if ratio.value and ratio.low and ratio.high and (ratio.low > NOTABLE or ratio.high < 1 / NOTABLE):
            slower = max(ratio.value, 1 / ratio.value)
            yield (
                f"the same arithmetic took a core {units.times(slower)} as long in one half of the windows of {name} "
                "as in the other: the machine did not keep its pace"
            )
