from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpdoctor.attribution.nesting import is_inside, running_at
from dpdoctor.trace.columns import UNKNOWN
from dpdoctor.trace.model import Trace
from tests.builders.kineto import AUTOGRAD, MAIN, US, Kineto

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
