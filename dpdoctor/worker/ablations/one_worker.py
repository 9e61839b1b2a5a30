"""one_worker: a process fetches as the only worker of the script's loader would; its batches are thrown away."""

from __future__ import annotations

from dpdoctor.worker.ablations._base import AblationContext
from dpdoctor.worker.ablations._beside import Beside


class OneWorker(Beside):
    """Adds a loader process where the script has none: what it gains, and what it and the training cost each other."""

    priority = 3

    def unfit(self, context: AblationContext) -> str | None:
        """Return why no process can fetch for the training, or why one does already."""
        return context.companion.unneeded(context.tally.loaders()) or super().unfit(context)


ABLATION = OneWorker()
