from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dpdoctor.analysis.cross_rank import compare_ranks
from dpdoctor.analysis.traces import Traces
from dpdoctor.analysis.waiting import rotating_wait
from tests.builders import traced_runs
from tests.builders.simulated_ranks import digests, lockstep
from tests.builders.specs import MS

NUM_STEPS = 21
TRANSFER_MS = 10


def share_of(segments_ms: np.ndarray, *, exposed: int = 100) -> float | None:
    """Return the wait by turns of ranks that work so long before the only call of each step."""
    made = digests(lockstep(segments_ms.astype(np.int64) * MS, [TRANSFER_MS * MS] * len(segments_ms)))
    device = traced_runs.device(of=traced_runs.breakdown(100 - exposed, exposed))
    made = [dataclasses.replace(digest, devices=(device,)) for digest in made]
    return rotating_wait(compare_ranks(made), Traces(made)).value


def test_a_rank_that_is_always_last_is_waited_for_but_not_by_itself() -> None:
    segments = np.full((NUM_STEPS, 3), 60)
    segments[:, 1] += 30
    assert share_of(segments) == 0


def test_ranks_that_are_late_by_turns_all_wait() -> None:
    # Each of two ranks needs 30 ms more in every second step, so each waits 30 ms in every second step of 100 ms.
    segments = np.full((NUM_STEPS, 2), 60)
    segments[::2, 0] += 30
    segments[1::2, 1] += 30
    assert share_of(segments) == pytest.approx(0.15, abs=0.01)


def test_what_is_waited_beside_compute_costs_nothing() -> None:
    segments = np.full((NUM_STEPS, 2), 60)
    segments[::2, 0] += 30
    segments[1::2, 1] += 30
    assert share_of(segments, exposed=4) == pytest.approx(0.04)


def test_one_rank_has_nobody_to_wait_for() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    for found in (rotating_wait(compare_ranks([digest]), Traces([digest])), rotating_wait(None, Traces([]))):
        assert found.value is None
        assert "no two ranks" in str(found.reason)


def test_traces_without_common_steps_tell_nothing() -> None:
    late = traced_runs.late_rank(2, 1)
    outside = [dataclasses.replace(one.calls, step=(-1,) * len(one.calls.step)) for one in late]
    alone = [dataclasses.replace(one, calls=calls) for one, calls in zip(late, outside, strict=True)]
    found = rotating_wait(compare_ranks(alone), Traces(alone))
    assert found.value is None
    assert "common calls" in str(found.reason)
