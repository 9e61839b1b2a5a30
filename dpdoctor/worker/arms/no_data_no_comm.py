"""no_data_no_comm: no loader and no communication; what is left is the compute ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdoctor.worker.arms import cached_batches, no_comm
from dpdoctor.worker.arms._base import Arm, Bench, Fault
from dpdoctor.worker.modes._base import Mode

if TYPE_CHECKING:
    from dpdoctor.worker.facts.exchanges import Issued
    from dpdoctor.worker.proofs import Counted


class NoDataNoComm(Arm):
    """Takes away both at once: gains do not add up where one hides behind the other."""

    summary = "batches are replayed and ranks do not communicate: what computing alone takes"
    priority = 2
    sets_apart = True
    replays = True

    def applies(self, mode: Mode) -> bool:
        """Return whether the mode's ranks communicate at all."""
        return no_comm.ARM.applies(mode)

    def unfit(self, bench: Bench) -> str | None:
        """Return why either of the two cannot be taken away."""
        return cached_batches.ARM.unfit(bench) or no_comm.ARM.unfit(bench)

    def begin(self, bench: Bench) -> None:
        """Take both away."""
        cached_batches.ARM.begin(bench)
        no_comm.ARM.begin(bench)

    def end(self, bench: Bench) -> Fault | None:
        """Give both back."""
        no_comm.ARM.end(bench)
        return cached_batches.ARM.end(bench)

    def unproved(self, counted: Counted, window: Issued) -> str | None:
        """Return why its window was not one without communication."""
        return no_comm.ARM.unproved(counted, window)


ARM = NoDataNoComm()
