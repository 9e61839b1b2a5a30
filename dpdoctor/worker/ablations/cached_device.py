"""cached_device: as cached_batches, but what the script copies to the model's device lies there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdoctor import units
from dpdoctor.worker.ablations._base import MEMORY_MARGIN, AblationContext
from dpdoctor.worker.ablations.cached_batches import CachedBatches
from dpdoctor.worker.base.mode import Mode

if TYPE_CHECKING:
    import torch


class CachedDevice(CachedBatches):
    """Takes away waiting for the loader and the copies to the device; less cached_batches, it is the copies."""

    priority = 4

    def applies(self, mode: Mode) -> bool:  # noqa: ARG002
        """Return whether there is a device other than the host."""
        import torch

        return torch.cuda.is_available()

    def unfit(self, context: AblationContext) -> str | None:
        """Return why the batches cannot be replayed, or lie on the device, or why the model lies on the host."""
        device = _device(context)
        if device is None:
            return "the script trains on the CPU"
        return super().unfit(context) or _lacks_memory(context, device)

    def begin(self, context: AblationContext) -> None:
        """Let the workers finish what they began, then replay from where the model lies."""
        context.replay.begin(_device(context))


def _device(context: AblationContext) -> torch.device | None:
    return next((p.device for p in context.wrapping.parameters() if p.is_cuda), None)


def _lacks_memory(context: AblationContext, device: torch.device) -> str | None:
    needed = int(MEMORY_MARGIN * context.replay.num_bytes(context.tally.loaders()))
    available = _available_on(device)
    if needed <= available:
        return None
    return f"{units.size(needed)} of the GPU's memory needed for batches, {units.size(max(0, available))} available"


def _available_on(device: torch.device) -> int:
    """Return the bytes of a GPU that stay free while this process takes as much as it took at most."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)


ABLATION = CachedDevice()
