"""unwatched: dpdoctor sees nothing but the ends of steps."""

from __future__ import annotations

from dpdoctor.worker.ablations._base import Ablation, AblationContext, Fault
from dpdoctor.worker.base.mode import Mode


class Unwatched(Ablation):
    """Takes out what dpdoctor adds to a step, where a script is never also run bare."""

    priority = 1

    def applies(self, mode: Mode) -> bool:
        """Return whether the mode has no bare launches."""
        return mode.only_observes

    def unfit(self, context: AblationContext) -> str | None:
        """Return why steps must be seen, or need not go unseen."""
        return context.hooks.unfit()

    def begin(self, context: AblationContext) -> None:
        """Take the hooks out."""
        context.hooks.take_out()

    def end(self, context: AblationContext) -> Fault | None:
        """Put them back."""
        context.hooks.put_back()
        return None

    def unproved(self, counted: object, window: object) -> str | None:  # noqa: ARG002
        """Return None: what ranks exchange is not counted in its windows."""
        return None


ABLATION = Unwatched()
