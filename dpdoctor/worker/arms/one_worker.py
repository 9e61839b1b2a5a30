"""one_worker: a process fetches as the only worker of the script's loader would; its batches are thrown away."""

from __future__ import annotations

from dpdoctor.worker.arms._base import Bench, Fault
from dpdoctor.worker.arms.cached_batches import CachedBatches


class OneWorker(CachedBatches):
    """Adds a loader process where the script has none: what it gains, and what it and the training cost each other."""

    summary = (
        "one loader process fetches and hands over, as num_workers=1 would; kept batches take the place of its own"
    )
    priority = 3

    def unfit(self, bench: Bench) -> str | None:
        """Return why no process can fetch for the training, or why one does already."""
        return super().unfit(bench) or bench.companion.unfit(bench.tally.loaders())

    def begin(self, bench: Bench) -> None:
        """Replay, each batch when the process has handed over one of its own."""
        bench.replay.begin(wait=bench.companion.take)
        bench.companion.begin(bench.tally.loaders())

    def end(self, bench: Bench) -> Fault | None:
        """Let the process end, and ask the loader again."""
        failure = bench.companion.end()
        fault = super().end(bench)
        return fault if failure is None else Fault(reason=failure, final=True)


ARM = OneWorker()
