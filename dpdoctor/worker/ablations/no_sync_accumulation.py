"""no_sync_accumulation: of the micro-batches of a step only the last one's backward pass reduces gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpdoctor.worker.ablations import no_comm
from dpdoctor.worker.ablations._base import Ablation, AblationContext, Fault
from dpdoctor.worker.base.mode import Mode

if TYPE_CHECKING:
    from dpdoctor.worker.ablations._wire import Counted
    from dpdoctor.worker.timing.exchanges import Issued

LEAST_MICRO_BATCHES = 2


class NoSyncAccumulation(Ablation):
    """Takes away what `no_sync` (ddp) or `set_requires_gradient_sync` (fsdp) would, were they in the script."""

    priority = 1  # fits only scripts that accumulate, and those are the ones it is for
    # A step with fewer micro-batches than usual, at the end of an epoch say, reduces nothing.
    sets_apart = True

    def __init__(self) -> None:
        self._micro_batches = 0

    def applies(self, mode: Mode) -> bool:
        """Return whether the mode's ranks communicate at all."""
        return mode.communicates

    def unfit(self, context: AblationContext) -> str | None:
        """Return why there is no last micro-batch to wait for."""
        counts = set(context.watch.micro_batches)
        self._micro_batches = max(counts, default=0)
        if self._micro_batches < LEAST_MICRO_BATCHES:
            return "the script does not accumulate gradients: each optimizer steps after one backward pass"
        if len(counts) != 1:
            return (
                "the number of micro-batches changes from step to step, or from one model to another, so that the last "
                "one is not known before"
            )
        if context.wire is not None and not context.wire.reduces_each_micro_batch:
            return "the script reduces its gradients once in a step already"
        return no_comm.ABLATION.unfit(context)

    def begin(self, context: AblationContext) -> None:
        """Have every forward say whether its backward pass reduces."""
        wire = no_comm.wire(context)

        def call(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            is_last = context.watch.micro_batch >= self._micro_batches
            wire.mend() if is_last else wire.hold()
            return target(*args, **kwargs)

        context.watch.through = call

    def end(self, context: AblationContext) -> Fault | None:
        """Have every backward pass reduce."""
        context.watch.through = None
        no_comm.wire(context).mend()
        if set(context.watch.micro_batches) == {self._micro_batches}:
            return None
        return Fault(reason="a step of its window had another number of micro-batches", final=False)

    def unproved(self, counted: Counted, window: Issued) -> str | None:
        """Return why its window exchanged no less than others."""
        return counted.fewer(window)


ABLATION = NoSyncAccumulation()
