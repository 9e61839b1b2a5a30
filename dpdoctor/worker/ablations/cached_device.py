"""cached_device: as cached_batches, but what the script copies to the model's device lies there already."""

from __future__ import annotations

from dpdoctor.worker.ablations._base import AblationContext
from dpdoctor.worker.ablations.cached_batches import CachedBatches
from dpdoctor.worker.base.mode import Mode


class CachedDevice(CachedBatches):
    """Takes away waiting for the loader and the copies to the device; less cached_batches, it is the copies."""

    priority = 4

    def applies(self, mode: Mode) -> bool:  # noqa: ARG002
        """Return whether there is a device other than the host."""
        import torch

        return torch.cuda.is_available()

    def unfit(self, context: AblationContext) -> str | None:
        """Return why the batches cannot be replayed, or why the model lies on the host."""
        if not any(parameter.is_cuda for parameter in context.wrapping.parameters()):
            return "the script trains on the CPU"
        return super().unfit(context)

    def begin(self, context: AblationContext) -> None:
        """Let the workers finish what they began, then replay from where the model lies."""
        context.replay.begin(next(p.device for p in context.wrapping.parameters() if p.is_cuda))


ABLATION = CachedDevice()
