"""Processes that a server forks: how they begin, how they end, and that nothing of them stays behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dpdoctor.launch import forkserver
from dpdoctor.launch.forkserver import Request
from dpdoctor.launch.kept import KeptProcess
from tests.unit.launch.conftest import lives, until

SLEEPS = "import time; print('here', flush=True); time.sleep(60)"


@pytest.fixture
def servers() -> Iterator[Path]:
    """Yield a directory for servers, of a short name; they end with the test."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)
    until(lambda: not serving(Path(directory)))


def serving(directory: Path) -> list[int]:
    """Return the processes of the servers below a directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(part.startswith(f"{directory}{os.sep}") for part in process.cmdline()):
                found.append(process.pid)
    return found


def finding(directory: Path) -> dict[str, str]:
    """Return the environment in which Python finds the modules of a directory too."""
    paths = filter(None, (str(directory), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Forked:
    """A process that runs a few lines, and what it printed."""

    def __init__(self, process: KeptProcess | None, printed: Path) -> None:
        assert process is not None
        self.process = process
        self._printed = printed

    @property
    def lines(self) -> list[str]:
        return self._printed.read_text().splitlines()


Fork = Callable[..., Forked]


@pytest.fixture
def fork(servers: Path, tmp_path: Path) -> Fork:
    """Return a function that forks a process which runs a few lines as the module `task`."""

    def run(lines: str, *arguments: str, preload: tuple[str, ...] = (), **environment: str) -> Forked:
        (tmp_path / "task.py").write_text(lines)
        everything = {**finding(tmp_path), **environment}
        request = Request(module="task", arguments=arguments, cwd=str(tmp_path), environment=everything)
        printed = tmp_path / "printed"
        with printed.open("wb") as out:
            process = forkserver.start(str(servers), request, preload=preload, stdout=out, stderr=out)
        return Forked(process, printed)

    return run


def test_it_begins_as_a_new_process_would(fork: Fork, tmp_path: Path) -> None:
    forked = fork(
        "import os, sys\n"
        "print(sys.argv, os.getcwd(), sys.path[0])\n"
        "print(__name__, os.environ['RANK'], os.getsid(0) == os.getpid())\n",
        *("a", "--b"),
        RANK="3",
    )
    assert forked.process.wait() == 0
    assert forked.lines == [f"{[str(tmp_path / 'task.py'), 'a', '--b']} {tmp_path} {tmp_path}", "__main__ 3 True"]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("raise ValueError('planted')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    ],
)
def test_its_exit_code_is_that_of_a_new_process(fork: Fork, lines: str, code: int) -> None:
    forked = fork(lines)
    assert forked.process.wait() == code
    assert forked.process.poll() == code
    assert ("ValueError: planted" in forked.lines) == (code == 1)


def test_what_was_imported_before_is_there_and_nothing_is_imported_twice(fork: Fork, tmp_path: Path) -> None:
    (tmp_path / "costly.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    found = [fork("import costly, os; print(costly.IMPORTED_BY, os.getppid())", preload=("costly",)) for _ in range(2)]
    assert [forked.process.wait() for forked in found] == [0, 0]
    pid, parent = found[-1].lines[0].split()
    assert pid != parent, "the process that imported went when its fork listened"


def test_signals_reach_it_and_a_dead_one_takes_no_notice(fork: Fork) -> None:
    forked = fork(SLEEPS)
    until(lambda: forked.lines == ["here"])
    assert forked.process.poll() is None
    forked.process.send_signal(signal.SIGUSR2)
    assert forked.process.wait() == -signal.SIGUSR2
    forked.process.send_signal(signal.SIGUSR2)


def test_it_is_killed_with_whoever_asked_for_it(servers: Path, fork: Fork, tmp_path: Path) -> None:
    fork("").process.wait()
    (tmp_path / "task.py").write_text("import os; print(os.getpid(), flush=True)\n" + SLEEPS)
    asking = (
        "import os, time\n"
        "from dpdoctor.launch.forkserver import Request, start\n"
        f"request = Request(module='task', cwd={str(tmp_path)!r}, environment=dict(os.environ))\n"
        f"with open({str(tmp_path / 'child')!r}, 'wb') as out:\n"
        f"    process = start({str(servers)!r}, request, preload=(), stdout=out, stderr=out)\n"
        "time.sleep(60)\n"
    )
    asker = subprocess.Popen([sys.executable, "-c", asking], env=finding(tmp_path))
    child = tmp_path / "child"
    until(lambda: child.exists() and "here" in child.read_text())
    pid = int(child.read_text().split()[0])
    assert lives(pid)
    asker.kill()
    asker.wait()
    until(lambda: not lives(pid))


def test_it_ends_with_its_server(servers: Path, fork: Fork) -> None:
    forked = fork(SLEEPS)
    until(lambda: forked.lines == ["here"])
    shutil.rmtree(servers)
    assert forked.process.wait() == -signal.SIGKILL


def test_environments_that_modules_may_read_have_servers_of_their_own(servers: Path, fork: Fork) -> None:
    for environment in ({"RANK": "0"}, {"RANK": "1"}, {"OMP_NUM_THREADS": "3"}):
        fork("", **environment).process.wait()
    assert sum(path.is_socket() for path in servers.iterdir()) == 2


def test_the_server_asked_longest_ago_makes_room_and_what_it_forked_goes_on(
    servers: Path, fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "_MOST_SERVERS", 2)
    sleeping = fork(SLEEPS, OMP_NUM_THREADS="3")
    until(lambda: sleeping.lines == ["here"])
    for threads in ("4", "5", "4"):
        fork("", OMP_NUM_THREADS=threads).process.wait()
    assert sum(path.is_socket() for path in servers.iterdir()) == 2
    assert sleeping.process.poll() is None
    sleeping.process.send_signal(signal.SIGTERM)
    assert sleeping.process.wait() == -signal.SIGTERM
    server = fork("import os; print(os.getppid())", OMP_NUM_THREADS="5")
    server.process.wait()
    pid = int(server.lines[0])
    for threads in ("6", "4"):
        fork("", OMP_NUM_THREADS=threads).process.wait()
    until(lambda: not lives(pid))


def test_where_none_may_be_used_the_caller_starts_a_process_itself(servers: Path, tmp_path: Path) -> None:
    request = Request(module="task", cwd=str(tmp_path), environment={"OTHER": "1"})
    large = Request(module="task", cwd=str(tmp_path), environment={"LARGE": "x" * 300_000})
    with (tmp_path / "printed").open("wb") as out:
        for directory, asked in ((servers, large), (tmp_path / "gone", request)):
            assert forkserver.start(str(directory), asked, preload=(), stdout=out, stderr=out) is None


def test_a_server_that_cannot_import_is_none(servers: Path, tmp_path: Path) -> None:
    request = Request(module="task", cwd=str(tmp_path), environment=dict(os.environ))
    with (tmp_path / "printed").open("wb") as out:
        found = forkserver.start(str(servers), request, preload=("there_is_no_such_module",), stdout=out, stderr=out)
    assert found is None
    (log,) = servers.glob("*.log")
    assert "there_is_no_such_module" in log.read_text()
