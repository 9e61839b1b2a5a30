"""Trace -> Digest: everything that is kept of one rank's trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.attribution import marks
from dpdoctor.attribution.breakdown import activities, occupancy
from dpdoctor.attribution.collectives import (
    call_columns,
    collective_sizes,
    collectives,
    group_ranks,
    local_causes,
    small_calls,
)
from dpdoctor.attribution.device_events import DeviceEvents, device_events
from dpdoctor.attribution.devices import devices, idle_causes, traced_steps
from dpdoctor.attribution.host_events import self_times
from dpdoctor.attribution.replay import replay
from dpdoctor.attribution.steps import HostSteps, host_steps, step_windows
from dpdoctor.attribution.unknown_communication import why_unknown
from dpdoctor.attribution.untold import is_cut, why_untold
from dpdoctor.attribution.wrappers import buckets, data_parallel_cost, shard_units
from dpdoctor.digest import HOST, TIME, Digest, NamedTime, NotMeasured
from dpdoctor.trace.model import UNKNOWN, Kind, Trace
from dpdoctor.trace.reader import read
from dpdoctor.trace.stream import MAX_BYTES


def digest_file(path: Path, *, max_bytes: int = MAX_BYTES, comm_kernels: str | None = None) -> Digest:
    """Return the digest of a trace file; `comm_kernels` as in `parts`.

    Raises:
        TraceError: not readable, no trace, or more than `max_bytes` of JSON.
    """
    return digest(read(path, max_bytes=max_bytes), comm_kernels)


def digest(trace: Trace, comm_kernels: str | None = None) -> Digest:
    """Return what is kept of a trace: at most about 1 MB as JSON, however long the trace is.

    `comm_kernels` as in `parts`.
    """
    steps, untold = host_steps(trace), why_untold(trace)
    observed = () if untold else device_events(trace, steps.thread, comm_kernels)
    host = activities(trace, observed, steps.thread)
    found = collectives(trace, observed)
    windows = {device.index: step_windows(steps, device) for device in observed}
    used = {device.index: occupancy(device) for device in observed}
    idle = {device.index: idle_causes(device, used[device.index], steps, host) for device in observed}
    causes = {
        device.index: local_causes(device, used[device.index], idle[device.index], host, steps.thread)
        for device in observed
    }
    made = Digest(
        source=trace.path.name,
        rank=trace.rank,
        world_size=trace.world_size,
        backend=trace.backend,
        host=trace.host,
        base_ns=trace.base_ns,
        has_device=any(device.index != HOST for device in observed),
        step_source=steps.source,
        num_events=len(trace.events),
        devices=devices(trace, steps, observed, used, idle),
        kernels=kernel_times(trace, observed),
        operators=() if is_cut(trace) else operator_times(trace),
        collectives=collective_sizes(found),
        calls=call_columns(found, windows, causes),
        small_calls=small_calls(found),
        buckets=buckets(trace, steps, observed, found),
        shard_units=shard_units(trace, steps, observed, found),
        data_parallel=data_parallel_cost(trace, steps, observed),
        traced_steps=traced_steps(trace, steps, observed),
        replay=replay(trace, steps, observed),
        group_ranks=group_ranks(trace, found),
        damage=None if trace.damage is None else f"{trace.damage.reason} at byte {trace.damage.offset}",
        notes=(*trace.notes, *_lost_kernels(observed)),
        not_measured=tuple(_not_measured(trace, steps, observed, untold)),
    )
    reason = why_unknown(trace, observed, comm_kernels)
    return made if reason is None else made.without_communication(reason)


def _lost_kernels(observed: Sequence[DeviceEvents]) -> Iterator[str]:
    """Yield how many kernels are lost; those behind all that are there were not done when the recording ended."""
    if not observed:
        return
    seen_ns = max(int(np.max(device.call_begin_ns, where=device.call != UNKNOWN, initial=0)) for device in observed)
    if num := int(np.searchsorted(observed[0].lost_ns, seen_ns)):
        lost = f"{units.count(num, 'kernel')} that the host launched {'is' if num == 1 else 'are'} not in the trace"
        yield f"{lost}: steps that lack any are left out, and idle time of the whole trace may hold them"


def _not_measured(
    trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents], untold: str | None
) -> Iterator[NotMeasured]:
    if not observed:
        reason = untold or "the trace holds neither device events nor operators"
        yield NotMeasured(what=TIME, reason=reason)
    if not len(steps.spans):
        reason = "the trace has no ProfilerStep# and, outside of backward passes, no Optimizer.step# spans"
        yield NotMeasured(what="steps, units of FSDP, costs of DataParallel", reason=reason)
    if not len(trace.memory):
        yield NotMeasured(what="memory", reason="the trace was recorded without profile_memory")


MAX_ROWS = 100
MAX_CHARACTERS = 100_000  # of all names of a table: templates make kernel names as long as they like


def kernel_times(trace: Trace, devices: Sequence[DeviceEvents]) -> tuple[NamedTime, ...]:
    """Return by device the names with most time on it, copies and memsets among them; the others in one last row."""
    found: list[NamedTime] = []
    for device in devices:
        if device.index != HOST:
            events = device.events
            found += _table(trace, events.name, events.duration_ns, device=device.index)
    return tuple(found)


def operator_times(trace: Trace) -> tuple[NamedTime, ...]:
    """Return the operators with most time of their own, on all threads; the others in one last row.

    The total of an operator that calls itself counts the inner calls again.
    """
    rows = trace.rows(Kind.CPU_OP)
    rows = rows[~trace.named(marks.OF_LOOP)[trace.events.name[rows]]]
    rows = rows[np.argsort(trace.events.thread[rows], kind="stable")]
    events = trace.events[rows]
    own = np.zeros(len(rows), np.int64)
    edges = np.flatnonzero(np.diff(events.thread, prepend=-1, append=-1)).tolist()
    for first, last in pairwise(edges):
        own[first:last] = self_times(events.begin_ns[first:last], events.end_ns[first:last])
    return tuple(_table(trace, events.name, events.duration_ns, own))


def _table(
    trace: Trace,
    names: NDArray[np.int32],
    total_ns: NDArray[np.int64],
    self_ns: NDArray[np.int64] | None = None,
    *,
    device: int = HOST,
) -> list[NamedTime]:
    """Return one row per name, most time first."""
    count = np.bincount(names)
    total = np.bincount(names, total_ns)  # exact up to 2**53 ns, a hundred days
    own = total if self_ns is None else np.bincount(names, self_ns)
    order = np.flatnonzero(count)
    order = order[np.argsort(-own[order], kind="stable")]

    def row(name: str, which: NDArray[np.int64]) -> NamedTime:
        return NamedTime(
            name=name,
            count=int(count[which].sum()),
            total_ns=int(total[which].sum()),
            self_ns=None if self_ns is None else int(own[which].sum()),
            device=device,
        )

    length = np.cumsum([len(trace.names[number]) for number in order[:MAX_ROWS].tolist()])
    num_rows = max(1, int(np.searchsorted(length, MAX_CHARACTERS, side="right")))
    found = [row(trace.names[number], order[at : at + 1]) for at, number in enumerate(order[:num_rows].tolist())]
    others = order[num_rows:]
    return [*found, row(f"({units.count(len(others), 'other')})", others)] if len(others) else found
