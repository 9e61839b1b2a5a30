"""How fast the cores computed while each mode was measured, by a fixed piece of arithmetic at every window's end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from dpdoctor import units
from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.windows import NS, Window
from dpdoctor.spec import BASELINE

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
    than = f"than while {BASELINE} was measured"
    behind = {name: figure.value for name, figure in found.items() if figure.value and (figure.low or 0) > NOTABLE}
    if behind:
        yield (
            f"a core took longer for the same arithmetic {than}, {_times(behind)}: cores that share hardware threads "
            "or power are slower the more of them compute, and that much of a linear speedup is not to be had"
        )
    ahead = {
        name: 1 / figure.value
        for name, figure in found.items()
        if figure.value and figure.high is not None and figure.high < 1 / NOTABLE
    }
    if ahead:
        yield (
            f"a core was faster at the same arithmetic {than}, {_times(ahead)}: the machine was slower then, and these "
            "speedups are too large. Repeat the run while nothing else uses it"
        )


def _times(factors: Mapping[str, float]) -> str:
    return ", ".join(f"{units.times(factor)} while {name} was measured" for name, factor in factors.items())


def _changed(windows: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield in which modes the cores were much slower in one half of the windows than in the other."""
    for name, paces in windows.items():
        middle = len(paces) // 2
        ratio = stats.ratio(_mean(paces[middle:]), _mean(paces[:middle]), "x")
        if ratio.value and ratio.low and ratio.high and (ratio.low > NOTABLE or ratio.high < 1 / NOTABLE):
            slower = max(ratio.value, 1 / ratio.value)
            yield (
                f"the same arithmetic took a core {units.times(slower)} the time in one half of the windows of {name} "
                "that it took in the other: the machine did not keep its pace"
            )
