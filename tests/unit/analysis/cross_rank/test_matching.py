"""The same call on every rank, or a reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor.analysis.cross_rank import compare_ranks
from tests.builders.simulated_ranks import MS, Call, digests, lockstep, with_group_size


def irregular(calls, ranks=2, seed=0):
    """Steps that differ in length, as steps do."""
    return np.random.default_rng(seed).integers(5 * MS, 15 * MS, (calls, ranks))


def only_group(ranks):
    (group,) = compare_ranks(digests(ranks)).groups
    return group


def unnumbered(calls=20, ranks=2, seed=0):
    return lockstep(irregular(calls, ranks, seed), [MS] * calls, numbered=False)


@given(st.integers(0, 1000), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_without_numbers_the_shift_is_found(seed, skip_0, cut_0, skip_1, cut_1):
    every = unnumbered(40, 2, seed)
    group = only_group([every[0][skip_0 : 40 - cut_0], every[1][skip_1 : 40 - cut_1]])
    assert group.matched_by == "order"
    first, last = max(skip_0, skip_1), 40 - max(cut_0, cut_1)
    expected = [[call - skip_0, call - skip_1] for call in range(first, last)]
    assert group.calls.rows.tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_the_shift_is_found_where_ranks_leave_a_call_at_slightly_different_times(seed):
    rng = np.random.default_rng(seed)
    every = [
        [replace(call, end_ns=call.end_ns + int(rng.exponential(MS / 4))) for call in calls]
        for calls in unnumbered(30, 2, seed)
    ]
    assert only_group([every[0], every[1][10:]]).left_out == (10, 0)


def test_one_end_that_was_noted_late_does_not_hide_the_shift():
    ranks = unnumbered(30)
    ranks[1][-1] = replace(ranks[1][-1], end_ns=ranks[1][-1].end_ns + 90 * MS)
    assert only_group([ranks[0], ranks[1][10:]]).left_out == (10, 0)


@pytest.mark.parametrize("seed", range(20))
def test_steps_that_differ_less_than_the_ends_tell_nothing(seed):
    rng = np.random.default_rng(seed)
    ranks = lockstep(np.full((30, 2), 10 * MS), [MS] * 30, numbered=False)
    ranks = [[replace(call, end_ns=call.end_ns + int(rng.exponential(MS / 4))) for call in calls] for calls in ranks]
    assert "too regularly" in only_group([ranks[0], ranks[1][10:]]).reason


def test_three_ranks_without_numbers_share_what_all_of_them_hold():
    every = unnumbered(20, 3)
    group = only_group([every[0], every[1][3:], every[2][:-4]])
    assert group.left_out == (7, 4, 3)
    assert group.calls.rows.tolist() == [[call, call - 3, call] for call in range(3, 16)]


def test_a_late_profiler_is_no_long_collective():
    ranks = unnumbered(30)
    # Rank 1 starts its profiler before call 10, which takes a second that rank 0 waits.
    lost = 1000 * MS
    late = [replace(call, begin_ns=call.begin_ns + lost, end_ns=call.end_ns + lost) for call in ranks[1][10:]]
    waits = [replace(ranks[0][10], end_ns=late[0].end_ns)]
    after = [replace(call, begin_ns=call.begin_ns + lost, end_ns=call.end_ns + lost) for call in ranks[0][11:]]
    found = compare_ranks(digests([[*ranks[0][:10], *waits, *after], late]))
    assert found.groups[0].left_out == (10, 0)
    assert found.groups[0].calls.judged.tolist() == [False] + [True] * 19
    assert found.verdict.events == ()
    assert found.steps.wait_ns.max() < 11 * MS


def test_calls_that_repeat_too_regularly_are_refused():
    ranks = lockstep([[MS, MS]] * 20, [MS] * 20, numbered=False)
    assert only_group(ranks).calls.rows.tolist() == [[call, call] for call in range(20)]
    refused = only_group([ranks[0], ranks[1][4:]])
    assert refused.calls is None
    assert "too regularly" in refused.reason


def test_few_calls_without_numbers_belong_together_only_as_they_are():
    ranks = unnumbered(7)
    assert only_group(ranks).calls.rows.tolist() == [[call, call] for call in range(7)]
    assert "too few calls" in only_group([ranks[0], ranks[1][2:]]).reason
    assert "too few calls" in only_group([unnumbered(30)[0], ranks[1]]).reason


def test_sizes_in_either_order_are_told_apart():
    # Two buckets begin together, on threads of their own: which is first differs from step to step and rank to rank.
    work = irregular(12)
    ranks: list[list[Call]] = [[], []]
    now = 0
    for step, own in enumerate(work.tolist()):
        end = now + max(own) + 2 * MS
        for rank, calls in enumerate(ranks):
            begin = now + own[rank]
            sizes = (100, 200) if (step + rank) % 2 else (200, 100)
            calls += [
                Call(begin_ns=begin + at, end_ns=end - MS if size == 100 else end, num_bytes=size, step=step)
                for at, size in enumerate(sizes)
            ]
        now = end
    calls = only_group(ranks).calls
    sizes = [[ranks[rank][row].num_bytes for rank, row in enumerate(rows)] for rows in calls.rows.tolist()]
    assert all(one == other for one, other in sizes)
    assert len(sizes) == 24


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("field", [{"num_bytes": 1}, {"operation": "all_gather"}])
def test_calls_that_differ_are_refused(numbered, field):
    ranks = lockstep(irregular(12), [MS] * 12, numbered=numbered)
    ranks[1][5] = replace(ranks[1][5], **field)
    group = only_group(ranks)
    assert group.calls is None
    assert "ranks 0 and 1" in group.reason


def test_all_to_all_may_give_each_rank_another_size():
    ranks = [
        [replace(call, operation="all_to_all", num_bytes=rank) for call in calls]
        for rank, calls in enumerate(unnumbered())
    ]
    assert only_group(ranks).calls is not None


def test_numbers_that_the_times_contradict_are_refused():
    ranks = lockstep(irregular(12), [MS] * 12)
    ranks[1] = [replace(call, seq=call.seq + 1) if call.seq > 5 else call for call in ranks[1]]
    assert "no offset" in only_group(ranks).reason


def test_a_call_lost_in_the_middle_is_not_passed_over():
    ranks = unnumbered()
    del ranks[1][9]
    assert only_group(ranks).calls is None


def test_coalesced_calls_share_a_number():
    ranks = lockstep(irregular(12), [MS] * 12)
    ranks = [[replace(call, seq=call.seq // 2) for call in calls] for calls in ranks]
    assert only_group(ranks).calls.rows.tolist() == [[call, call] for call in range(12)]


def test_no_common_number_is_said():
    ranks = lockstep(irregular(12), [MS] * 12)
    assert "traces of all ranks" in only_group([ranks[0][:6], ranks[1][6:]]).reason


def test_point_to_point_calls_do_not_disturb():
    ranks = unnumbered()
    ranks[0].append(Call(begin_ns=ranks[0][-1].end_ns, end_ns=ranks[0][-1].end_ns + 1, operation="send"))
    assert only_group(ranks).left_out == (0, 0)


def split_alike(told=(0, 1, 2, 3)):
    """Two pairs that nothing keeps together, in groups that torch's split_group gave one name; who tells its ranks."""
    pairs = [*lockstep(irregular(6), [MS] * 6), *lockstep(irregular(6, seed=1), [MS] * 6)]
    members = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    made = [with_group_size(one, "0", 2) for one in digests(pairs)]
    return [replace(one, group_ranks={"0": members[one.rank]} if one.rank in told else {}) for one in made]


