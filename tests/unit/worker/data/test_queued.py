"""The wait for a core, as this kernel tells it."""

from __future__ import annotations

import os
import threading
import time

import pytest

from dpdoctor.worker.data import queued
from dpdoctor.worker.data.queued import CoreQueue, Waits

pytestmark = pytest.mark.measured


def compute(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def on_one_core(work: object) -> None:
    """Call `work` in this thread while another process computes on the only core that both may use."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        child = os.fork()
        if child == 0:
            compute(5)
            os._exit(0)
        work()
        os.kill(child, 9)
        os.waitpid(child, 0)
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_two_that_compute_on_one_core_wait_for_it() -> None:
    queue = CoreQueue()
    begin_ns, waited_ns = time.monotonic_ns(), queue.waited_ns()
    on_one_core(lambda: compute(0.2))
    waited_ns, wall_ns = queue.waited_ns() - waited_ns, time.monotonic_ns() - begin_ns
    assert waited_ns > 0.05 * 1e9
    assert waited_ns < wall_ns


def test_who_sleeps_does_not_wait_for_a_core() -> None:
    queue = CoreQueue()
    before = queue.waited_ns()
    time.sleep(0.3)
    assert queue.waited_ns() - before < 0.2 * 1e9


def test_another_thread_is_told_nothing() -> None:
    queue = CoreQueue()
    told: list[int] = []
    thread = threading.Thread(target=lambda: told.append(queue.waited_ns()))
    thread.start()
    thread.join()
    assert told == [0]


def test_a_kernel_that_does_not_tell_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "_FILE", "/nonexistent")
    assert CoreQueue().waited_ns() == 0


def test_a_script_that_closed_the_file_is_0() -> None:
    queue = CoreQueue()
    os.close(queue._file)
    assert queue.waited_ns() == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_lap_on_a_busy_core_has_computing_and_waiting() -> None:
    waits = Waits()
    assert waits.lap(time.monotonic_ns()) == (0, 0)
    begin_ns = time.monotonic_ns()
    on_one_core(lambda: compute(0.2))
    end_ns = time.monotonic_ns()
    used_ns, queued_ns = waits.lap(end_ns)
    assert used_ns >= 0.2e9
    assert 0.05e9 < queued_ns < end_ns - begin_ns - 0.2e9


def test_the_kernel_is_not_asked_about_a_lap_that_was_all_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits()
    begin_ns = time.monotonic_ns()
    waits.lap(begin_ns)
    monkeypatch.setattr(CoreQueue, "waited_ns", lambda _: 10**15)
    compute(0.01)
    assert waits.lap(begin_ns + 10_000_000)[1] == 0
    assert waits.lap(begin_ns + 20_000_000)[1] > 9_000_000, "no more than the lap's time off the core"


def test_laps_of_another_thread_are_nothing() -> None:
    waits = Waits()
    waits.lap(0)
    told: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: told.append(waits.lap(10**12)))
    thread.start()
    thread.join()
    assert told == [(0, 0)]


def test_what_is_skipped_is_in_no_lap() -> None:
    waits = Waits()
    waits.skip(5)
    assert waits.lap(10**9) == (0, 0)
    compute(0.05)
    waits.skip(2 * 10**9)
    used_ns, queued_ns = waits.lap(2 * 10**9 + 1)
    assert used_ns < 0.05e9
    assert queued_ns == 0
