"""What made a launch slower than its code is: clocks that were lowered, cores that others took, a compilation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import fmean

from dpdoctor import units
from dpdoctor.analysis import Finding
from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.windows import measured
from dpdoctor.gate.evidence.measured import recompilations
from dpdoctor.records import Launch, Run, Sample
from dpdoctor.rules import Case, cpu_oversubscription, throttling

# Share of the cores that other processes may use while something is measured, ...
OTHERS = 0.1
# ... and the share in use, by whomever, below which they take nothing from anybody.
ALL = 0.9
# The host and the ranks are sampled once a second, one right after the other.
ONE_ROUND_NS = 500_000_000


def disturbance(run: Run, mode: str, launch: Launch) -> str | None:
    """Return why a launch of a mode of `run` is not to be judged by, in clauses; None: it is."""
    if launch.record.status != "ok":
        return None
    cores = run.header.fingerprint.cores
    clauses = (*_lowered_clocks(run, mode, launch), *_quota(launch), *_compiled(launch), *_others(launch, cores))
    return "; ".join(clauses) or None


def _lowered_clocks(run: Run, mode: str, launch: Launch) -> tuple[str, ...]:
    if not any(rank.record.devices for rank in launch.ranks if rank.record):
        return ()
    found = throttling.RULE.check(_case(run, mode, launch))
    return (found.title,) if isinstance(found, Finding) else ()


def _case(run: Run, mode: str, launch: Launch) -> Case:
    """Return a run with nothing but this launch."""
    spec = run.header.spec
    only = tuple(one for one in spec.modes if one.name == mode)
    header = dataclasses.replace(run.header, spec=dataclasses.replace(spec, modes=only))
    return Case(analysis=analyse(Run(path=run.path, header=header, modes={mode: (launch,)})), name=mode)


def _quota(launch: Launch) -> tuple[str, ...]:
    share = cpu_oversubscription.throttled_periods([launch]).value
    if share is None or share <= cpu_oversubscription.THROTTLED:
        return ()
    return (f"a CPU quota held processes back in {units.share(share)} of its periods",)


def _compiled(launch: Launch) -> tuple[str, ...]:
    number = recompilations(launch)
    return (f"torch.compile compiled {units.count(number, 'graph')} while it was measured",) if number else ()


def _others(launch: Launch, cores: int) -> tuple[str, ...]:
    taken = taken_by_others(launch, cores)
    return () if taken is None else (f"other processes used {units.digits(taken, 2)} of {units.count(cores, 'core')}",)


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
    windows = [rank.window for window in measured(launch) for rank in window.ranks]
    begin, end = min((w.begin_ns for w in windows), default=0), max((w.end_ns for w in windows), default=0)
    return [sample for sample in launch.samples if sample.source == "host" and begin <= sample.at_ns <= end]


def _cores_of_ranks(samples: Sequence[Sample], at_ns: int) -> float:
    """Return the cores that ranks and their loader processes kept busy in the second that ended then; 0: not known."""
    of_round = (s for s in samples if s.source.startswith("rank") and at_ns <= s.at_ns < at_ns + ONE_ROUND_NS)
    return sum(sample.values.get("cpu_cores", 0.0) for sample in of_round)
