from __future__ import annotations

import multiprocessing
import resource
import threading
import time
from multiprocessing.synchronize import Event

import pytest

from dpdoctor.worker.facts.cpu import CpuMeter

pytestmark = pytest.mark.measured

BURNT_S = 0.2


def burn() -> None:
    """Take 0.2 s of a core, however long that lasts."""
    begin = time.thread_time()
    while time.thread_time() - begin < BURNT_S:
        sum(range(10_000))


def children_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def test_nothing_measured_is_nothing_used() -> None:
    meter = CpuMeter()
    assert meter.use() is None
    meter.end()
    meter.begin()
    assert meter.use() is None


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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_counts_while_it_lives_and_when_it_has_ended() -> None:
    meter, context = CpuMeter(), multiprocessing.get_context("fork")
    burnt, may_end = context.Event(), context.Event()
    worker = context.Process(target=work, args=(burnt, may_end))
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


def work(burnt: Event, may_end: Event) -> None:
    burn()
    burnt.set()
    may_end.wait()
    burn()


def test_a_worker_of_a_fork_server_counts_as_any_other() -> None:
    meter, context = CpuMeter(), multiprocessing.get_context("forkserver")
    burnt, may_end = context.Event(), context.Event()
    worker = context.Process(target=work, args=(burnt, may_end))
    worker.start()
    burnt.wait()
    meter.begin()
    may_end.set()
    worker.join()
    meter.end()
    found = meter.use()
    assert found is not None
    assert found.workers_cpu_s == pytest.approx(BURNT_S, abs=0.1)


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
