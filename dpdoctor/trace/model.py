"""What a trace is once read."""

from __future__ import annotations

import functools
import operator
import re
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.trace.columns import Events, Kind, Memory

ON_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a trace stops being readable: byte offset into the decompressed file, and what is wrong there."""

    offset: int
    reason: str


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

    def rows(self, *kinds: Kind) -> NDArray[np.int64]:
        """Return int64[k]: the rows of the events of these kinds, in the order of the file."""
        return np.flatnonzero(functools.reduce(operator.or_, (self.events.kind == kind for kind in kinds)))

    def named(self, pattern: str) -> NDArray[np.bool_]:
        """Return bool[len(names)]: which names the regular expression finds something in, whatever the case."""
        search = re.compile(pattern, re.IGNORECASE).search
        return np.fromiter(map(search, self.names), bool, len(self.names))
