"""What a trace is once read: its events as columns, one numpy array per field, names and threads interned."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
import msgspec.structs
import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1


class Kind(IntEnum):
    """What an event is; those of a device come first."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    RUNTIME = 3
    CPU_OP = 4
    ANNOTATION = 5


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """Complete events in the order of the file, n of them; times in ns since the trace's base.

    Attributes:
        begin_ns, end_ns: int64, end >= begin.
        kind: int8, a Kind.
        name: int32, index into Trace.names.
        thread: int32, index into Trace.threads; for device events the one of their stream.
        device: int16, of device events; UNKNOWN for the host's.
        stream: int64, of device events; UNKNOWN for the host's.
        correlation: int64, what joins a device event to the runtime call that launched it; UNKNOWN: none.
        external: int64, what joins runtime calls and device events to operators; UNKNOWN: none.
        num_bytes: int64, of copies; UNKNOWN: not said.
    """

    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    device: NDArray[np.int16]
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    external: NDArray[np.int64]
    num_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begin_ns)

    def __getitem__(self, where: NDArray[Any] | slice) -> Events:
        """Return the events that a mask, an index array or a slice selects."""
        return Events(**{name: column[where] for name, column in msgspec.structs.asdict(self).items()})

    @property
    def duration_ns(self) -> NDArray[np.int64]:
        """int64[n]."""
        return self.end_ns - self.begin_ns

    @property
    def spans(self) -> NDArray[np.int64]:
        """int64[n, 2]: begin and end."""
        return self.spans_of(slice(None))

    def spans_of(self, where: NDArray[Any] | slice) -> NDArray[np.int64]:
        """Return int64[k, 2]: begin and end of the events that a mask, an index array or a slice selects."""
        return np.stack((self.begin_ns[where], self.end_ns[where]), axis=1)

    @staticmethod
    def join(parts: Sequence[Events]) -> Events:
        """Return the events of all parts, one after the other."""
        return Events(**_joined(parts))


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The allocator's events in the order of the file, m of them; empty when memory was not profiled.

    Attributes:
        at_ns: int64, since the trace's base.
        device: int64, the CUDA device; UNKNOWN for the host's memory.
        allocated_bytes, reserved_bytes: int64 after the event; UNKNOWN in files that do not say it.
    """

    at_ns: NDArray[np.int64]
    device: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.at_ns)

    @staticmethod
    def join(parts: Sequence[Memory]) -> Memory:
        """Return the events of all parts, one after the other."""
        return Memory(**_joined(parts))


def _joined(parts: Sequence[Events] | Sequence[Memory]) -> dict[str, NDArray[Any]]:
    columns = zip(*map(msgspec.structs.astuple, parts), strict=True)
    return dict(zip(parts[0].__struct_fields__, map(np.concatenate, columns), strict=True))


ON_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a trace stops being readable: byte offset into the decompressed file, and what is wrong there.

    `behind_events`: all events are there, and only what follows them is not.
    """

    offset: int
    reason: str
    behind_events: bool = False


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """A host thread, or a stream of a device, as the exporter labels it."""

    pid: str
    tid: str
    name: str


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """What the exporter says of one communication event. None: it does not say.

    Attributes:
        row: index into the trace's events.
        name: of the collective (allreduce, _allgather_base, ...); None for spans that carry shapes only.
        in_bytes, out_bytes: of this rank's tensors.
        group: name of the process group; unique within a job.
        ranks: of the group.
        seq: number of the call within its group.
    """

    row: int
    name: str | None
    dtype: str | None
    in_bytes: int | None
    out_bytes: int | None
    group: str | None
    group_size: int | None
    ranks: tuple[int, ...]
    seq: int | None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as the trace's header lists it."""

    name: str
    description: str
    ranks: tuple[int, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's trace.

    Attributes:
        rank: of the header, else of the file's name; None: neither says.
        base_ns: what times count from, in unix time.
        devices: names of the GPUs of the node, by index.
        names, threads: what `events.name` and `events.thread` index.
        collectives: sorted by row.
        damage: where the file stops being readable; None: it is whole.
        notes: what was left out, one sentence each.
        unread: categories of events of devices that are there and not read, sorted.
    """

    path: Path
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    base_ns: int
    devices: tuple[str, ...]
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    events: Events
    memory: Memory
    collectives: tuple[Collective, ...]
    damage: Damage | None
    notes: tuple[str, ...]
    unread: tuple[str, ...] = ()

    def rows(self, *kinds: Kind) -> NDArray[np.int64]:
        """Return int64[k]: the rows of the events of these kinds, in the order of the file."""
        return np.flatnonzero(functools.reduce(operator.or_, (self.events.kind == kind for kind in kinds)))

    def named(self, pattern: str) -> NDArray[np.bool_]:
        """Return bool[len(names)]: which names the regular expression finds something in, whatever the case."""
        search = re.compile(pattern, re.IGNORECASE).search
        return np.fromiter(map(search, self.names), bool, len(self.names))
