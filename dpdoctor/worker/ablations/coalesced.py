"""coalesced: gradients that the script reduces one by one are reduced in one call, once the last of them is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdoctor.worker.ablations import no_comm
from dpdoctor.worker.ablations._base import ONE_RANK, Ablation, AblationContext, Fault
from dpdoctor.worker.base.mode import Mode

if TYPE_CHECKING:
    from dpdoctor.worker.ablations._wire import Counted
    from dpdoctor.worker.timing.exchanges import Issued

NOTHING = "the script does not reduce several gradients one by one, as many of them in every step"
IN_EACH = "the script reduces gradients in several micro-batches of a step"
LEFT_OVER = "a step of its window reduced another number of gradients than the steps before"


class Coalesced(Ablation):
    """Takes away what each call costs whatever its size; what one tensor costs, and copies into it and back, stays.

    What the script does with a gradient between two calls, such as to divide it by the number of ranks, is done before
    ranks add it up instead of after: which is the same but for rounding.
    """

    priority = 2  # of what communication takes, no_comm gives all
    sets_apart = True

    def applies(self, mode: Mode) -> bool:
        """Return whether the mode's ranks communicate at all."""
        return mode.communicates

    def unfit(self, context: AblationContext) -> str | None:
        """Return why there are no calls that one could take the place of."""
        wire = context.wire
        if context.world_size == 1 or wire is None:
            return ONE_RANK
        if (reason := wire.unfit()) is not None:
            return reason
        if wire.num_by_gradient < 2:
            return NOTHING
        return IN_EACH if wire.reduces_each_micro_batch else None

    def begin(self, context: AblationContext) -> None:
        """Collect gradients instead of reducing them, until all of a step are there."""
        no_comm.wire(context).collect()

    def end(self, context: AblationContext) -> Fault | None:
        """Have each reduced by itself."""
        wire = no_comm.wire(context)
        is_waiting = wire.is_waiting
        wire.mend()
        return Fault(reason=LEFT_OVER, final=True) if is_waiting else None

    def unproved(self, counted: Counted, window: Issued) -> str | None:
        """Return why its window exchanged no less than others."""
        return counted.fewer(window)


ABLATION = Coalesced()
