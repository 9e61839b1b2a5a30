"""What processes outside of a launch took of the machine's cores while it was measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean

from dpdoctor import units
from dpdoctor.analysis.windows import measured
from dpdoctor.records import Launch, Sample

# Share of the cores that other processes may use while something is measured, ...
OTHERS = 0.1
# ... and the share in use, by whomever, below which they take nothing from anybody.
ALL = 0.9
# The host and the ranks are sampled once a second, one right after the other.
ONE_ROUND_NS = 500_000_000
# A reading is of about the second before it.
PERIOD_NS = 1_100_000_000
WITH_WORKER = "one_worker"


def words(launches: Mapping[str, Launch], cores: int) -> str:
    """Return in which modes others took cores that were missed; empty: in none that is known."""
    taken = {name: found for name, launch in launches.items() if (found := taken_by_others(launch, cores))}
    if not taken:
        return ""
    each = ", ".join(f"{units.digits(number, 2)} while {name} was measured" for name, number in taken.items())
    return (
        f"of {units.count(cores, 'core')} other processes used {each}, and none was idle: steps are longer by that, "
        "and modes may differ by that alone. Repeat the run while nothing else uses the machine"
    )


def while_measured(launch: Launch | None, cores: int) -> str | None:
    """Return that others took cores while a launch was measured; None: none that were missed, or unknown."""
    taken = taken_by_others(launch, cores) if launch is not None else None
    return None if taken is None else f"other processes used {units.digits(taken, 2)} of {units.count(cores, 'core')}"


def taken_by_others(launch: Launch, cores: int) -> float | None:
    """Return how many of the cores processes outside of the launch used while it was measured and none was left idle.

    None where that is too little to matter, where cores were left, and where it cannot be told: the host's load is that
    of all its CPUs, which says nothing of `cores` where those are fewer, and what loader processes used that came and
    went between two readings is in it and in no reading of the launch.
    """
    if _processes_came_and_went(launch):
        return None
    rounds = [
        (sample.values["cpu_ratio"] * cores, own)
        for sample in _host_while_measured(launch)
        if sample.values.get("num_cpus") == cores and (own := _cores_of_ranks(launch.samples, sample.at_ns))
    ]
    if not rounds:
        return None
    in_use = fmean(whole for whole, _ in rounds)
    taken = in_use - fmean(own for _, own in rounds)
    return taken if taken > OTHERS * cores and in_use > ALL * cores else None


def _processes_came_and_went(launch: Launch) -> bool:
    """Return whether the loader processes that were seen while it was measured were not always as many."""
    rounds = [sample.at_ns for sample in _host_while_measured(launch)]
    of_workers = [sample for sample in launch.samples if sample.source.endswith(".workers")]
    counts = {
        sum(s.values["num_processes"] for s in of_workers if at_ns <= s.at_ns < at_ns + ONE_ROUND_NS)
        for at_ns in rounds
    }
    return len(counts) > 1


def _host_while_measured(launch: Launch) -> list[Sample]:
    """Return the host's readings, but for those of a second in which an arm had a loader process of its own."""
    windows = [rank.window for window in measured(launch) for rank in window.ranks]
    begin, end = min((w.begin_ns for w in windows), default=0), max((w.end_ns for w in windows), default=0)
    tried = [
        (before.end_ns, window.end_ns + PERIOD_NS)
        for rank in launch.ranks
        for before, window in itertools.pairwise(rank.windows)
        if window.arm == WITH_WORKER
    ]
    return [
        sample
        for sample in launch.samples
        if sample.source == "host"
        and begin <= sample.at_ns <= end
        and not any(since <= sample.at_ns <= until for since, until in tried)
    ]


def _cores_of_ranks(samples: Sequence[Sample], at_ns: int) -> float:
    """Return the cores that ranks and their loader processes kept busy in the second that ended then; 0: not known."""
    of_round = (s for s in samples if s.source.startswith("rank") and at_ns <= s.at_ns < at_ns + ONE_ROUND_NS)
    return sum(sample.values.get("cpu_cores", 0.0) for sample in of_round)
