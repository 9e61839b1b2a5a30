"""no_data_no_comm: no loader and no communication; what is left is the compute ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdoctor.worker.ablations import cached_batches, no_comm
from dpdoctor.worker.ablations._base import Ablation, AblationContext, Fault
from dpdoctor.worker.base.mode import Mode

if TYPE_CHECKING:
    from dpdoctor.worker.ablations._wire import Counted
    from dpdoctor.worker.timing.exchanges import Issued


class NoDataNoComm(Ablation):
    """Takes away both at once: gains do not add up where one hides behind the other."""

    priority = 2
    sets_apart = True
    replays = True

    def applies(self, mode: Mode) -> bool:
        """Return whether the mode's ranks communicate at all."""
        return no_comm.ABLATION.applies(mode)

    def unfit(self, context: AblationContext) -> str | None:
        """Return why either of the two cannot be taken away."""
        return cached_batches.ABLATION.unfit(context) or no_comm.ABLATION.unfit(context)

    def begin(self, context: AblationContext) -> None:
        """Take both away."""
        cached_batches.ABLATION.begin(context)
        no_comm.ABLATION.begin(context)

    def end(self, context: AblationContext) -> Fault | None:
        """Give both back."""
        no_comm.ABLATION.end(context)
        return cached_batches.ABLATION.end(context)

    def unproved(self, counted: Counted, window: Issued) -> str | None:
        """Return why its window was not one without communication."""
        return no_comm.ABLATION.unproved(counted, window)


ABLATION = NoDataNoComm()