@pytest.mark.parametrize("told", [(0, 1, 2, 3), (0, 3), (1, 2, 3)])
def test_groups_of_one_name_are_told_apart_by_their_ranks(told):
    groups = compare_ranks(split_alike(told)).groups
    assert [(group.ranks, group.num_missing, group.reason) for group in groups] == [
        ((0, 1), 0, None),
        ((2, 3), 0, None),
    ]


def test_more_ranks_than_a_group_has_are_several_groups():
    (group,) = compare_ranks(split_alike(told=())).groups
    assert group.reason == "4 ranks have calls in a group of 2: it is several groups"


def test_calls_of_pairs_alone_are_not_taken_for_missing_ranks():
    pair = lockstep(irregular(6), [MS] * 6)
    ranks = [
        [replace(call, operation=operation) for call in calls]
        for calls, operation in zip(pair, ("send", "recv"), strict=True)
    ]
    group = only_group(ranks)
    assert group.ranks == (0, 1)
    assert "sends and receives only" in group.reason


def test_each_group_is_matched_by_itself():
    pair = lockstep(irregular(6), [MS] * 6)
    ranks = [*pair, [replace(call, group="1") for call in pair[0]], [replace(call, group="1") for call in pair[1]]]
    ranks.append([Call(begin_ns=0, end_ns=1, group="2", seq=0)])
    made = [
        with_group_size(one, group, size)
        for one, group, size in zip(digests(ranks), "00112", (2, 2, 4, 4, 2), strict=True)
    ]
    found = compare_ranks(made)
    assert [(group.name, group.ranks, group.num_missing) for group in found.groups] == [
        ("0", (0, 1), 0),
        ("1", (2, 3), 2),
        ("2", (4,), 1),
    ]
    assert "fewer than two ranks" in found.groups[2].reason
