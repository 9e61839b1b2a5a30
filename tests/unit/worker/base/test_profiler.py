from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from dpdoctor.worker.base.profiler import Profile

# Digested without Python's lock.
WORK = bytes(20_000_000)
SCHEDULE = (ProfilerAction.RECORD_AND_SAVE, ProfilerAction.NONE)


Stop = Callable[[Callable[[], None]], bool]


@pytest.fixture
def alive_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Return a function that stops beside a thread, and returns whether that still worked when torch really stopped."""
    stop_trace = torch.profiler.profile.stop_trace

    def run(work: Callable[[], None]) -> bool:
        thread, found = threading.Thread(target=work), []
        monkeypatch.setattr(
            torch.profiler.profile, "stop_trace", lambda self: (found.append(thread.is_alive()), stop_trace(self))
        )
        profile = Profile(activities=[ProfilerActivity.CPU])
        profile.start()
        thread.start()
        profile.stop()
        return found == [True]

    return run


def test_it_stops_when_another_thread_has_done_its_work(
    alive_at_the_end: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On busy cores the work takes longer than it would ever be waited for.
    monkeypatch.setattr("dpdoctor.worker.base.profiler._LONGEST_S", 60)

    def work() -> None:
        hashlib.sha256(WORK)

    assert not alive_at_the_end(work)


def test_it_stops_beside_a_thread_that_never_ends(alive_at_the_end: Stop) -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            hashlib.sha256(WORK)

    assert alive_at_the_end(work)
    ended.set()


def test_what_ends_by_its_schedule_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr("dpdoctor.worker.base.profiler._another_thread_runs", lambda: looked.append(True))
    profile = Profile(activities=[ProfilerActivity.CPU], schedule=lambda step: SCHEDULE[step])
    profile.start()
    profile.step()
    assert looked
    profile.stop()
