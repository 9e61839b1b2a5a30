"""cached_batches: a few real batches are given to the script again and again, and the loader is not asked."""

from __future__ import annotations

from dpdoctor.worker.arms._base import Arm, Bench, Fault


class CachedBatches(Arm):
    """Takes away waiting for the loader, and what its processes take of the cores; copies to a device stay."""

    summary = "batches are replayed from the host's memory, the loader is not asked"
    priority = 0
    replays = True

    def unfit(self, bench: Bench) -> str | None:
        """Return why the loader's batches cannot be replayed."""
        return bench.replay.unfit(bench.tally.loaders())

    def begin(self, bench: Bench) -> None:
        """Let the workers finish what they began, then replay."""
        bench.replay.begin()

    def end(self, bench: Bench) -> Fault | None:
        """Ask the loader again."""
        reason, final = bench.replay.end(bench.tally.loaders())
        return Fault(reason=reason, final=final) if reason else None


ARM = CachedBatches()
