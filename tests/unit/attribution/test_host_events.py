"""Which host events made a communication event, and which hold a moment or another event."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpdoctor.attribution.host_events import is_inside, running_at, self_times
from dpdoctor.trace.model import UNKNOWN, Trace
from tests.builders.kineto import AUTOGRAD, GLOO_A, GLOO_B, MAIN, US, Kineto, Observed, of_two_ranks, shapes


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


times = st.integers(0, 30)
span = st.tuples(times, st.integers(0, 10), st.sampled_from((MAIN, AUTOGRAD)))
asked_at = st.lists(st.tuples(times, st.sampled_from((MAIN, AUTOGRAD))), max_size=20)


def written(folder: Path, spans: list[tuple[int, int, int]]) -> Trace:
    kineto = Kineto()
    for begin, duration, thread in spans:
        kineto.op("a", begin, begin + duration, thread=thread)
    return kineto.observe(folder).trace


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans=st.lists(span, max_size=12), asked=asked_at)
def test_inside_of_any_is_what_a_plain_loop_finds(
    tmp_path: Path, spans: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    trace = written(tmp_path, spans)
    number = {int(thread.tid): index for index, thread in enumerate(trace.threads)}
    threads = np.array([number.get(thread, 99) for _, thread in asked], np.int32)
    at = np.array([time * US for time, _ in asked], np.int64)
    expected = [any(b <= time < b + d and t == thread for b, d, t in spans) for time, thread in asked]
    assert is_inside(trace.events, np.arange(len(spans)), threads, at).tolist() == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gaps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=10), asked=asked_at)
def test_the_one_that_runs_is_what_a_plain_loop_finds(
    tmp_path: Path, gaps: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    spans, end = [], 0
    for gap, duration in gaps:
        spans.append((end + gap, duration, MAIN))
        end += gap + duration
    trace = written(tmp_path, [*reversed(spans)])  # files are not in the order of time
    threads = np.array([0 if thread == MAIN else 1 for _, thread in asked], np.int32)
    at = np.array([time * US for time, _ in asked], np.int64)
    expected = [
        next((row for row, (b, d, t) in enumerate(reversed(spans)) if b <= time < b + d and t == thread), UNKNOWN)
        for time, thread in asked
    ]
    assert running_at(trace.events, np.arange(len(spans)), threads, at).tolist() == expected


def own(*spans: tuple[int, int]) -> list[int]:
    begin, end = np.array(spans, np.int64).reshape(-1, 2).T
    return self_times(begin, end).tolist()


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(0, 10)], [10]),
        ([(0, 10), (2, 5), (5, 8)], [4, 3, 3]),
        ([(5, 8), (2, 5), (0, 10)], [3, 3, 4]),  # any order
        ([(0, 10), (0, 6), (2, 5), (10, 12)], [4, 3, 3, 2]),  # same begin; touching
        ([(0, 10), (4, 10)], [4, 6]),  # same end
        ([(0, 10), (0, 10)], [0, 10]),  # alike
        ([(0, 10), (3, 3), (10, 10), (0, 0)], [10, 0, 0, 0]),  # empty ones
        ([(0, 10), (6, 11), (11, 15)], [6, 5, 4]),  # rounding: the inner outlasts the outer
    ],
)
def test_time_without_what_is_inside(spans: list[tuple[int, int]], expected: list[int]) -> None:
    assert own(*spans) == expected


def nested(rng: np.random.Generator, begin: int, end: int, depth: int) -> list[tuple[int, int, int]]:
    """Return (begin, end, own time) of an event and of random ones inside of it, disjoint on each level."""
    edges = np.sort(rng.integers(begin, end + 1, 2 * int(rng.integers(0, 4)))).tolist() if depth else []
    children = [(b, e) for b, e in zip(edges[::2], edges[1::2], strict=True) if b < e and (b, e) != (begin, end)]
    free = end - begin - sum(e - b for b, e in children)
    return [(begin, end, free), *(inner for b, e in children for inner in nested(rng, b, e, depth - 1))]


def test_random_trees_come_back() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        tree = np.array([*nested(rng, 0, 100, 4), *nested(rng, 100, 150, 3)], np.int64)
        tree = tree[rng.permutation(len(tree))]
        assert self_times(tree[:, 0], tree[:, 1]).tolist() == tree[:, 2].tolist()


def test_deep_nesting_takes_no_time_that_grows_with_its_depth() -> None:
    num = 20_000
    assert own(*((at, 2 * num - at) for at in range(num))) == [2] * num
