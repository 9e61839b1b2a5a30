"""Digests of one job, complete or not."""

from __future__ import annotations

import re
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
