"""Whether what a rank recorded beside its trace, a pause of the garbage collector say, is what made it late.

A trace shows such a pause as Python between operators: it holds no event of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpdoctor.analysis.cross_rank.columns import RankCalls
from dpdoctor.analysis.cross_rank.model import CrossRankGroup
from dpdoctor.analysis.cross_rank.steps import COVERAGE
from dpdoctor.records import Rank

# Kinds of EventRecord during which a rank does not train.
KINDS = ("gc", "checkpoint", "compile", "evaluation", "inference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One event of a rank; times on the axis of its trace."""

    kind: str
    begin_ns: int
    end_ns: int


def pauses_of(rank: Rank) -> tuple[Pause, ...]:
    """Return the rank's pauses; none where it has no trace, or did not say how its clocks are related."""
    if rank.digest is None or rank.record is None or rank.record.clock is None:
        return ()
    monotonic_ns, unix_ns = rank.record.clock
    shift = unix_ns - monotonic_ns - rank.digest.base_ns
    return tuple(
        Pause(kind=event.kind, begin_ns=event.at_ns + shift, end_ns=event.at_ns + event.duration_ns + shift)
        for event in rank.events
        if event.kind in KINDS
    )


def pause_behind(
    groups: Sequence[CrossRankGroup], calls: RankCalls, pauses: Sequence[Pause], steps: Collection[int]
) -> str | None:
    """Return the kind of pause that made one rank late in these steps; None where none covers enough of its lateness.

    What counts is the time that pauses of a kind take of the rank's own segments before the calls to which it came
    late, as far as it was late. `calls` are the rank's.
    """
    explained: Counter[str] = Counter()
    total = 0
    for row, late_ns in _late_calls(groups, calls.rank, steps):
        total += late_ns
        end = int(calls.begin_ns[row])
        begin = end - round(float(calls.segment_ns[row]))
        for kind in {pause.kind for pause in pauses}:
            inside = _covered((pause for pause in pauses if pause.kind == kind), begin, end)
            explained[kind] += min(late_ns, inside)
    kind, most = max(sorted(explained.items()), key=lambda item: item[1], default=("", 0))
    return kind if total and most >= COVERAGE * total else None


def _late_calls(groups: Sequence[CrossRankGroup], rank: int, steps: Collection[int]) -> Iterable[tuple[int, int]]:
    """Yield the row and the lateness of every call in these steps to which the rank came late."""
    for group in groups:
        if group.calls is None or rank not in group.ranks:
            continue
        column = group.ranks.index(rank)
        late = group.calls.lateness_ns[:, column]
        for call in np.flatnonzero(np.isin(group.calls.step, list(steps)) & (late > 0)).tolist():
            yield int(group.calls.rows[call, column]), int(late[call])


def _covered(pauses: Iterable[Pause], begin: int, end: int) -> int:
    """Return how much of [begin, end) lies in pauses of one kind, which follow each other."""
    return sum(max(0, min(end, pause.end_ns) - max(begin, pause.begin_ns)) for pause in pauses)
