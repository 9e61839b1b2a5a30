"""What communication costs a step, as traces alone show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.trace_budget import NO_STEPS, NO_TRACE
from dpdoctor.digest import DeviceStep, Digest
from dpdoctor.records import Launch


def exposed_share(digests: Sequence[Digest]) -> Figure:
    """Return the share of a traced step that communicates while nothing computes, on the rank where it is least.

    That rank is the one the others wait for: what it loses is what a step loses, the rest is the others' waiting for it
    and does not go away with the communication. (Rank r takes w_r(s) before it meets the others in step s. With
    communication a step takes E[max_r w_r] + transfer, without max_r E[w_r]; the difference is what the rank with the
    largest E[w_r] spends in communication.)
    """
    return _of_last_rank(digests, lambda step: step.budget.exposed_comm_ns)


def removable_share(digests: Sequence[Digest], *, on_shared_cores: bool) -> Figure:
    """Return the share of a traced step that would go with the communication, on the rank of `exposed_share`.

    On a GPU that is what nothing hides. Where communication runs on the cores that compute (`on_shared_cores`), what
    runs beside computing slows it by as much as it takes of them, and nothing is hidden; and they copy for it.
    """
    if not on_shared_cores:
        return exposed_share(digests)
    return _of_last_rank(digests, lambda step: step.budget.comm_ns + step.handling_ns)


def on_shared_cores(launch: Launch, cores: int) -> bool:
    """Return whether ranks compute on all of a machine's `cores`, so that communication finds none of its own.

    Not with more threads than cores: a call then waits for a core, too, and its length is not what it takes of them.
    """
    records = [rank.record for rank in launch.ranks if rank.record and rank.record.device_type == "cpu"]
    threads: Counter[str] = Counter()
    for record in records:
        threads[record.host] += record.adoption.num_threads
    return max(threads.values(), default=0) == cores


def _of_last_rank(digests: Sequence[Digest], part: Callable[[DeviceStep], int]) -> Figure:
    """Return a part of the step on the rank that communicates least while nothing computes."""
    steps = [[step for device in digest.devices for step in device.steps] for digest in digests]
    by_rank = [of_rank for of_rank in steps if sum(step.budget.total_ns for step in of_rank)]
    if not by_rank:
        return stats.unknown("ratio", NO_STEPS if digests else NO_TRACE)
    last = min(by_rank, key=_exposed_ratio)
    return stats.ratio_of_totals([(part(step), step.budget.total_ns) for step in last], "ratio")


def _exposed_ratio(steps: Sequence[DeviceStep]) -> float:
    return sum(s.budget.exposed_comm_ns for s in steps) / sum(s.budget.total_ns for s in steps)
