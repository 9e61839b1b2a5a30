"""How fast fetching and computing go when more threads are runnable than there are cores."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The cores that one rank and its workers share, and what each of their activities takes of them.

    Attributes:
        num: cores of this rank; of those that several ranks share, its part.
        fetch: cores that one fetch keeps busy: near 1 it computes, near 0 it waits for I/O.
        compute: cores that the training process keeps busy between two asks.
        threads: of one operation of the training process; its work is done when the last of them is.
    """

    num: float
    fetch: float = 1.0
    compute: float = 1.0
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.num > 0 or self.threads < 1:
            raise ValueError(f"{self.num} cores for {self.threads} threads; there must be some of both")
        if min(self.fetch, self.compute) < 0:
            raise ValueError(f"fetching takes {self.fetch} cores, computing {self.compute}; neither can be below 0")

    def fetch_pace(self, num_fetching: int, training: float) -> float:
        """Return the pace of each fetch, 1 at most, beside a training process that keeps `training` cores busy."""
        share = min(1.0, self.fetch)
        return 1 / (1 - share + share * self._stretch(num_fetching * self.fetch + training))

    def compute_pace(self, num_fetching: int) -> float:
        """Return the pace of the training process beside so many fetches.

        While several threads of it compute, the last one counts: one fetch beside as many threads as cores halves the
        pace, where a single thread would only lose its part.
        """
        others = num_fetching * self.fetch
        together = self._share_together()
        alone = min(1.0, self.compute) * (1 - together)
        waits = 1 - together - alone
        return 1 / (waits + alone * self._stretch(others + 1) + together * self._slowest(others + self.threads))

    def receive_pace(self, num_fetching: int) -> float:
        """Return the pace of the training thread while it takes a batch over."""
        return 1 / self._stretch(num_fetching * self.fetch + 1)

    def _share_together(self) -> float:
        """Return the share of the time in which all threads compute, if in the rest only one does."""
        return min(1.0, max(0.0, self.compute - 1) / (self.threads - 1)) if self.threads > 1 else 0.0

    def _stretch(self, runnable: float) -> float:
        """Return how much longer threads take that share the cores evenly."""
        return max(1.0, runnable / self.num)

    def _slowest(self, runnable: float) -> float:
        """Return how much longer the slowest of the threads takes, each of which stays on its core."""
        below = math.floor(runnable)
        part = runnable - below
        queue = (1 - part) * math.ceil(below / self.num) + part * math.ceil((below + 1) / self.num)
        return max(1.0, queue)
