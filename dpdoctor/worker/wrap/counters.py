"""What one step does, counted from a recording of it: operators, collectives and their bytes, allocations, inputs.

torch's profiler or its observer records the operators, with the shapes and types of what they are given.

Where there is a GPU, the profiler must not run before the last window was measured, not even for the host alone: its
first session subscribes to CUPTI and stays subscribed (libkineto/src/init.cpp, until August 2026), and each launch is
slower from then on: by 10 to 20%, says pytorch's PR 146604. On an H100 with torch 2.11, most scripts that were bound by
launches took 1.1 to 1.4 times as long after a profile of one step as before, some no longer.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity

from dpdoctor import units
from dpdoctor.records import Collective, Counters, InputTensor
from dpdoctor.trace.values import ITEM_BYTES
from dpdoctor.worker.base import lines, structure
from dpdoctor.worker.base.profiler import Profile, let_others_finish

# torch marks each collective with a span named after its backend: gloo:all_reduce, nccl:all_gather_into_tensor.
_SPAN = re.compile(r"^(?:gloo|nccl):_?(?P<kind>\w+?)(?:_base|_into_tensor|_tensor)?$")
# The operators of sharding: what they do, and which of their tensors is the whole. All have (output, input, ...).
_SHARDING = {"c10d::_allgather_base_": ("all_gather", 0), "c10d::_reduce_scatter_base_": ("reduce_scatter", 1)}
_INPUT = 1

LOST = (
    "what torch's profiler recorded of a step, as proof of what it does, could not be written to {}{} and read again "
    "({}); TMPDIR may name another directory"
)


class LostStepError(Exception):
    """What was recorded of a step could not be written, or read again, as on a full disk."""


class StepProfile:
    """Profiles the host side of one step, by a recording that slows nothing afterwards."""

    def __init__(self, recording: Recording | None = None) -> None:
        self._recording = recording or step_recording()
        self._allocations = 0

    def start(self) -> None:
        """Begin the step."""
        self._recording.start()
        self._allocations = _device_allocations()

    def stop(self) -> None:
        """End the step."""
        self._allocations = _device_allocations() - self._allocations
        self._recording.stop()

    def counters(self, inputs: Iterable[torch.Tensor]) -> Counters:
        """Return what the step did; `inputs` are the tensors that entered it.

        Raises:
            LostStepError: nobody knows.
        """
        found = self._recording.recorded()
        return Counters(
            operators=sum(not operator.is_span for operator in found.operators),
            collectives=_collectives(found.operators),
            allocations=self._allocations if torch.cuda.is_available() else found.host_allocations,
            inputs=tuple(
                InputTensor(
                    dtype=str(t.dtype).removeprefix("torch."),
                    shape=structure.shape(t),
                    num_bytes=t.numel() * t.element_size(),
                )
                for t in inputs
            ),
        )


def _device_allocations() -> int:
    """Return how many blocks torch's allocators of all GPUs have given out since the process began."""
    found = (torch.cuda.memory_stats(index) for index in range(torch.cuda.device_count()))
    return sum(int(stats.get("allocation.all.allocated", 0)) for stats in found)


def _collectives(operators: Sequence[Operator]) -> dict[str, Collective]:
    """Return calls and bytes by kind: bytes of the whole tensor, as nccl-tests count them, not of a rank's part.

    The operators of sharding name their whole tensor; everything else is read from the backend's spans. The span that
    such an operator makes is left out: gloo even does a reduce-scatter as an all-reduce.
    """
    calls: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    own_spans: Counter[tuple[bool, int]] = Counter()
    for operator in operators:
        if not operator.is_span and operator.name in _SHARDING:
            kind, whole = _SHARDING[operator.name]
            sizes = _sizes(operator)
            calls[kind] += 1
            num_bytes[kind] += sizes[whole]
            own_spans[kind == "all_gather", sizes[_INPUT]] += 1
    for operator in operators:
        match = _SPAN.match(operator.name)
        if match and operator.is_span:
            kind, size = match["kind"], sum(_sizes(operator))
            if own_spans["all_gather" in kind, size]:
                own_spans["all_gather" in kind, size] -= 1
            else:
                calls[kind] += 1
                num_bytes[kind] += size
    return {kind: Collective(count=calls[kind], num_bytes=num_bytes[kind]) for kind in sorted(calls)}


def _sizes(operator: Operator) -> list[int]:
    """Return the bytes of each tensor that an operator is given; 0 for what is no tensor of a known type."""
    return [
        math.prod(shape) * ITEM_BYTES[kind.lower()] if kind.lower() in ITEM_BYTES else 0
        for shape, kind in zip(operator.dims, operator.types, strict=True)
    ]


# Kineto's event for each block of memory that is taken or given back.
_MEMORY = "[memory]"
# Inside of it batches are received that loader processes sent meanwhile: of this step, of later ones, as they come.
_RECEIVING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator, or a span that torch or the script named.

    Attributes:
        dims: by input, as a profiler tells them: a tensor's shape, a list's shapes, or empty.
        types: by input: float, c10::BFloat16; or what it is instead of a tensor.
    """

    name: str
    is_span: bool
    dims: Sequence[Any]
    types: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What ran. `host_allocations`: blocks that the host's allocator gave out, if it was looked at."""

    operators: Sequence[Operator]
    host_allocations: int = 0


