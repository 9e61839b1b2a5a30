"""Traces written as Kineto writes them, read by the real reader, with what the analyses of collectives start from."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.collectives import Collectives, collectives
from dpdoctor.attribution.device_events import DeviceEvents, device_events
from dpdoctor.attribution.steps import HostSteps, host_steps
from dpdoctor.trace.model import Kind, Trace
from dpdoctor.trace.reader import read
from tests.builders.documents import REAL, complete, document, read_bytes

US = 1_000
MAIN, AUTOGRAD, GLOO_A, GLOO_B = 5, 6, 7, 8  # thread ids; the main one is the process's
RECORDED = Path(__file__).parents[1] / "data" / "traces"
WITH_COLLECTIVES = (
    "v100x2_ddp_rank1.json.gz",
    "a100x2_ddp_rank0_collective_args.json.gz",
    "a100x8_rank3.json.gz",
    "a100x16_sendrecv_rank0.json.gz",
    "mi300_resnet_rccl.json.gz",
    "two_ranks_of_128/rank-0.json.gz",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A trace with its steps, devices and collectives."""

    trace: Trace
    steps: HostSteps
    devices: tuple[DeviceEvents, ...]
    found: Collectives


def observe(trace: Trace) -> Observed:
    """Return what is made of a trace before its collectives are looked at closely."""
    steps = host_steps(trace)
    devices = device_events(trace, steps.thread)
    return Observed(trace=trace, steps=steps, devices=devices, found=collectives(trace, devices))


@functools.cache
def real(name: str) -> Observed:
    """Return one of the real traces that lie beside the repository."""
    return observe(read(REAL / name))


@functools.cache
def recorded(name: str) -> Observed:
    """Return one of the traces among the tests' data."""
    return observe(read(RECORDED / name))


class Kineto:
    """A trace that is being written; times in microseconds."""

    def __init__(self, **header: Any) -> None:
        self._header = header
        self._events: list[dict[str, Any]] = []
        self._correlations = count(100)

    def op(self, name: str, begin: float, end: float, *, thread: int = MAIN, **args: Any) -> None:
        """An operator."""
        self._add(name, begin, end, cat="cpu_op", tid=thread, args=args)

    def span(self, name: str, begin: float, end: float, *, thread: int = MAIN, **args: Any) -> None:
        """An annotation."""
        self._add(name, begin, end, cat="user_annotation", tid=thread, args=args)

    def steps(self, *edges: float) -> None:
        """The profiler's steps, one from each edge to the next."""
        for number, (begin, end) in enumerate(pairwise(edges)):
            self.span(f"ProfilerStep#{number}", begin, end)

    def kernel(
        self, name: str, begin: float, end: float, *, called: float, thread: int = MAIN, device: int = 0, **args: Any
    ) -> None:
        """A kernel with its launch, which takes 1 µs from `called`; communication is on a stream of its own."""
        correlation = next(self._correlations)
        stream = 20 if "nccl" in name else 7
        args_of_launch = {"correlation": correlation}
        self._add("cudaLaunchKernel", called, called + 1, cat="cuda_runtime", tid=thread, args=args_of_launch)
        placed = {"device": device, "stream": stream, "correlation": correlation, **args}
        self._add(name, begin, end, cat="kernel", pid=device, tid=stream, args=placed)

    def lost_kernel(self, name: str, begin: float, end: float, **args: Any) -> None:
        """A kernel without a launch."""
        self._add(name, begin, end, cat="kernel", pid=0, tid=20, args={"device": 0, "stream": 20, **args})

    def _add(self, name: str, begin: float, end: float, **fields: Any) -> None:
        self._events.append(complete(name, begin, end - begin, **fields))

    def write(self, path: Path) -> None:
        """Write it into a file."""
        path.write_bytes(document(*self._events, **self._header))

    def observe(self, folder: Path) -> Observed:
        """Write it into a folder, and read it back."""
        return observe(read_bytes(folder, document(*self._events, **self._header)))


def shapes(*sizes: int | Sequence[int], item: str = "float") -> dict[str, Any]:
    """Return arguments for tensors of these numbers of elements."""
    return {"Input Dims": [[size] for size in sizes], "Input type": [item] * len(sizes)}


def of_two_ranks(backend: str = "gloo") -> dict[str, Any]:
    """Return a header with one group of two ranks."""
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
    return {"distributedInfo": {"backend": backend, "rank": 0, "world_size": 2, "pg_config": groups}}


def covered_ns(span: tuple[int, int], others: NDArray[np.int64]) -> int:
    """Return how much of a span any of the others covers, one after the other in plain Python."""
    begin, end = span
    total, reached = 0, begin
    for other_begin, other_end in sorted(others.tolist()):
        if other_end > reached and other_begin < end:
            total += min(other_end, end) - max(other_begin, reached)
            reached = min(other_end, end)
    return total


def rows_named(trace: Trace, kind: Kind, start: str) -> NDArray[np.int64]:
    """Return the rows of a kind whose name begins so, by a plain loop."""
    rows = [
        row
        for row, (name, is_kind) in enumerate(zip(trace.events.name.tolist(), trace.events.kind == kind, strict=True))
        if is_kind and trace.names[name].startswith(start)
    ]
    return np.array(rows, np.int64)
