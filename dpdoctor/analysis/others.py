"""What processes outside of a launch took of the machine's cores while it was measured."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from dpdoctor import units
from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.records import Sample
from dpdoctor.spec import BESIDE

# Share of the cores that other processes may use while something is measured, ...
OTHERS = 0.1
# ... and the share in use, by whomever, below which they take nothing from anybody.
ALL = 0.9
# The host and the ranks are sampled once a second, one right after the other.
ONE_ROUND_NS = 500_000_000
# A reading is of about the second before it.
PERIOD_NS = 1_100_000_000


def words(launches: Mapping[str, LaunchFacts], cores: int) -> str:
    """Return in which modes others took cores that were missed; empty: in none that is known."""
    taken = {name: found for name, launch in launches.items() if (found := taken_by_others(launch, cores)) is not None}
    if not taken:
        return ""
    each = ", ".join(f"{units.digits(number, 2)} while {name} was measured" for name, number in taken.items())
    return (
        f"of {units.count(cores, 'core')} other processes used {each}, and none was idle: steps are longer by that, "
        "and modes may differ by that alone, so that no speedup is given. Repeat the run while nothing else uses the "
        "machine"
    )


def while_measured(launch: LaunchFacts | None, cores: int) -> str | None:
    """Return that others took cores while a launch was measured; None: none that were missed, or unknown."""
    taken = taken_by_others(launch, cores) if launch is not None else None
    return None if taken is None else f"other processes used {units.digits(taken, 2)} of {units.count(cores, 'core')}"


def taken_by_others(launch: LaunchFacts, cores: int) -> float | None:
    """Return how many of the cores processes outside of the launch used while it was measured and none was left idle.

    None where that is too little to matter, where cores were left, and where it cannot be told: the host's load is that
    of all its CPUs, which says nothing of `cores` where those are fewer, and what loader processes used that came and
    went between two readings is in it and in no reading of the launch.
    """
    rounds = _rounds_while_measured(launch)
    if len({found.num_workers for found in rounds}) > 1:
        return None
    known = [
        (found.host.values["cpu_ratio"] * cores, found.own)
        for found in rounds
        if found.host.values.get("num_cpus") == cores and found.own
    ]
    if not known:
        return None
    in_use = fmean(whole for whole, _ in known)
    taken = in_use - fmean(own for _, own in known)
    return taken if taken > OTHERS * cores and in_use > ALL * cores else None


class _Round(NamedTuple):
    """What was read at once: the host, cores that ranks and their loader processes used, and how many these were."""

    host: Sample
    own: float
    num_workers: float


def _rounds_while_measured(launch: LaunchFacts) -> list[_Round]:
    """Return the readings, but for those of a second in which an ablation had a loader process of its own."""
    windows = [rank.window for window in launch.windows() for rank in window.ranks]
    begin, end = min((w.begin_ns for w in windows), default=0), max((w.end_ns for w in windows), default=0)
    tried = [
        (before.end_ns, window.end_ns + PERIOD_NS)
        for rank in launch.ranks
        for before, window in itertools.pairwise(rank.windows)
        if window.ablation == BESIDE
    ]
    of_ranks = sorted((s for s in launch.samples if s.source.startswith("rank")), key=lambda sample: sample.at_ns)
    times = [sample.at_ns for sample in of_ranks]
    return [
        _round(host, of_ranks[bisect_left(times, host.at_ns) : bisect_left(times, host.at_ns + ONE_ROUND_NS)])
        for host in launch.samples
        if host.source == "host"
        and begin <= host.at_ns <= end
        and not any(since <= host.at_ns <= until for since, until in tried)
    ]


def _round(host: Sample, of_ranks: Sequence[Sample]) -> _Round:
    return _Round(
        host=host,
        own=sum(sample.values.get("cpu_cores", 0.0) for sample in of_ranks),
        num_workers=sum(s.values["num_processes"] for s in of_ranks if s.source.endswith(".workers")),
    )
