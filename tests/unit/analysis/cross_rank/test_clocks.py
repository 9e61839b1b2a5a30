"""Offsets between clocks, for drawing."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor.analysis.cross_rank import compare_ranks
from tests.builders.simulated_ranks import MS, digest, digests, lockstep

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
