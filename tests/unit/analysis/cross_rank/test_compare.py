"""Digests of one job, complete or not, and the offsets between their clocks, for drawing."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor.analysis.cross_rank import compare_ranks
from dpdoctor.attribution.digesting import digest_file
from tests.builders.simulated_ranks import MS, digest, digests, lockstep

TRACES = Path(__file__).parents[5] / "shared" / "traces" / "two_ranks_of_128"


def late_rank(steps=12, ranks=3, culprit=1):
    """A metric and then the gradients are reduced in every step; one rank comes 30 ms late to the gradients."""
    work = np.full((2 * steps, ranks), 5 * MS)
    work[1::2, culprit] += 30 * MS
    return lockstep(work, [MS] * (2 * steps), per_step=2)


def test_a_late_rank_is_named_with_size_and_cause():
    ranks = late_rank()
    ranks[1] = [replace(call, cause="data" if call.seq % 2 else "compute") for call in ranks[1]]
    found = compare_ranks(digests(ranks))
    verdict = found.verdict
    assert (verdict.kind, verdict.rank, verdict.lateness_ns, verdict.cause) == ("persistent", 1, 30 * MS, "data")
    assert found.steps.step_ns == 42 * MS
    assert found.steps.steps.tolist() == list(range(1, 12)), "of the first step one call is not judged"
    assert found.steps.wait_ns.tolist() == [[30 * MS, 0, 30 * MS]] * 11


def test_no_cause_covers_enough():
    ranks = late_rank()
    ranks[1] = [replace(call, cause="data" if call.step % 2 else "gc") for call in ranks[1]]
    assert compare_ranks(digests(ranks)).verdict.cause is None


def test_calls_outside_of_every_step_belong_to_none():
    ranks = [[replace(call, step=-1) if call.step > 9 else call for call in calls] for calls in late_rank()]
    assert compare_ranks(digests(ranks)).steps.steps.tolist() == list(range(1, 10))


def test_missing_ranks_are_listed():
    every = digests(late_rank(ranks=5))
    found = compare_ranks([every[3], every[1]])
    assert (found.ranks, found.missing) == ((1, 3), (0, 2, 4))
    assert (found.verdict.kind, found.verdict.rank) == ("persistent", 1)


def test_what_cannot_be_compared_is_noted():
    every = digests(late_rank())
    unnamed, twice = replace(every[0], rank=None, source="a.json"), replace(every[1], source="b.json")
    limited = replace(every[2], calls=replace(every[2].calls, num_dropped=7))
    found = compare_ranks([every[0], unnamed, every[1], twice, limited])
    assert found.ranks == (0, 1, 2)
    named = [re.findall(r"\w+\.json|\d+", note) for note in found.notes]
    assert named == [["a.json"], ["b.json", "1.json", "1"], ["2.json", "7"]]


@pytest.mark.parametrize("made", [[], [digest(0, [])], [digest(0, []), digest(1, [])]])
def test_nothing_to_compare_is_a_result(made):
    found = compare_ranks(made)
    assert (found.groups, found.verdict.kind) == ((), "unknown")
    assert len(found.ranks) == len(made)


def test_two_real_ranks_whose_calls_are_not_the_same_are_refused():
    if not TRACES.is_dir():
        pytest.skip("the shared traces are not here")
    found = compare_ranks([digest_file(TRACES / f"rank-{rank}.json.gz") for rank in (0, 1)])
    assert found.missing == tuple(range(2, 128))
    (group,) = found.groups
    assert group.calls is None
    assert "do not agree" in group.reason
    assert re.findall(r"\d+", group.reason) == ["0", "1"]
    assert found.verdict.kind == "unknown"


def calm(group="0", **fields):
    """Two ranks of which nobody is late, and a call of theirs in each step."""
    work = np.full((20, 2), 10 * MS)
    return [[replace(call, group=group, **fields) for call in calls] for calls in lockstep(work, [MS] * 20)]


def besides(more):
    """Two ranks of which nobody is late in one group, and these calls."""
    every = (sorted([*one, *others], key=lambda call: call.begin_ns) for one, others in zip(calm(), more, strict=True))
    return compare_ranks(digests(list(every))).verdict


def moved(calls, length_ns):
    return [replace(call, begin_ns=call.begin_ns - 5 * MS, end_ns=call.begin_ns - 5 * MS + length_ns) for call in calls]


@pytest.mark.parametrize(("length_ns", "kind"), [(2 * MS, "unknown"), (MS // 10, "none")])
def test_nobody_is_late_only_if_calls_that_are_not_compared_are_short(length_ns, kind):
    assert besides([[], []]).kind == "none"
    alone, _ = calm("1")
    verdict = besides([moved(alone, length_ns), []])
    assert verdict.kind == kind
    assert verdict.reason == ("group 1: calls of fewer than two ranks are here" if kind == "unknown" else None)


@pytest.mark.parametrize(("length_ns", "kind"), [(2 * MS, "unknown"), (MS // 10, "none")])
def test_who_waits_in_sends_and_receives_is_not_known(length_ns, kind):
    first, second = calm(operation="recv")
    verdict = besides([moved(first, length_ns), moved(second, length_ns)])
    assert verdict.kind == kind
    assert verdict.reason == ("who waits in sends and receives is not compared" if kind == "unknown" else None)


SECOND = 1000 * MS


def run(calls=20, ranks=2, length_ns=10 * MS):
    work = np.random.default_rng(0).integers(length_ns, 2 * length_ns, (calls, ranks))
    return lockstep(work, [MS] * calls)


def test_the_offset_is_the_median_of_the_ends_and_its_error_their_deviation():
    ranks = run(21)
    gains = np.random.default_rng(1).integers(0, MS, 21).tolist()
    ranks[1] = [replace(call, end_ns=call.end_ns + gain) for call, gain in zip(ranks[1], gains, strict=True)]
    first, second = compare_ranks(digests(ranks, offsets_ns=[0, 5 * SECOND])).clocks
    assert (first.rank, first.offset_ns, first.error_ns) == (0, 0, 0)
    middle = statistics.median(gains)
    assert second.offset_ns == 5 * SECOND + middle
    assert second.error_ns == statistics.median([abs(gain - middle) for gain in gains])
    assert second.drift == 0


def test_bases_of_traces_differ():
    ranks = run()
    ours, theirs = digest(0, ranks[0], base_ns=7 * SECOND), digest(1, ranks[1], base_ns=9 * SECOND)
    clock = compare_ranks([ours, theirs]).clocks[1]
    assert clock.offset_ns == 2 * SECOND
    end = ranks[1][4].end_ns
    assert clock.shift(9 * SECOND + end) == 7 * SECOND + end


@pytest.mark.parametrize(("length_ns", "drift"), [(10 * MS, 0.0), (4 * SECOND, 40e-6)])
def test_drift_is_told_from_a_minute_on(length_ns, drift):
    ranks = run(30, length_ns=length_ns)
    ranks[1] = [
        replace(call, begin_ns=round(call.begin_ns * 1.00004), end_ns=round(call.end_ns * 1.00004)) for call in ranks[1]
    ]
    clock = compare_ranks(digests(ranks)).clocks[1]
    assert clock.drift == pytest.approx(drift, rel=0.01)
    if drift:
        for ours, theirs in zip(*ranks, strict=True):
            assert clock.shift(theirs.end_ns) == pytest.approx(ours.end_ns, abs=2000)


def test_ranks_without_common_calls_are_put_on_the_axis_over_others():
    first, second = run(), run()
    chained = [*first[1], *[replace(call, group="1") for call in second[0]]]
    chained.sort(key=lambda call: call.begin_ns)
    last = [replace(call, group="1") for call in second[1]]
    alone = [replace(call, group="2") for call in run()[0]]
    # Half of the calls of the second pair end 2 ns later on the last rank: a deviation of 1.
    last = [replace(call, end_ns=call.end_ns + 2 * (call.seq % 2)) for call in last]
    clocks = compare_ranks(digests([first[0], chained, last, alone], offsets_ns=[0, SECOND, 3 * SECOND, 0])).clocks
    assert [(clock.rank, clock.offset_ns) for clock in clocks] == [(0, 0), (1, SECOND), (2, 3 * SECOND + 1)]
    assert [clock.error_ns for clock in clocks] == [0, 0, 1]
