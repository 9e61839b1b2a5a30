"""What one step does, counted from a profile of it: operators, collectives and their bytes, inputs."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from dpdoctor.records import Collective, Counters, InputTensor

# torch marks each collective with a span named after its backend: gloo:all_reduce, nccl:all_gather_into_tensor.
_COLLECTIVE = re.compile(r"^(?:gloo|nccl):(?P<name>\w+)$")
# Names of element types in Kineto's "Input type".
_ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "long int": 8,
    "int": 4,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815 - Kineto's name


class StepProfile:
    """Profiles the host side of one step. No GPU tracing: it would slow the process for the rest of its life."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)

    def start(self) -> None:
        """Begin the step."""
        self._profile.start()

    def stop(self) -> None:
        """End the step."""
        self._profile.stop()

    def counters(self, inputs: Iterable[torch.Tensor]) -> Counters:
        """Return what the step did; `inputs` are the tensors that entered it."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "step.json")
            self._profile.export_chrome_trace(str(path))
            events = msgspec.json.decode(path.read_bytes(), type=_Trace).traceEvents
        return Counters(
            operators=sum(event.cat == "cpu_op" for event in events),
            collectives=_collectives(events),
            inputs=tuple(
                InputTensor(
                    dtype=str(t.dtype).removeprefix("torch."),
                    shape=tuple(t.shape),
                    num_bytes=t.numel() * t.element_size(),
                )
                for t in inputs
            ),
        )


def _collectives(events: Iterable[_Event]) -> dict[str, Collective]:
    found: dict[str, Collective] = {}
    for event in events:
        match = _COLLECTIVE.match(event.name)
        if match and event.cat == "user_annotation":
            before = found.get(match["name"], Collective(count=0, num_bytes=0))
            num_bytes = before.num_bytes + _input_bytes(event.args)
            found[match["name"]] = Collective(count=before.count + 1, num_bytes=num_bytes)
    return found


def _input_bytes(args: dict[str, Any]) -> int:
    """Return the bytes of the tensors in an event's "Input Dims"; unknown element types count nothing."""
    dims, types = args.get("Input Dims", []), args.get("Input type", [])
    return sum(
        math.prod(shape) * _ITEM_BYTES[kind] for shape, kind in zip(dims, types, strict=True) if kind in _ITEM_BYTES
    )
