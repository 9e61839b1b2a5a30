"""Why a trace does not tell what its rank communicates, where it does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdoctor import units
from dpdoctor.attribution import marks
from dpdoctor.attribution.comm.callers import host_rows
from dpdoctor.attribution.comm.known import named
from dpdoctor.attribution.comm.suspects import suspects
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.parts import Part
from dpdoctor.digest import HOST, NAME_THEM, nothing_known
from dpdoctor.trace.columns import UNKNOWN, Kind
from dpdoctor.trace.model import Trace

_OF_SEVERAL = (
    marks.COMM_CALL,
    marks.COMM_RECORD,
    marks.COMM_ANNOTATION,
    marks.HOST_COMM,
    marks.DDP_HANDLING,
    marks.FSDP_HOOK,
)


def why_unknown(trace: Trace, devices: Sequence[DeviceEvents], comm_kernels: str | None) -> str | None:
    """Return why it is unknown what this rank communicates, in a clause; None: it is known, or the rank is alone.

    `devices` are those of `device_events` with the same `comm_kernels`.
    """
    if not devices or not _is_one_of_several(trace):
        return None
    if not any((device.part == Part.COMM).any() for device in devices):
        return _nothing(trace, devices, comm_kernels)
    number = sum(_num_doubtful(trace, device, comm_kernels) for device in devices)
    if not number:
        return None
    return (
        f"{units.count(number, 'kernel')} of unknown name and launch may communicate, as all others on the same stream "
        f"do by what launched or describes them; {NAME_THEM}"
    )


def _is_one_of_several(trace: Trace) -> bool:
    """Return whether other ranks belong to this one, as far as its trace tells: header, file or host."""
    if trace.world_size is not None:
        return trace.world_size > 1
    return (trace.rank or 0) > 0 or any(len(host_rows(trace, sign)) for sign in _OF_SEVERAL)


def _nothing(trace: Trace, devices: Sequence[DeviceEvents], comm_kernels: str | None) -> str:
    of = "several ranks" if trace.world_size is None else units.count(trace.world_size, "rank")
    if devices[0].index == HOST:
        return f"this is one of {of}, and the trace holds no span of a backend that communicates (gloo, mpi, ucc)"
    notes = []
    if comm_kernels is not None:
        notes.append(f"--comm-kernels {comm_kernels!r} matches none")
    if len(host_rows(trace, marks.HOST_COMM)):
        notes.append("a backend communicates on the host, of which the device shows nothing")
    return nothing_known(of, [*suspects(trace, devices)], notes)


def _num_doubtful(trace: Trace, device: DeviceEvents, comm_kernels: str | None) -> int:
    """Return how many kernels of which nothing is known are on streams of communication that no name tells."""
    events, is_comm = device.events, device.part == Part.COMM
    unnamed = is_comm & ~named(trace, comm_kernels)[device.rows]
    if not unnamed.any():
        return 0
    streams = np.setdiff1d(events.stream[unnamed], events.stream[~is_comm & (device.call != UNKNOWN)])
    unseen = (events.kind == Kind.KERNEL) & ~is_comm & (device.call == UNKNOWN)
    return int(np.count_nonzero(unseen & np.isin(events.stream, streams)))
