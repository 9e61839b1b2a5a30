"""Small traces made by hand, event by event; times in microseconds."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dpdoctor.trace.model import UNKNOWN, Collective, Events, Kind, Memory, Thread, Trace

US = 1_000
MAIN, AUTOGRAD, GLOO = 0, 1, 2


class Recording:
    """A trace that is being written down."""

    def __init__(self, devices: tuple[str, ...] = ("GPU A", "GPU B")) -> None:
        self._devices = devices
        self._names: dict[str, int] = {}
        self._columns: dict[str, list[int]] = {name: [] for name in Events.__struct_fields__}
        self._memory: list[tuple[int, int, int, int]] = []
        self._collectives: list[Collective] = []
        self._correlations = count(100)

    def op(self, name: str, begin: float, end: float, *, thread: int = MAIN) -> None:
        """An operator on the host."""
        self._add(Kind.CPU_OP, name, begin, end, thread=thread)

    def span(self, name: str, begin: float, end: float, *, thread: int = MAIN) -> None:
        """An annotation on the host."""
        self._add(Kind.ANNOTATION, name, begin, end, thread=thread)

    def call(self, name: str, begin: float, end: float, *, thread: int = MAIN, external: int = UNKNOWN) -> int:
        """A call of the runtime; returns its correlation."""
        correlation = next(self._correlations)
        self._add(Kind.RUNTIME, name, begin, end, thread=thread, correlation=correlation, external=external)
        return correlation

    def kernel(self, begin: float, end: float, name: str = "gemm", **fields: int) -> None:
        """A kernel; `correlation` says which call launched it."""
        self.on_device(Kind.KERNEL, name, begin, end, **fields)

    def on_device(self, kind: Kind, name: str, begin: float, end: float, **fields: int) -> None:
        """Anything on a device: device 0, stream 7 unless said otherwise."""
        self._add(kind, name, begin, end, **{"device": 0, "stream": 7, "thread": 9, **fields})

    def launched(self, at: float, begin: float, end: float, name: str = "gemm", **fields: int) -> None:
        """A kernel with its call, which takes 2 µs from `at`, on the main thread unless said otherwise."""
        correlation = self.call("cudaLaunchKernel", at, at + 2, thread=fields.pop("thread", MAIN))
        self.kernel(begin, end, name, correlation=correlation, **fields)

    def allocated(self, device: int, allocated: int, reserved: int) -> None:
        """An event of the allocator."""
        self._memory.append((0, device, allocated, reserved))

    def collective(self, name: str) -> None:
        """The metadata of a collective for the last event."""
        row = len(self._columns["kind"]) - 1
        unknown: dict[str, Any] = dict.fromkeys(("dtype", "in_bytes", "out_bytes", "group", "group_size", "seq"))
        self._collectives.append(Collective(row=row, name=name, ranks=(), **unknown))

    def _add(self, kind: Kind, name: str, begin: float, end: float, **fields: int) -> None:
        values = {
            **dict.fromkeys(self._columns, UNKNOWN),
            "begin_ns": round(begin * US),
            "end_ns": round(end * US),
            "kind": kind,
            "name": self._names.setdefault(name, len(self._names)),
            **fields,
        }
        for column, value in values.items():
            self._columns[column].append(value)

    def trace(self) -> Trace:
        """Return it as the reader would."""
        narrow: dict[str, Any] = {"kind": np.int8, "name": np.int32, "thread": np.int32, "device": np.int16}
        columns = {name: np.array(values, narrow.get(name, np.int64)) for name, values in self._columns.items()}
        memory = np.array(self._memory, np.int64).reshape(-1, 4).T
        return Trace(
            path=Path("rank0.json"),
            rank=0,
            world_size=1,
            backend=None,
            host=None,
            base_ns=0,
            devices=self._devices,
            groups=(),
            names=tuple(self._names),
            threads=tuple(Thread(pid="5", tid=str(5 + number), name="") for number in range(10)),
            events=Events(**columns),
            memory=Memory(at_ns=memory[0], device=memory[1], allocated_bytes=memory[2], reserved_bytes=memory[3]),
            collectives=tuple(self._collectives),
            damage=None,
            notes=(),
        )
