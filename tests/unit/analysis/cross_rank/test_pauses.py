"""What ranks recorded beside their traces, joined to their lateness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpdoctor.analysis.cross_rank import Pause, compare_ranks, pauses_of
from dpdoctor.records import EventRecord
from tests.builders import records
from tests.builders.simulated_ranks import MS, digest, digests, lockstep

STEPS, LATE = 12, 30 * MS


def late_rank():
    """Rank 1 comes 30 ms late to the second of two calls of every step."""
    work = np.full((2 * STEPS, 3), 5 * MS)
    work[1::2, 1] += LATE
    return lockstep(work, [MS] * (2 * STEPS), per_step=2)


def pauses_before(calls, kind="gc", *, length=LATE):
    """Return a pause that ends where each second call begins, 1 ms of work later."""
    ends = [call.begin_ns - MS for call in calls[1::2]]
    return [Pause(kind=kind, begin_ns=end - length, end_ns=end) for end in ends]


def cause(pauses):
    verdict = compare_ranks(digests(late_rank()), pauses).verdict
    assert (verdict.kind, verdict.rank, verdict.lateness_ns) == ("persistent", 1, LATE)
    return verdict.cause


def test_a_pause_that_covers_the_lateness_is_its_cause():
    assert cause(None) == "python", "as the trace has it"
    assert cause({1: pauses_before(late_rank()[1])}) == "gc"


@pytest.mark.parametrize(("length", "named"), [(0.81, "gc"), (0.79, "python")])
def test_it_must_cover_four_fifths(length, named):
    assert cause({1: pauses_before(late_rank()[1], length=round(length * LATE))}) == named


def test_of_two_kinds_the_one_that_covers_more_is_named():
    calls = late_rank()[1]
    assert cause({1: [*pauses_before(calls, length=LATE // 2), *pauses_before(calls, "checkpoint")]}) == "checkpoint"


def test_kinds_do_not_add_up():
    calls = late_rank()[1]
    half = pauses_before(calls, "checkpoint", length=LATE // 2)
    before = [replace(p, kind="gc", begin_ns=p.begin_ns - LATE // 2, end_ns=p.begin_ns) for p in half]
    assert cause({1: [*half, *before]}) == "python"


def test_a_pause_of_another_rank_or_of_another_time_explains_nothing():
    calls = late_rank()[1]
    assert cause({0: pauses_before(calls)}) == "python"
    assert cause({1: [Pause(kind="gc", begin_ns=c.begin_ns, end_ns=c.end_ns) for c in calls[1::2]]}) == "python"


def test_pauses_are_put_on_the_axis_of_the_trace():
    events = [EventRecord(kind=kind, at_ns=1_700, duration_ns=30, step=1) for kind in ("gc", "checkpoint", "iterator")]
    # At 1,000 by the monotonic clock it was 901,000 by unix time; the trace begins at 901,500.
    made = records.rank((), (), clock=(1_000, 901_000))
    made = replace(made, events=tuple(events), digest=digest(0, [], base_ns=901_500))
    expected = [Pause(kind=kind, begin_ns=200, end_ns=230) for kind in ("gc", "checkpoint")]
    assert list(pauses_of(made)) == expected


@pytest.mark.parametrize("missing", ["digest", "clock", "record"])
def test_without_trace_or_clocks_no_pause_can_be_placed(missing):
    made = records.rank((), (), clock=None if missing == "clock" else (0, 0))
    made = replace(made, digest=None if missing == "digest" else digest(0, []))
    made = replace(made, events=(EventRecord(kind="gc", at_ns=1, duration_ns=1, step=1),))
    assert pauses_of(replace(made, record=None) if missing == "record" else made) == ()
