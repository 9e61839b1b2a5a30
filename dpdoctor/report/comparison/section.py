"""What each file of `sections` offers as SECTION."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSection:
    """One part of the page of a comparison. `order` places it; without blocks it is no part of this page."""

    order: int
    title: str
    question: str
    build: Callable[[Comparison], Sequence[Block]]
