"""Transfer, wait and lateness: exact without noise, whatever the clocks say."""

from __future__ import annotations

import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor.analysis.cross_rank import compare_ranks
from dpdoctor.analysis.cross_rank.columns import columns
from tests.builders.simulated_ranks import MS, Call, digest, digests, lockstep

NS = st.integers(0, 10**9)


@st.composite
def runs(draw):
    """Work before each call on each rank [n, r], transfers [n], clock offsets [r]."""
    ranks, calls = draw(st.integers(2, 5)), draw(st.integers(1, 12))
    work = draw(st.lists(st.lists(NS, min_size=ranks, max_size=ranks), min_size=calls, max_size=calls))
    transfers = draw(st.lists(NS, min_size=calls, max_size=calls))
    offsets = draw(st.lists(st.integers(-(10**12), 10**12), min_size=ranks, max_size=ranks))
    return np.array(work), transfers, offsets


def common(ranks, **clocks):
    (group,) = compare_ranks(digests(ranks, **clocks)).groups
    assert group.reason is None
    return group.calls


@given(runs())
def test_what_was_simulated_comes_back_exactly(run):
    work, transfers, offsets = run
    calls = common(lockstep(work, transfers), offsets_ns=offsets)
    assert calls.transfer_ns.tolist() == transfers
    assert (calls.wait_ns == work.max(axis=1, keepdims=True) - work).all()
    assert (work[np.arange(len(work)), calls.last] == work.max(axis=1)).all()
    assert calls.judged.tolist() == [False] + [True] * (len(work) - 1)
    for row, own in zip(calls.lateness_ns[1:].tolist(), work[1:].tolist(), strict=True):
        others = [statistics.median(own[:rank] + own[rank + 1 :]) for rank in range(len(own))]
        assert row == [round(mine - typical) for mine, typical in zip(own, others, strict=True)]
    assert not calls.lateness_ns[0].any()


@given(runs())
def test_clocks_change_nothing_but_the_axis(run):
    work, transfers, offsets = run
    ranks = lockstep(work, transfers, per_step=2)
    plain, moved = compare_ranks(digests(ranks)), compare_ranks(digests(ranks, offsets_ns=offsets))
    assert moved.verdict == plain.verdict
    assert (moved.steps.lateness_ns == plain.steps.lateness_ns).all()
    assert (moved.steps.wait_ns == plain.steps.wait_ns).all()
    assert [clock.offset_ns for clock in moved.clocks] == [offset - offsets[0] for offset in offsets]


@given(runs(), st.integers(0, 100), st.integers(0, 100), st.integers(0, 4))
def test_what_one_rank_did_not_record_is_left_out(run, first, last, rank):
    work, transfers, _ = run
    rank, first = rank % work.shape[1], first % len(work)
    last = len(work) - last % (len(work) - first)
    ranks = lockstep(work, transfers)
    ranks[rank] = ranks[rank][first:last]
    calls = common(ranks)
    assert calls.transfer_ns.tolist() == transfers[first:last]
    assert calls.rows[:, rank].tolist() == list(range(last - first))
    assert not calls.judged[0], "what came before it on that rank is not known"


def test_one_delay_under_two_calls_that_overlap_is_charged_once():
    # Two buckets on two threads: rank 0 waits in both for rank 1.
    early = [
        Call(begin_ns=0, end_ns=1, seq=0),
        Call(begin_ns=10, end_ns=60, seq=1),
        Call(begin_ns=12, end_ns=70, seq=2),
    ]
    late = [Call(begin_ns=0, end_ns=1, seq=0), Call(begin_ns=40, end_ns=60, seq=1), Call(begin_ns=42, end_ns=70, seq=2)]
    stepped = [
        [replace(call, step=step) for call, step in zip(calls, (0, 1, 1), strict=True)] for calls in (early, late)
    ]
    found = compare_ranks(digests(stepped))
    calls = found.groups[0].calls
    assert calls.transfer_ns.tolist() == [1, 20, 28]
    assert calls.wait_ns[:, 0].tolist() == [0, 30, 30]
    assert calls.lateness_ns.tolist() == [[0, 0], [-30, 30], [0, 0]]
    assert found.steps.steps.tolist() == [1]
    assert found.steps.wait_ns.tolist() == [[30, 0]]


def test_lateness_that_was_inherited_from_another_group_is_not_charged_again():
    # Rank 1 is late for rank 0, so both are late for ranks 2 and 3; only rank 1 has lost time.
    def calls(row, column, begin, end, waits_from):
        return [
            Call(group=row, seq=0, begin_ns=0, end_ns=1),
            Call(group=column, seq=0, begin_ns=2, end_ns=3),
            Call(group=row, seq=1, begin_ns=begin, end_ns=end),
            Call(group=column, seq=1, begin_ns=waits_from, end_ns=60),
        ]

    found = compare_ranks(
        digests(
            [
                calls("row 0", "column 0", 13, 50, 55),
                calls("row 0", "column 1", 43, 50, 55),
                calls("row 1", "column 0", 13, 20, 25),
                calls("row 1", "column 1", 13, 20, 25),
            ]
        )
    )
    lateness = {group.name: group.calls.lateness_ns[1].tolist() for group in found.groups}
    assert lateness == {"row 0": [-30, 30], "column 0": [0, 0], "column 1": [0, 0], "row 1": [0, 0]}
    waits = {group.name: group.calls.wait_ns[1].tolist() for group in found.groups}
    assert waits["column 0"] == [0, 30]


def test_a_segment_begins_when_all_earlier_calls_have_ended():
    overlapping = [(0, 100), (10, 20), (130, 140), (150, 160)]
    calls = [Call(begin_ns=begin, end_ns=end) for begin, end in overlapping]
    assert columns(digest(0, calls), 0).segment_ns[1:].tolist() == [0, 30, 10]


def test_only_calls_that_no_rank_leaves_early_are_judged():
    ranks = lockstep([[MS, MS], [MS, 9 * MS], [MS, MS]], [MS] * 3)
    ranks = [[replace(call, operation="broadcast") if call.seq == 1 else call for call in calls] for calls in ranks]
    assert common(ranks).rows.tolist() == [[0, 0], [2, 2]]


def test_the_cause_is_that_of_the_segment_that_was_lost():
    ranks = lockstep([[MS, MS], [MS, 9 * MS], [9 * MS, 10 * MS]], [MS] * 3)
    ranks[1] = [replace(call, cause="data") for call in ranks[1]]
    # In the last call the rank is late, but by the least part of what it did before.
    assert common(ranks).cause == (None, "data", None)
