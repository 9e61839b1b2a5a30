"""What the ranks of a mode and their loader processes take of the machine's cores."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from dpdoctor.records import Launch

# Share of the machine's cores that are in use, by whomever, from which none is counted as idle.
BUSY = 0.9
# Processes that a rank started and that compute at least this much of what it does itself take its core from it.
OWN_LOAD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
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
