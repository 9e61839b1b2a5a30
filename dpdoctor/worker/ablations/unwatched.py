"""unwatched: dpdoctor sees nothing but the ends of steps, in turns with steps that it watches."""

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
        """Take the hooks out, and have turns begin."""
        context.hooks.take_out()
        context.hooks.in_turns = True

    def end(self, context: AblationContext) -> Fault | None:
        """Put them back."""
        context.hooks.in_turns = False
        context.hooks.put_back()
        return None

    def unproved(self, counted: object, window: object) -> str | None:  # noqa: ARG002
        """Return None: what ranks exchange is not counted in its windows."""
        return None


ABLATION = Unwatched()
