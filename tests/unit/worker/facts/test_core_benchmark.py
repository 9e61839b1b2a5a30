"""The piece of arithmetic is the same each time, and counts time on a core alone."""

from __future__ import annotations

import time

from dpdoctor.worker.facts.core_benchmark import core_benchmark_ns


def test_it_counts_no_more_than_the_thread_computed() -> None:
    before_ns = time.thread_time_ns()
    taken_ns = core_benchmark_ns()
    assert 0 < taken_ns < time.thread_time_ns() - before_ns
