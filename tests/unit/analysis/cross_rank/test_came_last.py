"""Ranks without sequence numbers, and who came last to most: known from one step, which is no pattern yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dpdoctor.analysis.cross_rank import CameLast, CrossRank, compare_ranks
from dpdoctor.attribution.digesting import digest_file
from tests.builders.simulated_ranks import MS, Call, digests, lockstep

DLRM = Path(__file__).parents[5] / "shared" / "trace_sets" / "dlrm_v100x8"
NUM_RANKS, NUM_CALLS = 4, 8


def one_step(late: dict[int, int], *, late_ms: int = 3, numbered: bool = False) -> list[list[Call]]:
    """Return one step of eight calls; `late` has the rank that loses time before a call."""
    segments = np.full((NUM_CALLS, NUM_RANKS), 5 * MS)
    for call, rank in late.items():
        segments[call, rank] += late_ms * MS
    return lockstep(segments, [MS] * NUM_CALLS, per_step=NUM_CALLS, numbered=numbered)


def compared(ranks: Sequence[Sequence[Call]]) -> CrossRank:
    """Return what the ranks give, each on a clock of its own."""
    found = compare_ranks(digests(ranks, offsets_ns=[7 * MS * rank for rank in range(len(ranks))]))
    assert found.verdict.kind == "unknown"
    return found


@pytest.mark.skipif(not DLRM.is_dir(), reason="the folder of real sets of traces is not beside this checkout")
def test_the_real_set_of_one_step() -> None:
    found = compare_ranks(digest_file(path) for path in sorted(DLRM.iterdir()))
    (group,) = found.groups
    assert (group.matched_by, group.left_out, group.reason) == ("order", (0,) * 8, None)
    assert found.came_last is not None
    assert (found.came_last.rank, found.came_last.times, found.came_last.of) == (7, 5, 8)
    # By hand: medians of the others less rank 7, in its calls but the first: 1021 + 166 + 125 + 127 us.
    assert found.came_last.waited_ns == pytest.approx(1.44 * MS, abs=0.01 * MS)
    assert (found.verdict.kind, found.verdict.num_steps) == ("unknown", 0)
    assert "5 whole steps are needed, 1 is here" in str(found.verdict.reason)


@pytest.mark.parametrize("numbered", [True, False])
def test_one_step_is_enough_for_a_fact_and_not_for_a_verdict(*, numbered: bool) -> None:
    found = compared(one_step(dict.fromkeys(range(2, 8), 2), numbered=numbered))
    assert found.groups[0].matched_by == ("sequence" if numbered else "order")
    assert found.came_last == CameLast(rank=2, times=6, of=8, waited_ns=6 * 3 * MS)
    assert found.verdict.rank is None
    assert "5 whole steps are needed, 1 is here" in str(found.verdict.reason)


def test_for_the_first_call_a_rank_may_be_late_because_its_profiler_began_late() -> None:
    found = compared(one_step(dict.fromkeys(range(6), 2)))
    assert found.came_last == CameLast(rank=2, times=6, of=8, waited_ns=5 * 3 * MS)


@pytest.mark.parametrize(
    "late",
    [
        {},
        {call: call % NUM_RANKS for call in range(NUM_CALLS)},
        {1: 2},
        dict.fromkeys(range(1, 5), 2) | dict.fromkeys(range(5, 8), 1),
    ],
)
def test_nobody_came_last_to_most(late: dict[int, int]) -> None:
    found = compared(one_step(late))
    assert found.groups[0].calls is not None
    assert found.came_last is None


def test_what_nobody_waits_for_is_not_told() -> None:
    ranks = one_step({})
    for call in range(NUM_CALLS):  # 20 us later than the others, in steps of 50 ms
        first = ranks[2][call]
        ranks[2][call] = Call(begin_ns=first.begin_ns + 20_000, end_ns=first.end_ns, step=0)
    assert compared(ranks).came_last is None


def test_where_the_order_differs_nothing_is_compared_and_the_reason_says_so() -> None:
    ranks = one_step(dict.fromkeys(range(2, 8), 2))
    ranks[3] = [
        Call(begin_ns=c.begin_ns, end_ns=c.end_ns, step=0, operation="all_gather" if place == 4 else c.operation)
        for place, c in enumerate(ranks[3])
    ]
    found = compared(ranks)
    assert found.came_last is None
    assert "ranks 0 and 3" in str(found.verdict.reason)
