"""What a rank starts ends with it, however it ends, and both end with the launcher, with the keeper, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dpdoctor import rundir
from dpdoctor.launch import keeper, kept, processes, tidy
from dpdoctor.launch.kept import KeptProcess
from dpdoctor.launch.processes import RankProcess
from dpdoctor.spec import TASK_VARIABLE
from tests.unit.launch.conftest import lives, task_in, until

# Leaves behind a child in a session of its own, one of a child that has ended, and semaphores that Python's resource
# tracker watches over; all heed no polite request. Says how the kernel ends it with its parent.
RANK = """
import ctypes, multiprocessing, os, signal, subprocess, sys, time
deadly = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(deadly))
stubborn = "trap '' TERM HUP INT; sleep 60 & echo $!; wait"
def child(command):
    return int(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True).stdout.readline())
first = child(["sh", "-c", stubborn])
second = child([sys.executable, "-c", f"import subprocess; subprocess.Popen(['sh', '-c', {stubborn!r}])"])
semaphore = multiprocessing.get_context("spawn").Semaphore()
print(deadly.value, os.getpid(), first, second, semaphore._semlock.name.lstrip("/"), flush=True)
"""
WAITS, RETURNS, IS_KILLED = "time.sleep(60)", "", "os.kill(os.getpid(), signal.SIGKILL)"


def said(directory: Path) -> tuple[list[int], Path]:
    """Return the processes of a rank that has said all, and the file of its semaphore."""
    printed = directory / rundir.STDOUT
    until(lambda: printed.exists() and "\n" in printed.read_text())
    # Python's resource tracker may have printed by then, too, what a rank that was killed left behind.
    deadly, *pids, semaphore = printed.read_text().splitlines()[0].split()
    assert deadly == "9", "before it ran a line of Python it was to die with its parent"
    return list(map(int, pids)), Path("/dev/shm", f"sem.{semaphore}")


def nothing_is_left(pids: list[int], semaphore: Path) -> bool:
    return not any(map(lives, pids)) and not semaphore.exists()


def start(directory: Path, lines: str) -> KeptProcess:
    command = (sys.executable, "-c", RANK + lines)
    environment = {**os.environ, TASK_VARIABLE: msgspec.json.encode(task_in(directory)).decode()}
    with (directory / rundir.STDOUT).open("wb") as out:
        return kept.start(command, cwd=str(directory), environment=environment, stdout=out, stderr=out)


@pytest.mark.parametrize(("lines", "code"), [(RETURNS, 0), (IS_KILLED, -9), (WAITS, -9)])
def test_all_that_a_rank_started_ends_with_it(tmp_path: Path, lines: str, code: int) -> None:
    process = start(tmp_path, lines)
    pids, semaphore = said(tmp_path)
    assert process.pid == pids[0]
    if lines != WAITS:
        assert process.wait() == code
    assert process.end()
    assert process.poll() == code
    assert nothing_is_left(pids, semaphore)
    process.leave()


LAUNCHER = """
import pathlib, sys, time
from tests.unit.launch.test_keeper import WAITS, start
process = start(pathlib.Path(sys.argv[1]), WAITS)
time.sleep(60)
"""


def test_ranks_end_with_a_launcher_that_is_killed_and_what_it_would_have_removed_is_gone(tmp_path: Path) -> None:
    scratch = [tmp_path / "rank0" / name for name in (rundir.OVERLAY, rundir.COPIES)]
    for directory in scratch:
        (directory / "home").mkdir(parents=True)
    root = str(Path(keeper.__file__).parents[2])
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], cwd=root)
    pids, semaphore = said(tmp_path)
    launcher.kill()
    launcher.wait()
    until(lambda: nothing_is_left(pids, semaphore) and not any(map(Path.exists, scratch)))
    assert nothing_is_left(pids, semaphore)


def test_what_a_keeper_that_is_killed_leaves_behind_is_ended_by_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPDOCTOR_FORKSERVERS", raising=False)
    monkeypatch.setattr(processes, "WORKER", (sys.executable, "-c", RANK + WAITS))
    ranks: list[RankProcess] = []
    bystander = subprocess.Popen(["sleep", "60"])
    with processes.ending(ranks, lambda: tidy.tidy(tmp_path)):
        processes.start(task_in(tmp_path, world_size=1), ranks)
        pids, semaphore = said(ranks[0].directory)
        os.kill(int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(") ")[2].split()[1]), 9)
        until(lambda: ranks[0].exit_code() is not None)
        assert ranks[0].exit_code() == -9
    assert nothing_is_left(pids, semaphore)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_what_torch_keeps_in_shared_memory_goes_with_its_process_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_SHARED_MEMORY", str(tmp_path))
    for name in ("torch_12_345_0", "torch_123_45_0", "torch_x", "psm_12"):
        (tmp_path / name).touch()
    keeper.end_all(12, spared=keeper.children())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["psm_12", "torch_123_45_0", "torch_x"]
