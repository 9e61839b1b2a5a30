"""beside_fetching: batches are replayed while a process fetches as a worker of the script's loader would."""

from __future__ import annotations

from dpdoctor.worker.arms._base import Arm, Bench, Fault


class BesideFetching(Arm):
    """Adds a loader process: what it and the training cost each other is what more workers cost the script."""

    summary = "batches are replayed while a loader process fetches, to see how they slow each other"
    priority = 3
    replays = True

    def unfit(self, bench: Bench) -> str | None:
        """Return why no process can fetch beside the training, or why that is known already."""
        return bench.replay.unfit(bench.tally.loaders()) or bench.companion.unfit(bench.tally.loaders())

    def begin(self, bench: Bench) -> None:
        """Replay, and fetch beside it."""
        bench.replay.begin()
        bench.companion.begin(bench.tally.loaders())

    def end(self, bench: Bench) -> Fault | None:
        """Let the process end, and ask the loader again."""
        failure = bench.companion.end()
        reason, final = bench.replay.end(bench.tally.loaders())
        if failure is not None:
            return Fault(reason=failure, final=True)
        return Fault(reason=reason, final=final) if reason else None


ARM = BesideFetching()
