"""Memory of dpdoctor's own in the script's process, apart from where malloc puts what the script trains with.

glibc's malloc goes by what it has seen. A large block that is freed raises the size from which blocks are mapped one
by one, and with it how much of the heap's free end is kept (mallopt(3), M_MMAP_THRESHOLD). A block that stays may lie
where the script's gradients lay: they come to the heap's end then, and go back to the kernel with every `zero_grad()`.
So what watching takes from malloc changes how many pages each later step has to take anew. Seen on the CPU with
ResNet-18 and batches of 8, while torch's profiler kept what it had recorded of the proof: none in most launches of the
bare script, 4,600 or 13,800 in all that were watched, whose steps took up to 52 ms instead of 34.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import nn

from dpdoctor.worker.base import structure

# What is smaller fits between the script's blocks: it is never mapped one by one, and its end does not trim the heap.
SMALL = 1 << 16
# Of gradients whose places are kept: in that step they are there twice.
MOST_KEPT = 1 << 28


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor in the host's memory, laid out as `clone` would; nothing has changed it yet.

    Views that torch has of a tensor's bits, as of a conjugate, are resolved.
    """
    is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_quantized
    if not is_plain or tensor.nbytes < SMALL:
        return tensor.to("cpu", copy=True)
    memory = mmap.mmap(-1, tensor.nbytes)
    shape, strides = tensor.shape, torch.empty_like(tensor, device="meta").stride()
    torch.frombuffer(memory, dtype=tensor.dtype).as_strided(shape, strides).copy_(tensor)
    # Another view of the same memory, whose version begins at 0.
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(shape, strides)


@torch.no_grad()
def gradient_places(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """Return what keeps the blocks of gradients on the host taken while it is held: they themselves, or such as large.

    What malloc gives out meanwhile, and stays, comes to lie elsewhere. Nothing where they take more than MOST_KEPT.
    """
    with torch._C.DisableTorchFunctionSubclass():
        on_host = [(p, structure.local(p)) for p in parameters if p.device.type == "cpu"]
        if sum(own.nbytes for _, own in on_host) > MOST_KEPT:
            return []
        # In the order in which a backward pass comes to them.
        return [torch.empty_like(own) if p.grad is None else structure.local(p.grad) for p, own in reversed(on_host)]
