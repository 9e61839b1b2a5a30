"""fair_threads: torch computes with no more threads than the rank's share of the cores."""

from __future__ import annotations

import os

from dpdoctor.worker.arms._base import Arm, Bench, Fault

# What the rank was started with: the cores divided by the ranks.
SHARE_VARIABLE = "OMP_NUM_THREADS"


class FairThreads(Arm):
    """Takes back a number of threads that the script set itself."""

    summary = "torch computes with the rank's share of the cores only"
    priority = 1

    def __init__(self) -> None:
        self._threads = 0

    def unfit(self, bench: Bench) -> str | None:  # noqa: ARG002
        """Return that the script left the threads as they were, which is as many as in the arm."""
        import torch

        share = _share()
        if share is None:
            return f"{SHARE_VARIABLE} does not say what the rank's share of the cores is"
        if torch.get_num_threads() <= share:
            return "torch computes with no more threads than the rank's share of the cores"
        return None

    def begin(self, bench: Bench) -> None:  # noqa: ARG002
        """Leave torch the share only."""
        import torch

        self._threads = torch.get_num_threads()
        torch.set_num_threads(_share() or self._threads)

    def end(self, bench: Bench) -> Fault | None:  # noqa: ARG002
        """Give the script its threads back."""
        import torch

        torch.set_num_threads(self._threads)
        return None


def _share() -> int | None:
    text = os.environ.get(SHARE_VARIABLE, "")
    return int(text) if text.isdigit() and int(text) > 0 else None


ARM = FairThreads()
