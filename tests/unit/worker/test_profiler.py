from __future__ import annotations

import hashlib
import threading

import pytest
import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from dpdoctor.worker.profiler import Profile

# Digested without Python's lock.
WORK = bytes(20_000_000)
SCHEDULE = (ProfilerAction.RECORD_AND_SAVE, ProfilerAction.NONE)


@pytest.fixture
def profile() -> Profile:
    found = Profile(activities=[ProfilerActivity.CPU])
    found.start()
    return found


def test_it_stops_when_another_thread_has_done_its_work(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, done = threading.Event(), threading.Event()
    at_stop = []
    stop_trace = torch.profiler.profile.stop_trace
    monkeypatch.setattr(
        torch.profiler.profile, "stop_trace", lambda self: (at_stop.append(done.is_set()), stop_trace(self))
    )

    def work() -> None:
        begun.set()
        hashlib.sha256(WORK)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    profile.stop()
    thread.join()
    assert at_stop == [True]


def test_it_stops_beside_a_thread_that_never_ends(profile: Profile) -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            hashlib.sha256(WORK)

    thread = threading.Thread(target=work)
    thread.start()
    profile.stop()
    ended.set()
    thread.join()


def test_what_ends_by_its_schedule_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr("dpdoctor.worker.profiler._another_thread_runs", lambda: looked.append(True))
    profile = Profile(activities=[ProfilerActivity.CPU], schedule=lambda step: SCHEDULE[step])
    profile.start()
    profile.step()
    assert looked
    profile.stop()
