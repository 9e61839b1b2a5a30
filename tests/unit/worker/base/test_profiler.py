from __future__ import annotations

import hashlib
import inspect
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerAction, ProfilerActivity

from dpdoctor.worker.base import profiler
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.base.profiler import KEPT, Profile

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


CPU = [ProfilerActivity.CPU]


@pytest.fixture
def told(patches: Patches) -> list[str]:
    """Keep every profiler but ours from recording; give what is warned of."""
    heard: list[str] = []
    profiler.keep_others(patches, heard.append)
    return heard


def own_marks(profile: Profile) -> list[str]:
    """Return the marks of steps among what was recorded."""
    return [event.name for event in profile.events() if event.name.startswith("ProfilerStep")]


@pytest.mark.parametrize("begins_first", [True, False])
def test_ours_records_beside_one_that_is_kept_from_it(told: list[str], begins_first: bool) -> None:
    ours = Profile(activities=CPU, schedule=torch.profiler.schedule(wait=0, warmup=1, active=1))
    theirs = torch.profiler.profile(activities=CPU, schedule=torch.profiler.schedule(wait=1, warmup=1, active=1))
    for each in (theirs, ours) if begins_first else (ours, theirs):
        each.start()
    for each in (theirs, ours, theirs, theirs):
        torch.ones(3).add_(1)
        each.step()
    ours.stop()
    theirs.stop()
    assert told == [KEPT]
    assert len(theirs.events()) == 0
    assert own_marks(ours) == ["ProfilerStep*"]


def test_one_that_is_kept_answers_as_after_an_idle_time(told: list[str], tmp_path: Path) -> None:
    ready = []
    with torch.profiler.profile(activities=CPU, with_stack=True, on_trace_ready=ready.append) as theirs:
        torch.ones(3).add_(1)
        theirs.step()
        theirs.toggle_collection_dynamic(False, CPU)
    assert ready == [theirs]
    assert theirs.key_averages().table() == theirs.key_averages(group_by_input_shape=True).table() == ""
    known = inspect.signature(theirs.export_chrome_trace).parameters
    ways = {"plain": {}, **({"python": {"use_python_export": True}} if "use_python_export" in known else {})}
    for name, how in ways.items():
        theirs.export_chrome_trace(str(tmp_path / name), **how)
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        assert not [event for event in events if event["ph"] == "X"]
    theirs.export_stacks(str(tmp_path / "stacks"))
    assert told == [KEPT]


@pytest.mark.usefixtures("told")
def test_that_of_autograd_is_kept_too(tmp_path: Path) -> None:
    with torch.autograd.profiler.profile(use_kineto=True) as theirs:
        torch.ones(3).add_(1)
    assert theirs.self_cpu_time_total == 0
    theirs.export_chrome_trace(str(tmp_path / "trace"))
    with torch.autograd.profiler.profile(enabled=False) as none:
        assert none is None


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_after_the_patches_each_cycle_records_again(patches: Patches, told: list[str]) -> None:
    found = []

    def ready(finished: Any) -> None:
        found.append((len(finished.events()) > 0, any("ProfilerStep" in event.name for event in finished.events())))

    theirs = torch.profiler.profile(
        activities=CPU, schedule=torch.profiler.schedule(wait=0, warmup=1, active=1), on_trace_ready=ready
    )
    with theirs:
        for step in range(6):
            torch.ones(3).add_(1)
            if step == 2:
                patches.undo()
            theirs.step()
    assert found == [(False, False), (False, False), (True, True)]
    assert told == [KEPT, KEPT]
