"""What of a rank's memory holds what, looked at once, between two steps; and how many pages of it are new."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Sequence

import psutil
import torch
from torch import nn
from torch.optim import Optimizer

from dpdoctor.records import MemoryRecord
from dpdoctor.worker.base import structure


@torch.no_grad()
def memory(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], *, at_ns: int, window: int) -> MemoryRecord:
    """Return what the tensors of training take on this rank and, of GPUs, what torch's allocator holds.

    Only tensors count that lie where the first parameter does: on the host or on GPUs. A gradient is there until the
    script sets it to None. What lies in one storage counts once.
    """
    trained = structure.trained(modules, optimizers)
    own = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    kind = trained[0].device.type if trained else "cpu"
    held = set[int]()

    def size(tensors: Iterable[torch.Tensor]) -> int:
        return sum(_size(tensor, kind, held) for tensor in tensors)

    on_gpu, devices = kind == "cuda", range(torch.cuda.device_count())
    return MemoryRecord(
        at_ns=at_ns,
        window=window,
        parameters_bytes=size([*trained, *own]),
        gradients_bytes=size(parameter.grad for parameter in trained if parameter.grad is not None),
        optimizer_bytes=size(tensor for optimizer in optimizers for tensor in structure.tensors(optimizer.state)),
        allocated_bytes=sum(map(torch.cuda.memory_allocated, devices)) if on_gpu else None,
        peak_allocated_bytes=sum(map(torch.cuda.max_memory_allocated, devices)) if on_gpu else None,
        reserved_bytes=sum(map(torch.cuda.memory_reserved, devices)) if on_gpu else None,
        resident_bytes=psutil.Process().memory_info().rss,
    )


def _size(tensor: torch.Tensor, kind: str, held: set[int]) -> int:
    """Return the bytes of a tensor's storage; 0 where it lies elsewhere or is counted already."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            storage = structure.local(tensor).untyped_storage()
            place, num_bytes = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError):  # such as a sparse tensor's, which has none
            return 0
    if storage.device.type != kind or place in held:
        return 0
    held.add(place)
    return num_bytes


def page_faults() -> int:
    """Return how many pages this process has taken from the kernel so far, but for those that were read from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
