"""A clock that only a test moves."""

from __future__ import annotations


class HandClock:
    """Callable like `time.monotonic_ns` or `time.monotonic`; what it counts is up to the test."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def tick(self, amount: int) -> None:
        """Let time pass."""
        self.now += amount
