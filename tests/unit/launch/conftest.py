"""Real processes in place of ranks: a line of Python each, started as ranks are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dpdoctor.launch import processes
from dpdoctor.launch.processes import RankProcess
from dpdoctor.spec import RunSpec, WorkerTask
from tests.builders.handclock import HandClock
from tests.builders.specs import mode_spec

Start = Callable[..., RankProcess]


def task_in(directory: Path, *, world_size: int = 2, devices: tuple[str, ...] = ()) -> WorkerTask:
    """Return a task whose ranks live below `directory`."""
    mode = mode_spec("ddp", world_size)
    spec = RunSpec(
        target="/home/me/train.py",
        cwd="/home/me",
        modes=(mode,),
        requested_modes=("ddp",),
        devices=devices,
        threads_per_device=3,
    )
    return WorkerTask(spec=spec, mode=mode, directory=str(directory))


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Give a function that starts Python on a few lines as the process of a rank; all end with the test."""
    started: list[RankProcess] = []

    def begin(lines: str = "import time; time.sleep(60)", *, rank: int | None = None) -> RankProcess:
        monkeypatch.setattr(processes, "WORKER", (sys.executable, "-c", lines))
        number = len(started) if rank is None else rank
        started.append(RankProcess(task_in(tmp_path), number))
        return started[-1]

    yield begin
    for process in started:
        process.kill_all()
        process.leave()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def ended(start: Start) -> Callable[..., RankProcess]:
    """Give a function that runs a few lines as a rank's process and waits until it has ended."""

    def run(lines: str = "", *, rank: int | None = None) -> RankProcess:
        process = start(lines, rank=rank)
        until(lambda: process.exit_code() is not None)
        return process

    return run


@pytest.fixture
def clock() -> HandClock:
    """Give a clock that stands at 0."""
    return HandClock()
