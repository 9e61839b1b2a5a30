"""cached_device: as cached_batches, but what the script copies to the model's device lies there already."""

from __future__ import annotations

from dpdoctor.worker.arms._base import Bench
from dpdoctor.worker.arms.cached_batches import CachedBatches
from dpdoctor.worker.modes._base import Mode


class CachedDevice(CachedBatches):
    """Takes away waiting for the loader and the copies to the device; less cached_batches, it is the copies."""

    summary = "batches are replayed from the device's memory: no loader, no copies to the device"
    priority = 4

    def applies(self, mode: Mode) -> bool:  # noqa: ARG002
        """Return whether there is a device other than the host."""
        import torch

        return torch.cuda.is_available()

    def unfit(self, bench: Bench) -> str | None:
        """Return why the batches cannot be replayed, or why the model lies on the host."""
        if not any(parameter.is_cuda for parameter in bench.adopter.parameters()):
            return "the script trains on the CPU"
        return super().unfit(bench)

    def begin(self, bench: Bench) -> None:
        """Let the workers finish what they began, then replay from where the model lies."""
        bench.replay.begin(next(p.device for p in bench.adopter.parameters() if p.is_cuda))


ARM = CachedDevice()
