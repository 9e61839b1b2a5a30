"""cached_batches: a few real batches are given to the script again and again, and the loader is not asked."""

from __future__ import annotations

from dpdoctor.worker.ablations._base import Ablation, AblationContext, Fault


class CachedBatches(Ablation):
    """Takes away waiting for the loader, and what its processes take of the cores; copies to a device stay."""

    priority = 0
    replays = True

    def unfit(self, context: AblationContext) -> str | None:
        """Return why the loader's batches cannot be replayed."""
        return context.replay.unfit(context.tally.loaders())

    def begin(self, context: AblationContext) -> None:
        """Let the workers finish what they began, then replay."""
        context.replay.begin()

    def end(self, context: AblationContext) -> Fault | None:
        """Ask the loader again."""
        reason, final = context.replay.end(context.tally.loaders())
        return Fault(reason=reason, final=final) if reason else None


ABLATION = CachedBatches()