class Recording(Protocol):
    """Records all threads from `start` to `stop`; `recorded` is asked once."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""

    def recorded(self) -> Recorded:
        """Return what ran, without what arrived from loader processes.

        Raises:
            LostStepError: nobody knows.
        """


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    args: dict[str, Any] = {}
    ts: float = 0.0
    dur: float = 0.0
    tid: Any = None


class _Trace(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815 - Kineto's name


class ByProfiler:
    """By torch.profiler, of the host alone."""

    def __init__(self) -> None:
        self._profile = Profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True)

    def start(self) -> None:
        """Begin."""
        self._profile.start()

    def stop(self) -> None:
        """End."""
        self._profile.stop()

    def recorded(self) -> Recorded:
        """Return what ran, and how many blocks of memory the host took."""
        events = self._exported()
        # Else it stays until Python collects cycles: 40 MB of 300 layers, between the script's blocks.
        self._profile.profiler = None
        spans = [(event.tid, event.ts, event.ts + event.dur) for event in events if event.name == _RECEIVING]
        events = [event for event in events if not any(t == event.tid and a <= event.ts <= b for t, a, b in spans)]
        return Recorded(
            operators=[
                Operator(
                    name=event.name,
                    is_span=event.cat == "user_annotation",
                    dims=event.args.get("Input Dims", ()),
                    types=event.args.get("Input type", ()),
                )
                for event in events
                if event.cat in {"cpu_op", "user_annotation"}
            ],
            # An event of a negative size gives a block back.
            host_allocations=sum(event.name == _MEMORY and event.args.get("Bytes", 0) > 0 for event in events),
        )

    def _exported(self) -> list[_Event]:
        try:
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory, "step.json")
                self._profile.export_chrome_trace(str(path))
                return msgspec.json.decode(path.read_bytes(), type=_Trace).traceEvents
        except (OSError, RuntimeError, msgspec.DecodeError) as error:
            place, free = "a directory for temporary files", ""
            with contextlib.suppress(OSError):  # it may be gone, or no disk have room for any
                place = tempfile.gettempdir()
                free = f", where {units.size(shutil.disk_usage(place).free)} are free,"
            raise LostStepError(LOST.format(place, free, lines.raised(error))) from error


# The observer writes names as they are, so that its file need not be JSON: only what holds no names is.
_NODES = re.compile(
    r'^ +"id": (\d+), "name": "(.*?)", "ctrl_deps": (\d+),\n(.*?)(?=^ +"id": |\Z)', re.DOTALL | re.MULTILINE
)
_INPUTS = re.compile(r'"shapes": (\[.*?\]), "types": (\[.*?\]), "strides": ', re.DOTALL)
_SPAN_SCOPE = '"name": "scope", "type": "uint64", "value": 7}'
_TENSOR = re.compile(r"^Tensor\((.*)\)$")
# Nodes of the observer's own, which stand for processes and threads.
_OF_OBSERVER = "[pytorch|profiler|execution_trace|"


class ByObserver:
    """By torch's ExecutionTraceObserver, which leaves the driver alone.

    Its file lies in memory: compiled code that opens files does not know of those that the script only seems to have.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("dpdoctor-step")
        self._observer = ExecutionTraceObserver()

    def start(self) -> None:
        """Begin."""
        self._observer.register_callback(f"/proc/self/fd/{self._file}")
        self._observer.start()

    def stop(self) -> None:
        """End, once backends have ended their spans: one that has not is not written."""
        let_others_finish()
        self._observer.stop()
        self._observer.unregister_callback()

    def recorded(self) -> Recorded:
        """Return what ran."""
        with os.fdopen(self._file, encoding="utf-8", errors="replace") as file:
            file.seek(0)
            return Recorded(operators=[*_observed(file.read())])


def _observed(text: str) -> Iterator[Operator]:
    """Yield the operators in an observer's file, but for those inside of a receiving one."""
    nodes = [(int(n), name, int(parent), rest) for n, name, parent, rest in _NODES.findall(text)]
    parents = {number: parent for number, _, parent, _ in nodes}
    receiving = {number for number, name, _, _ in nodes if name == _RECEIVING}
    for number, name, _, rest in nodes:
        if name.startswith(_OF_OBSERVER) or not receiving.isdisjoint(_above(number, parents)):
            continue
        found = _INPUTS.search(rest)
        dims, types = (msgspec.json.decode(part) for part in found.groups()) if found else ([], [])
        yield Operator(name=name, is_span=_SPAN_SCOPE in rest, dims=dims, types=[_TENSOR.sub(r"\1", t) for t in types])


def _above(number: int, parents: dict[int, int]) -> set[int]:
    """Return the nodes that hold one, it among them; the first of all says that it holds itself."""
    found: set[int] = set()
    while number in parents and number not in found:
        found.add(number)
        number = parents[number]
    return found


def step_recording() -> Recording:
    """Return what may record a step in this process, with windows to be measured after it."""
    return ByObserver() if torch.cuda.is_available() and not _has_observer() else ByProfiler()


def _has_observer() -> bool:
    """Return whether the script has an observer: there is one at a time, and another one would end it."""
    return any(type(found) is ExecutionTraceObserver and found.is_registered for found in gc.get_objects())
