"""FSDP's wrap units: what each gathers and scatters in a step, and how much of that is exposed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.callers import host_rows
from dpdoctor.attribution.collectives import Collectives
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import contains
from dpdoctor.attribution.nesting import is_inside, running_at
from dpdoctor.attribution.steps import HostSteps, whole_steps
from dpdoctor.digest import ShardUnit
from dpdoctor.trace.model import UNKNOWN, Trace

MAX_UNITS = 1_000
# What FSDP2 names around its calls; the module's name follows in brackets, the root has none or an empty one.
_CALLS = r"^FSDP::(?:all_gather|post_backward_reduce)(?! for)\b"
_PREFETCH = r"^FSDP::(?:forward|backward)_prefetch for "
_UNIT = re.compile(r"^FSDP::\w+ \((?P<module>.*?)\)(?P<group> \[pg=.*\])?$")


def shard_units(
    trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents], found: Collectives
) -> tuple[ShardUnit, ...]:
    """Return the first MAX_UNITS units in the order of their first call; empty without FSDP2 or without whole steps.

    FSDP1 does not name its units, and is not seen.
    """
    events, caller = trace.events, found.caller
    whole = whole_steps(steps, observed)
    threads = np.where(caller == UNKNOWN, UNKNOWN, events.thread[caller])
    called = events.begin_ns[caller]
    span = running_at(events, host_rows(trace, _CALLS), threads, called)
    span[~contains(whole, called)] = UNKNOWN
    is_prefetch = is_inside(events, host_rows(trace, _PREFETCH), threads, called)
    members: defaultdict[str, list[int]] = defaultdict(list)
    for index in np.flatnonzero(span != UNKNOWN).tolist():
        members[_unit(trace.names[events.name[span[index]]])].append(index)
    units = list(members.items())[:MAX_UNITS]
    return tuple(_shard_unit(name, found, np.array(at), is_prefetch, len(whole)) for name, at in units)


def _unit(span_name: str) -> str:
    match = _UNIT.match(span_name)
    return (match["module"] + (match["group"] or "") if match else "") or "root"


def _shard_unit(
    name: str, found: Collectives, calls: NDArray[np.int64], is_prefetch: NDArray[np.bool_], num_steps: int
) -> ShardUnit:
    gathers, scatters = (
        calls[[found.operations[index] == operation for index in calls.tolist()]]
        for operation in ("all_gather", "reduce_scatter")
    )
    return ShardUnit(
        name=name,
        all_gathers=len(gathers) / num_steps,
        reduce_scatters=len(scatters) / num_steps,
        gathered_bytes=_total(found.num_bytes[gathers], num_steps),
        scattered_bytes=_total(found.num_bytes[scatters], num_steps),
        exposed_ns=int(found.exposed_ns[calls].sum()) / num_steps,
        prefetched=float(is_prefetch[gathers].mean()) if len(gathers) else None,
    )


def _total(num_bytes: NDArray[np.int64], num_steps: int) -> float | None:
    """Return the bytes per step; None where the trace does not say those of every call."""
    return None if (num_bytes == UNKNOWN).any() else int(num_bytes.sum()) / num_steps
