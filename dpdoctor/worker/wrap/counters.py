"""What one step does, counted from a profile of it: operators, collectives and their bytes, allocations, inputs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from dpdoctor.records import Collective, Counters, InputTensor
from dpdoctor.trace.values import ITEM_BYTES
from dpdoctor.worker.base import structure
from dpdoctor.worker.wrap.operators import Operator, Recording, step_recording

# torch marks each collective with a span named after its backend: gloo:all_reduce, nccl:all_gather_into_tensor.
_SPAN = re.compile(r"^(?:gloo|nccl):_?(?P<kind>\w+?)(?:_base|_into_tensor|_tensor)?$")
# The operators of sharding: what they do, and which of their tensors is the whole. All have (output, input, ...).
_SHARDING = {"c10d::_allgather_base_": ("all_gather", 0), "c10d::_reduce_scatter_base_": ("reduce_scatter", 1)}
_INPUT = 1


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
        """Return what the step did; `inputs` are the tensors that entered it."""
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
