"""What fetches beside the training in the windows of an arm: workers of ours in place of the script's."""

from __future__ import annotations

from dpdoctor.spec import ONE_WORKER, LoaderSetting
from dpdoctor.worker.arms._base import Bench, Fault
from dpdoctor.worker.arms.cached_batches import CachedBatches


class Beside(CachedBatches):
    """Workers of that setting fetch what the script's loader would; kept batches take the place of theirs."""

    summary = "loader processes of another setting fetch and hand over; kept batches take the place of theirs"

    def __init__(self, setting: LoaderSetting = ONE_WORKER) -> None:
        self._setting = setting

    def unfit(self, bench: Bench) -> str | None:
        """Return why no process can fetch for the training."""
        return super().unfit(bench) or bench.companion.unfit(bench.tally.loaders())

    def begin(self, bench: Bench) -> None:
        """Replay, each batch when a worker has handed over one of its own."""
        bench.replay.begin(wait=bench.companion.take)
        bench.companion.begin(bench.tally.loaders(), self._setting)

    def end(self, bench: Bench) -> Fault | None:
        """Let the workers end, and ask the loader again."""
        failure = bench.companion.end()
        fault = super().end(bench)
        return fault if failure is None else Fault(reason=failure, final=not bench.companion.may_do_better)
