"""A measured figure: value, interval, or the reason why there is none."""

from __future__ import annotations

import msgspec

SCOPES = ("run", "launches", "calibrated")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A measured figure with its 95% interval, or None with the reason why it is unknown.

    Attributes:
        n: number of values behind it: windows of one launch, or launches.
        scope: "run": the interval holds within one launch, whose windows are correlated and say nothing of
            another launch; "launches": between launches; "calibrated": between launches, too, of which only one was
            measured, by how far launches of this workload differ on this machine.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit: str
    scope: str = "run"
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("an unknown figure needs a reason")
        if self.scope not in SCOPES:
            raise ValueError(f"scope is {self.scope!r}; known: {', '.join(SCOPES)}")
