"""The cores as this kernel tells of them: their use, a fixed piece of arithmetic on one, the wait for one."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
from multiprocessing.synchronize import Event

import pytest

from dpdoctor.worker.facts import cpu
from dpdoctor.worker.facts.cpu import CoreQueue, CpuMeter, Waits, core_benchmark_ns
from tests.builders.handclock import HandClock

BURNT_S = 0.2


def burn() -> None:
    """Take 0.2 s of a core, however long that lasts."""
    begin = time.thread_time()
    while time.thread_time() - begin < BURNT_S:
        sum(range(10_000))


def children_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


@pytest.mark.measured
def test_nothing_measured_is_nothing_used() -> None:
    meter = CpuMeter()
    assert meter.use() is None
    meter.end()
    meter.begin()
    assert meter.use() is None


@pytest.mark.measured
def test_stretches_add_up_and_what_lies_between_them_is_left_out() -> None:
    meter, wall_s, cpu_s = CpuMeter(), 0.0, 0.0
    for _ in range(2):
        meter.begin()
        begin, used = time.monotonic(), time.process_time()
        burn()
        wall_s, cpu_s = wall_s + time.monotonic() - begin, cpu_s + time.process_time() - used
        meter.end()
        burn()
    found = meter.use()
    assert found is not None
    # Reading takes a little, the kernel counts in ticks.
    assert cpu_s - 0.02 <= found.cpu_s <= cpu_s + 0.1
    assert found.cpu_s < 3.5 * BURNT_S
    assert wall_s <= found.wall_s
    assert found.workers_cpu_s < 0.5 * BURNT_S


@pytest.mark.measured
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_counts_while_it_lives_and_when_it_has_ended() -> None:
    meter, context = CpuMeter(), multiprocessing.get_context("fork")
    burnt, may_end = context.Event(), context.Event()
    worker = context.Process(target=burn_twice, args=(burnt, may_end))
    before_s = children_s()
    meter.begin()
    worker.start()
    burnt.wait()
    meter.end()
    alive = meter.use()
    meter.begin()
    may_end.set()
    worker.join()
    meter.end()
    ended = meter.use()
    assert alive is not None
    assert ended is not None
    assert alive.workers_cpu_s == pytest.approx(BURNT_S, abs=0.1)
    assert ended.workers_cpu_s == pytest.approx(children_s() - before_s, abs=0.05)
    assert ended.workers_cpu_s > 1.9 * BURNT_S


def burn_twice(burnt: Event, may_end: Event) -> None:
    burn()
    burnt.set()
    may_end.wait()
    burn()


@pytest.mark.measured
def test_a_worker_of_a_fork_server_counts_as_any_other() -> None:
    meter, context = CpuMeter(), multiprocessing.get_context("forkserver")
    burnt, may_end = context.Event(), context.Event()
    worker = context.Process(target=burn_twice, args=(burnt, may_end))
    worker.start()
    burnt.wait()
    meter.begin()
    may_end.set()
    worker.join()
    meter.end()
    found = meter.use()
    assert found is not None
    assert found.workers_cpu_s == pytest.approx(BURNT_S, abs=0.1)


@pytest.mark.measured
def test_threads_are_those_at_the_end() -> None:
    meter, may_end = CpuMeter(), threading.Event()
    meter.begin()
    meter.end()
    alone = meter.use()
    threads = [threading.Thread(target=may_end.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    meter.begin()
    meter.end()
    may_end.set()
    for thread in threads:
        thread.join()
    among = meter.use()
    assert alone is not None
    assert among is not None
    assert among.num_threads == alone.num_threads + 5


@pytest.mark.measured
def test_a_thread_that_has_to_share_a_core_is_switched() -> None:
    meter = CpuMeter()
    meter.begin()
    burning = [threading.Thread(target=burn) for _ in range(4)]
    for thread in burning:
        thread.start()
    for thread in burning:
        thread.join()
    meter.end()
    found = meter.use()
    assert found is not None
    assert found.involuntary_switches is not None
    assert found.involuntary_switches > 0


def test_it_counts_no_more_than_the_thread_computed() -> None:
    before_ns = time.thread_time_ns()
    taken_ns = core_benchmark_ns()
    assert 0 < taken_ns < time.thread_time_ns() - before_ns


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


@pytest.mark.measured
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_two_that_compute_on_one_core_wait_for_it() -> None:
    queue = CoreQueue()
    begin_ns, waited_ns = time.monotonic_ns(), queue.waited_ns()
    on_one_core(lambda: compute(0.2))
    waited_ns, wall_ns = queue.waited_ns() - waited_ns, time.monotonic_ns() - begin_ns
    assert waited_ns > 0.05 * 1e9
    assert waited_ns < wall_ns


@pytest.mark.measured
def test_who_sleeps_does_not_wait_for_a_core() -> None:
    queue = CoreQueue()
    before = queue.waited_ns()
    time.sleep(0.3)
    assert queue.waited_ns() - before < 0.2 * 1e9


@pytest.mark.measured
def test_another_thread_is_told_no_wait() -> None:
    queue = CoreQueue()
    told: list[int] = []
    thread = threading.Thread(target=lambda: told.append(queue.waited_ns()))
    thread.start()
    thread.join()
    assert told == [0]


@pytest.mark.measured
def test_a_kernel_that_does_not_tell_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_SCHEDSTAT", "/nonexistent")
    assert CoreQueue().waited_ns() == 0


@pytest.mark.measured
def test_a_script_that_closed_the_file_is_0() -> None:
    queue = CoreQueue()
    os.close(queue._file)
    assert queue.waited_ns() == 0


@pytest.mark.measured
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_lap_on_a_busy_core_has_computing_and_waiting() -> None:
    waits = Waits(time.monotonic_ns)
    used_ns, queued_ns, _, begin_ns = waits.lap()
    assert (used_ns, queued_ns) == (0, 0)
    on_one_core(lambda: compute(0.2))
    used_ns, queued_ns, end_ns, _ = waits.lap()
    assert used_ns >= 0.2e9
    assert 0.05e9 < queued_ns < end_ns - begin_ns - 0.2e9


@pytest.mark.measured
def test_the_kernel_is_not_asked_about_a_lap_that_was_all_computing(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(clock)
    waits.lap()
    monkeypatch.setattr(CoreQueue, "waited_ns", lambda _: 10**15)
    compute(0.01)
    clock.tick(10_000_000)
    assert waits.lap()[1:] == (0, 10_000_000, 10_000_000)
    clock.tick(10_000_000)
    assert 9_000_000 < waits.lap()[1] <= 10_000_000, "no more than the lap's time off the core"


@pytest.mark.measured
def test_to_ask_the_kernel_lies_between_two_laps(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def waited_ns(_: CoreQueue) -> int:
        clock.tick(7)
        return 0

    monkeypatch.setattr(CoreQueue, "waited_ns", waited_ns)
    waits = Waits(clock)
    assert waits.lap()[2:] == (0, 7)
    clock.tick(10**9)
    assert waits.lap()[2:] == (10**9 + 7, 10**9 + 14)
    assert waits.lap()[2:] == (10**9 + 14, 10**9 + 14)


@pytest.mark.measured
def test_laps_of_another_thread_are_nothing(clock: HandClock) -> None:
    waits = Waits(clock)
    waits.lap()
    clock.tick(10**12)
    told: list[tuple[int, ...]] = []
    thread = threading.Thread(target=lambda: told.append(waits.lap()))
    thread.start()
    thread.join()
    assert told == [(0, 0, 10**12, 10**12)]


@pytest.mark.measured
def test_what_is_skipped_is_in_no_lap(clock: HandClock) -> None:
    waits = Waits(clock)
    waits.skip()
    assert waits.lap()[:2] == (0, 0)
    compute(0.05)
    clock.tick(10**9)
    waits.skip()
    used_ns, queued_ns, *_ = waits.lap()
    assert used_ns < 0.05e9
    assert queued_ns == 0
