"""no_comm: ranks neither reduce gradients nor gather parameters; each trains on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdoctor.worker.ablations._base import ONE_RANK, Ablation, AblationContext, Fault
from dpdoctor.worker.base.mode import Mode

if TYPE_CHECKING:
    from dpdoctor.worker.ablations._wire import Counted, Wire
    from dpdoctor.worker.timing.exchanges import Issued

SEVERAL = (
    "several modules train in turn: one of them may be between its forward and its backward pass when ranks begin to "
    "communicate again, and would miss it"
)
PASS_IS_OPEN = (
    "the script calls its model between the backward pass and the optimizer's step, and a pass that begins without "
    "communication cannot end with it"
)


class NoComm(Ablation):
    """Takes away the transfer, waiting for other ranks, and what both slow down that runs beside them."""

    priority = 1
    sets_apart = True

    def applies(self, mode: Mode) -> bool:
        """Return whether the mode's ranks communicate at all."""
        return mode.communicates

    def unfit(self, context: AblationContext) -> str | None:
        """Return why the ranks cannot part and come together again."""
        if context.world_size == 1 or context.wire is None:
            return ONE_RANK
        if len(context.wrapping.modules) > 1:
            return SEVERAL
        return PASS_IS_OPEN if context.watch.open_passes else context.wire.unfit()

    def begin(self, context: AblationContext) -> None:
        """Have no rank send anything."""
        wire(context).cut()

    def end(self, context: AblationContext) -> Fault | None:
        """Have them communicate again."""
        wire(context).mend()
        return None

    def unproved(self, counted: Counted, window: Issued) -> str | None:
        """Return why its window was not one without communication."""
        return counted.apart(window)


def wire(context: AblationContext) -> Wire:
    """Return what ranks exchange gradients by, which an ablation that is fit has."""
    assert context.wire is not None
    return context.wire


ABLATION = NoComm()
