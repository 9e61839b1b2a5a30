"""A file into a Trace: its decoded events become columns, slice by slice, so that few objects are alive at a time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.trace.document import NO_ARGS, NO_INSTANT_ARGS, Args, Complete, Document, Event, Instant, Loose, Meta
from dpdoctor.trace.model import UNKNOWN, Collective, Events, Group, Kind, Memory, Thread, Trace
from dpdoctor.trace.stream import MAX_BYTES, Stream
from dpdoctor.trace.values import (
    bytes_of_elements,
    bytes_of_inputs,
    integer,
    integers,
    is_whole,
    nanoseconds,
    plain,
    whole_numbers,
)

_RANK_IN_NAME = re.compile(r"(?<![a-z])rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)
_USED_KEYS = {"distributedInfo", "baseTimeNanoseconds", "host_name", "deviceProperties"}
# Until it has seen a block of about this size freed, the C library gives every freed buffer back to the system
# (M_MMAP_THRESHOLD in mallopt(3)); getting new pages for the next slice then takes a sixth of the time.
_FREED_BYTES = 31 << 20


def read(path: Path, *, max_bytes: int = MAX_BYTES) -> Trace:
    """Return one rank's trace: Kineto JSON, plain or gzip, of any version since 2021, up to its damage if it has any.

    Raises:
        TraceError: not readable, no trace, or more than `max_bytes` of JSON.
    """
    bytes(_FREED_BYTES)  # zeros of the system: none of these pages is ever touched
    document = Document(Stream(path, max_bytes=max_bytes))
    builder = _Builder()
    for events in document:
        builder.add(events)
    header = {key: plain(raw) for key, raw in document.header.items() if key in _USED_KEYS}
    distributed = _object(header.get("distributedInfo"))
    rank = _whole(distributed.get("rank"))
    return Trace(
        path=path,
        rank=rank_of(path) if rank is None else rank,
        world_size=_whole(distributed.get("world_size")),
        backend=_text(distributed.get("backend")),
        host=_text(header.get("host_name")),
        base_ns=_whole(header.get("baseTimeNanoseconds")) or 0,
        devices=tuple(str(_object(device).get("name", "")) for device in _list(header.get("deviceProperties"))),
        groups=tuple(_group(_object(group)) for group in _list(distributed.get("pg_config"))),
        names=builder.names,
        threads=builder.threads,
        events=builder.events(),
        memory=builder.memory(),
        collectives=tuple(builder.collectives),
        damage=document.damage,
        notes=builder.notes,
        unread=tuple(sorted(builder.unread)),
    )


def rank_of(path: Path) -> int | None:
    """Return the rank that the file's name says, else its folder's (`ddp/rank3/trace.json.gz`); None: neither does."""
    found = _RANK_IN_NAME.findall(path.name) or _RANK_IN_NAME.findall(path.parent.name)
    return int(found[-1]) if found else None


def _group(group: dict[str, Any]) -> Group:
    return Group(
        name=str(group.get("pg_name", "")),
        description=str(group.get("pg_desc", "")),
        ranks=whole_numbers(group.get("ranks")),
    )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    """Return a count or a time; None: this is neither."""
    return int(value) if is_whole(value) and value >= 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# Categories of today and, capitalised, of 2021. What is not here is not kept: Python frames, flows, overheads.
_KINDS = {
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "cpu_op": Kind.CPU_OP,
    "user_annotation": Kind.ANNOTATION,
    "Kernel": Kind.KERNEL,
    "Memcpy": Kind.MEMCPY,
    "Memset": Kind.MEMSET,
    "Runtime": Kind.RUNTIME,
    "Operator": Kind.CPU_OP,
}
# Of devices whose events are not read: their traces look like those of a host that computes by itself.
_UNREAD = frozenset({"mtia_ccp_events", "mtia_runtime", "hpu_op", "glow_runtime", "privateuse1_driver"})
_MAX_US = 3.2e15  # about a hundred years: what lies beyond is no time
_MAX_DEVICE = 1 << 15
_HOST_DEVICE_TYPES = (0, None)


_Key = TypeVar("_Key")
_Number = TypeVar("_Number", bound=np.generic)


class _Interner(dict[_Key, int]):
    """Numbers what it is asked for, in the order of asking."""

    def __missing__(self, key: _Key) -> int:
        number = self[key] = len(self)
        return number


class _Builder:
    """Collects the events of one trace.

    Attributes:
        collectives: what is said of them, sorted by row.
        unread: categories of events of devices that were left out.
    """

    def __init__(self) -> None:
        self.collectives: list[Collective] = []
        self.unread: set[str] = set()
        self._events: list[Events] = []
        self._memory: list[Memory] = []
        self._names: _Interner[str] = _Interner()
        self._threads: _Interner[tuple[Loose, Loose]] = _Interner()
        self._thread_names: dict[tuple[Loose, Loose], str] = {}
        self._num_kept = 0
        self._num_impossible = 0

    def add(self, events: Sequence[Event]) -> None:
        """Take one slice."""
        of_type: defaultdict[type, list[Any]] = defaultdict(list)
        for event in events:
            of_type[type(event)].append(event)
        self._add_complete(of_type[Complete])
        self._add_memory([event for event in of_type[Instant] if event.name == "[memory]"])
        for event in of_type[Meta]:
            if event.name == "thread_name" and event.args is not None:
                self._thread_names[event.pid, event.tid] = str(event.args.name)

    def _add_complete(self, events: list[Complete]) -> None:
        kind = _column(map(_KINDS.get, [event.cat for event in events], repeat(UNKNOWN)), len(events), np.int8)
        ts = _column([event.ts for event in events], len(events), np.float64)
        dur = _column([event.dur for event in events], len(events), np.float64)
        is_used = kind != UNKNOWN
        is_possible = (np.abs(ts) < _MAX_US) & (dur >= 0) & (dur < _MAX_US)
        keep = is_used & is_possible
        if not keep.all():
            self._num_impossible += int(np.count_nonzero(is_used & ~is_possible))
            self.unread |= _UNREAD & {event.cat for event in compress(events, (~is_used).tolist())}
            events = list(compress(events, keep.tolist()))
            kind, ts, dur = kind[keep], ts[keep], dur[keep]
        names, args = [event.name for event in events], [event.args or NO_ARGS for event in events]
        places = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        begin = nanoseconds(ts)
        on_device = np.flatnonzero(kind <= Kind.MEMSET)
        device, stream, num_bytes = _of_devices([(events[row], args[row]) for row in on_device.tolist()])
        self._events.append(
            Events(
                begin_ns=begin,
                end_ns=begin + np.rint(dur * 1e3).astype(np.int64),
                kind=kind,
                name=_column(map(self._names.__getitem__, names), len(events), np.int32),
                thread=_column(map(self._threads.__getitem__, places), len(events), np.int32),
                device=_placed(on_device, len(events), device, np.int16),
                stream=_placed(on_device, len(events), stream, np.int64),
                correlation=integers([arg.correlation for arg in args]),
                external=integers(
                    [arg.external_id_2021 if arg.external_id is None else arg.external_id for arg in args]
                ),
                num_bytes=_placed(on_device, len(events), num_bytes, np.int64),
            )
        )
        self.collectives += [
            _collective(self._num_kept + row, arg)
            for row, arg in enumerate(args)
            if arg.collective is not None or (arg.input_dims and names[row].startswith(_CARRIES_SHAPES))
        ]
        self._num_kept += len(events)

    def _add_memory(self, events: list[Instant]) -> None:
        ts = _column([event.ts for event in events], len(events), np.float64)
        is_possible = np.abs(ts) < _MAX_US
        self._num_impossible += int(np.count_nonzero(~is_possible))
        args = [event.args or NO_INSTANT_ARGS for event in compress(events, is_possible.tolist())]
        self._memory.append(
            Memory(
                at_ns=nanoseconds(ts[is_possible]),
                device=integers([UNKNOWN if arg.device_type in _HOST_DEVICE_TYPES else arg.device for arg in args]),
                allocated_bytes=integers([arg.allocated for arg in args]),
                reserved_bytes=integers([arg.reserved for arg in args]),
            )
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every name once, in the order of first appearance."""
        return tuple(self._names)

    @property
    def threads(self) -> tuple[Thread, ...]:
        """Every thread and stream once, in the order of first appearance."""
        return tuple(
            Thread(pid=str(pid), tid=str(tid), name=self._thread_names.get((pid, tid), ""))
            for pid, tid in self._threads
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out."""
        if not self._num_impossible:
            return ()
        return (f"{units.count(self._num_impossible, 'event')} of impossible time or duration left out",)

    def events(self) -> Events:
        """Return all complete events that are used."""
        return Events.join(self._events)

    def memory(self) -> Memory:
        """Return all events of the allocator."""
        return Memory.join(self._memory)


def _column(values: Iterable[Any], num: int, dtype: type[_Number]) -> NDArray[_Number]:
    return np.fromiter(values, dtype, num)


def _placed(rows: NDArray[np.int64], num: int, values: NDArray[np.int64], dtype: type[_Number]) -> NDArray[_Number]:
    """Return dtype[num]: the values in these rows, UNKNOWN in the others."""
    column = np.full(num, UNKNOWN, dtype)
    column[rows] = values
    return column


def _of_devices(said: list[tuple[Complete, Args]]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return device, stream and bytes of device events, whose process is the device and whose thread is the stream."""
    device = integers([event.pid if arg.device is None else arg.device for event, arg in said])
    return (
        np.where((device >= 0) & (device < _MAX_DEVICE), device, UNKNOWN),  # damaged files hold any number
        integers([_after_blank(event.tid) if arg.stream is None else arg.stream for event, arg in said]),
        integers([arg.num_bytes for _, arg in said]),
    )


def _after_blank(tid: Loose) -> Loose:
    """The stream was written as "stream 7" in 2021."""
    return tid.rpartition(" ")[2] if isinstance(tid, str) else tid


# The spans of the backends and the operators that call them: both carry the shapes of what is communicated.
_CARRIES_SHAPES = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "c10d::")


def _collective(row: int, args: Args) -> Collective:
    """Return what these arguments say."""
    has_metadata = args.collective is not None
    dtype = str(args.dtype) if has_metadata else None
    return Collective(
        row=row,
        name=str(args.collective) if has_metadata else None,
        dtype=dtype,
        in_bytes=bytes_of_elements(args.in_nelems, dtype)
        if has_metadata
        else bytes_of_inputs(args.input_dims, args.input_type),
        out_bytes=bytes_of_elements(args.out_nelems, dtype),
        group=None if args.group_name is None else str(args.group_name),
        group_size=_known(args.group_size),
        ranks=_ranks(args),
        seq=_known(args.seq),
    )


def _ranks(args: Args) -> tuple[int, ...]:
    """Return the ranks of a group: a list, or a text that writes one ("[0, 1]"); torch shortens long lists."""
    value = plain(args.group_ranks)
    return whole_numbers(plain(value.encode()) if isinstance(value, str) else value)


def _known(value: Any) -> int | None:
    number = integer(value)
    return None if number == UNKNOWN else number
