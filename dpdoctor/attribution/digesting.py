"""Trace -> Digest: everything that is kept of one rank's trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dpdoctor.attribution import tables
from dpdoctor.attribution.bandwidth import collective_sizes, small_calls
from dpdoctor.attribution.breakdown import occupancy
from dpdoctor.attribution.collective_calls import calls, local_causes
from dpdoctor.attribution.collectives import collectives
from dpdoctor.attribution.data_parallel import data_parallel_cost
from dpdoctor.attribution.ddp_buckets import buckets
from dpdoctor.attribution.device_events import DeviceEvents, device_events
from dpdoctor.attribution.devices import devices, idle_causes
from dpdoctor.attribution.fsdp_units import shard_units
from dpdoctor.attribution.host_activity import activities
from dpdoctor.attribution.replay import replay
from dpdoctor.attribution.steps import HostSteps, host_steps, step_windows
from dpdoctor.attribution.traced_steps import traced_steps
from dpdoctor.attribution.unknown_communication import why_unknown
from dpdoctor.digest import HOST, Digest, NotMeasured
from dpdoctor.trace.model import Trace
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
    steps = host_steps(trace)
    observed = device_events(trace, steps.thread, comm_kernels)
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
        kernels=tables.kernels(trace, observed),
        operators=tables.operators(trace),
        collectives=collective_sizes(found),
        calls=calls(found, windows, causes),
        small_calls=small_calls(found),
        buckets=buckets(trace, steps, observed, found),
        shard_units=shard_units(trace, steps, observed, found),
        data_parallel=data_parallel_cost(trace, steps, observed),
        traced_steps=traced_steps(trace, steps, observed),
        replay=replay(trace, steps, observed),
        damage=None if trace.damage is None else f"{trace.damage.reason} at byte {trace.damage.offset}",
        notes=trace.notes,
        not_measured=tuple(_not_measured(trace, steps, observed)),
    )
    reason = why_unknown(trace, observed, comm_kernels)
    return made if reason is None else made.without_communication(reason)


def _not_measured(trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents]) -> Iterator[NotMeasured]:
    if not observed:
        yield NotMeasured(what="time breakdown", reason="the trace holds neither device events nor operators")
    if not len(steps.spans):
        reason = "the trace has no ProfilerStep# and no Optimizer.step# spans"
        yield NotMeasured(what="steps, units of FSDP, costs of DataParallel", reason=reason)
    if not len(trace.memory):
        yield NotMeasured(what="memory", reason="the trace was recorded without profile_memory")
