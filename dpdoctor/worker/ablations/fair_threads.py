"""fair_threads: torch computes with no more threads than the rank's share of the cores."""

from __future__ import annotations

from dpdoctor.worker.ablations._base import Ablation, AblationContext, Fault


class FairThreads(Ablation):
    """Takes back a number of threads that the script set itself."""

    priority = 1

    def __init__(self) -> None:
        self._threads = 0

    def unfit(self, context: AblationContext) -> str | None:
        """Return that the script left the threads as they were, which is as many as in the ablation."""
        import torch

        if torch.get_num_threads() <= context.fair_threads:
            return "torch computes with no more threads than the rank's share of the cores"
        return None

    def begin(self, context: AblationContext) -> None:
        """Leave torch the share only."""
        import torch

        self._threads = torch.get_num_threads()
        torch.set_num_threads(context.fair_threads)

    def end(self, context: AblationContext) -> Fault | None:  # noqa: ARG002
        """Give the script its threads back."""
        import torch

        torch.set_num_threads(self._threads)
        return None


ABLATION = FairThreads()
