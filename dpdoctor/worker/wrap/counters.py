"""What one step does, counted from a profile of it: operators, collectives and their bytes, allocations, inputs."""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity

from dpdoctor.records import Collective, Counters, InputTensor
from dpdoctor.trace.sizes import ITEM_BYTES
from dpdoctor.worker.base import layouts
from dpdoctor.worker.base.profiler import Profile

# torch marks each collective with a span named after its backend: gloo:all_reduce, nccl:all_gather_into_tensor.
_SPAN = re.compile(r"^(?:gloo|nccl):_?(?P<kind>\w+?)(?:_base|_into_tensor|_tensor)?$")
# The operators of sharding: what they do, and which of their tensors is the whole. All have (output, input, ...).
_SHARDING = {"c10d::_allgather_base_": ("all_gather", 0), "c10d::_reduce_scatter_base_": ("reduce_scatter", 1)}
_INPUT = 1
# Kineto's event for each block of memory that is taken or given back.
_MEMORY = "[memory]"


# Inside of it batches are received that loader processes sent meanwhile: of this step, of later ones, as they come.
_RECEIVING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    args: dict[str, Any] = {}
    ts: float = 0.0
    dur: float = 0.0
    tid: Any = None


class _Trace(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815 - Kineto's name


class StepProfile:
    """Profiles the host side of one step. No GPU tracing: it would slow the process for the rest of its life."""

    def __init__(self) -> None:
        self._on_devices = torch.cuda.is_available()
        self._profile = Profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=not self._on_devices
        )
        self._allocations = 0

    def start(self) -> None:
        """Begin the step."""
        self._profile.start()
        self._allocations = _device_allocations()

    def stop(self) -> None:
        """End the step."""
        self._allocations = _device_allocations() - self._allocations
        self._profile.stop()

    def counters(self, inputs: Iterable[torch.Tensor]) -> Counters:
        """Return what the step did; `inputs` are the tensors that entered it."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "step.json")
            self._profile.export_chrome_trace(str(path))
            events = _of_the_step(msgspec.json.decode(path.read_bytes(), type=_Trace).traceEvents)
        return Counters(
            operators=sum(event.cat == "cpu_op" for event in events),
            collectives=_collectives(events),
            allocations=self._allocations if self._on_devices else _host_allocations(events),
            inputs=tuple(
                InputTensor(
                    dtype=str(t.dtype).removeprefix("torch."),
                    shape=layouts.shape(t),
                    num_bytes=t.numel() * t.element_size(),
                )
                for t in inputs
            ),
        )


def _of_the_step(events: Sequence[_Event]) -> list[_Event]:
    """Return events without those of receiving batches from loader processes."""
    spans = [(event.tid, event.ts, event.ts + event.dur) for event in events if event.name == _RECEIVING]
    return [event for event in events if not any(t == event.tid and a <= event.ts <= b for t, a, b in spans)]


def _device_allocations() -> int:
    """Return how many blocks torch's allocators of all GPUs have given out since the process began."""
    found = (torch.cuda.memory_stats(index) for index in range(torch.cuda.device_count()))
    return sum(int(stats.get("allocation.all.allocated", 0)) for stats in found)


def _host_allocations(events: Sequence[_Event]) -> int:
    """Return how many blocks the host's allocator gave out; an event of a negative size gives one back."""
    return sum(event.name == _MEMORY and event.args.get("Bytes", 0) > 0 for event in events)


def _collectives(events: Sequence[_Event]) -> dict[str, Collective]:
    """Return calls and bytes by kind: bytes of the whole tensor, as nccl-tests count them, not of a rank's part.

    The operators of sharding name their whole tensor; everything else is read from the backend's spans. The span that
    such an operator makes is left out: gloo even does a reduce-scatter as an all-reduce.
    """
    calls: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    own_spans: Counter[tuple[bool, int]] = Counter()
    for event in events:
        if event.cat == "cpu_op" and event.name in _SHARDING:
            kind, whole = _SHARDING[event.name]
            sizes = _sizes(event.args)
            calls[kind] += 1
            num_bytes[kind] += sizes[whole]
            own_spans[kind == "all_gather", sizes[_INPUT]] += 1
    for event in events:
        match = _SPAN.match(event.name)
        if match and event.cat == "user_annotation":
            kind, size = match["kind"], sum(_sizes(event.args))
            if own_spans["all_gather" in kind, size]:
                own_spans["all_gather" in kind, size] -= 1
            else:
                calls[kind] += 1
                num_bytes[kind] += size
    return {kind: Collective(count=calls[kind], num_bytes=num_bytes[kind]) for kind in sorted(calls)}


def _sizes(args: dict[str, Any]) -> list[int]:
    """Return the bytes of each tensor in an event's "Input Dims"; 0 for what is no tensor of a known type."""
    dims, types = args.get("Input Dims", []), args.get("Input type", [])
    return [
        math.prod(shape) * ITEM_BYTES[kind.lower()] if kind.lower() in ITEM_BYTES else 0
        for shape, kind in zip(dims, types, strict=True)
    ]
