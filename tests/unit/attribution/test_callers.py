from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor.trace.model import UNKNOWN
from tests.builders.kineto import GLOO_A, GLOO_B, Kineto, Observed, of_two_ranks, shapes


def callers_of(observed: Observed) -> list[float | None]:
    """Return when the operator of each communication event began, in microseconds."""
    begin = observed.trace.events.begin_ns
    return [None if row == UNKNOWN else begin[row] / 1_000 for row in observed.found.caller.tolist()]


def test_a_backend_takes_calls_in_their_order(tmp_path: Path) -> None:
    kineto = Kineto()
    for called, begin in ((10, 12), (20, 40), (30, 50)):
        kineto.op("c10d::allreduce_", called, called + 1)
        kineto.span("gloo:all_reduce", begin, begin + 5, thread=GLOO_A, **shapes(8))
    assert callers_of(kineto.observe(tmp_path)) == [10, 20, 30]


def test_a_functional_collective_is_the_call_that_it_makes(tmp_path: Path) -> None:
    kineto = Kineto()
    for called in (10, 110):
        kineto.op("_c10d_functional::all_reduce", called, called + 4)
        kineto.op("c10d::allreduce_", called + 1, called + 3)
        kineto.span("gloo:all_reduce", called + 2, called + 7, thread=GLOO_A, **shapes(8))
    assert callers_of(kineto.observe(tmp_path)) == [11, 111]


def test_neighbours_that_changed_places_are_told_by_their_sizes(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.op("c10d::_allgather_base_", 10, 11, **shapes(200, 100))
    kineto.op("c10d::_allgather_base_", 12, 13, **shapes(14, 7))
    kineto.op("c10d::_allgather_base_", 14, 15, **shapes(200, 100))
    kineto.span("gloo:all_gather", 20, 25, thread=GLOO_B, **shapes(7))
    kineto.span("gloo:all_gather", 21, 26, thread=GLOO_A, **shapes(100))
    kineto.span("gloo:all_gather", 30, 36, thread=GLOO_A, **shapes(100))
    assert callers_of(kineto.observe(tmp_path)) == [12, 10, 14]


def test_what_was_queued_before_the_recording_has_no_caller(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.span("gloo:all_reduce", 1, 5, thread=GLOO_A, **shapes(8))
    kineto.op("c10d::allreduce_", 10, 11)
    kineto.span("gloo:all_reduce", 12, 15, thread=GLOO_A, **shapes(8))
    assert callers_of(kineto.observe(tmp_path)) == [None, 10]


@pytest.mark.parametrize("first", ["c10d::_reduce_scatter_base_", "c10d::allreduce_"])
def test_gloo_makes_a_reduce_scatter_of_an_all_reduce(tmp_path: Path, first: str) -> None:
    calls = {"c10d::_reduce_scatter_base_": shapes(30, 60), "c10d::allreduce_": {}}
    kineto = Kineto(**of_two_ranks())
    for at, (name, args) in enumerate(sorted(calls.items(), key=lambda call: call[0] != first)):
        kineto.op(name, 10 * at, 10 * at + 1, **args)
        kineto.span("gloo:all_reduce", 10 * at + 2, 10 * at + 5, thread=GLOO_A, **shapes(60))
    found = kineto.observe(tmp_path).found
    expected = ("reduce_scatter", "all_reduce")
    assert found.operations == (expected if "scatter" in first else expected[::-1])
    assert found.num_bytes.tolist() == [240, 240]
    assert found.group_size.tolist() == [2, 2]
