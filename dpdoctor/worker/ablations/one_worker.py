"""one_worker: a process fetches as the only worker of the script's loader would; its batches are thrown away."""

from __future__ import annotations

from dpdoctor.spec import ONE_WORKER, LoaderSetting
from dpdoctor.worker.ablations._base import AblationContext, Fault
from dpdoctor.worker.ablations.cached_batches import CachedBatches


class Beside(CachedBatches):
    """Workers of that setting fetch what the script's loader would; kept batches take the place of theirs."""

    def __init__(self, setting: LoaderSetting = ONE_WORKER) -> None:
        self._setting = setting

    def unfit(self, context: AblationContext) -> str | None:
        """Return why no process can fetch for the training."""
        return super().unfit(context) or context.companion.unfit(context.tally.loaders())

    def begin(self, context: AblationContext) -> None:
        """Replay, each batch when a worker has handed over one of its own."""
        context.replay.begin(wait=context.companion.take)
        context.companion.begin(context.tally.loaders(), self._setting)

    def end(self, context: AblationContext) -> Fault | None:
        """Let the workers end, and ask the loader again."""
        failure = context.companion.end()
        fault = super().end(context)
        return fault if failure is None else Fault(reason=failure, final=not context.companion.may_do_better)


class OneWorker(Beside):
    """Adds a loader process where the script has none: what it gains, and what it and the training cost each other."""

    priority = 3

    def unfit(self, context: AblationContext) -> str | None:
        """Return why no process can fetch for the training, or why one does already."""
        return context.companion.unneeded(context.tally.loaders()) or super().unfit(context)


ABLATION = OneWorker()
