"""The processes of one launch: started, each in a session of its own, and ended without remainder."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import IO

import msgspec

from dpdoctor import rundir
from dpdoctor.launch import forkserver, keeper, kept
from dpdoctor.launch.kept import KeptProcess
from dpdoctor.spec import DEVICE_IDS_VARIABLE, TASK_VARIABLE, ModeSpec, WorkerTask

GRACE_S = 2.0
MODULE = "dpdoctor.worker"
WORKER = (sys.executable, "-m", MODULE)
# What a rank imports before it runs the script, in that order, and what torch imports for the first optimizer.
PRELOAD = ("dpdoctor.worker.ending", "dpdoctor.worker.rank", "torch._dynamo", "dpdoctor.worker.overlay.holders")
# What a launcher announces that dpdoctor itself was started by, or a shell: ranks of ours would meet there.
_ANNOUNCED = ("MASTER_ADDR", "MASTER_PORT")
_ANNOUNCED_PREFIX = "TORCHELASTIC_"


class RankProcess:
    """One rank, with a keeper that ends all that it started."""

    def __init__(self, task: WorkerTask, rank: int) -> None:
        self.rank = rank
        self.directory = rundir.rank_dir(Path(task.directory), rank)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ended_by_us = False
        with (
            (self.directory / rundir.STDOUT).open("wb") as stdout,
            (self.directory / rundir.STDERR).open("wb") as stderr,
        ):
            # `-m` puts the current directory on the import path: this one holds nothing that could be imported.
            self._process = _started(task, _environment(task, rank), stdout, stderr)

    @property
    def pid(self) -> int:
        """Return the number of the rank's process."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the rank runs."""
        return self._process.poll()

    def fileno(self) -> int:
        """Return what can be read from when a rank that ran has ended."""
        return self._process.fileno()

    def send(self, signum: int) -> None:
        """Send a signal to the rank alone; nothing happens when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signum)

    def kill_all(self) -> bool:
        """Kill the rank and everything it started; return whether nothing is left of it."""
        return self._process.end()

    def leave(self) -> None:
        """Let the keeper go, when what was left to do in the launch's directory is done."""
        self._process.leave()

    def log_bytes(self) -> int:
        """Return how much the rank has printed."""
        return sum((self.directory / name).stat().st_size for name in (rundir.STDOUT, rundir.STDERR))


def start(task: WorkerTask, ranks: list[RankProcess]) -> None:
    """Start the ranks of a task at once; they are added to `ranks`, one by one, in case that the rest cannot start."""
    ranks.extend(RankProcess(task, rank) for rank in range(task.mode.world_size))
    for process in ranks:
        if not process.pid:
            raise ChildProcessError(f"{sys.executable} could not be started")


def _started(task: WorkerTask, environment: dict[str, str], stdout: IO[bytes], stderr: IO[bytes]) -> KeptProcess:
    """Start a rank as a new process or, where servers may be used and nothing computes on a GPU, as a forked one.

    A bare one is always new: it is what people run, and its wall goes up before torch is there.
    """
    servers = os.environ.get(forkserver.DIRECTORY_VARIABLE)
    if servers and not task.spec.devices and not task.bare:
        request = forkserver.Request(module=MODULE, cwd=task.directory, environment=environment, kept=task.directory)
        forked = forkserver.start(servers, request, preload=PRELOAD, stdout=stdout, stderr=stderr)
        if forked is not None:
            return forked
    return kept.start(WORKER, cwd=task.directory, environment=environment, stdout=stdout, stderr=stderr)


def wait_for_one(ranks: list[RankProcess], seconds: float) -> None:
    """Wait so long, or until one of those that still run has ended."""
    connection.wait([rank.fileno() for rank in ranks if rank.exit_code() is None], seconds)


def end(ranks: list[RankProcess]) -> None:
    """Ask the ranks that still run to keep what they have and leave; kill all that is left after a short grace."""
    for rank in ranks:
        if rank.exit_code() is None:
            rank.ended_by_us = True
            rank.send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(rank.exit_code() is None for rank in ranks):
        time.sleep(0.05)
    kill(ranks)


def kill(ranks: list[RankProcess]) -> None:
    """Kill ranks and all that they started."""
    for rank in ranks:
        rank.kill_all()


@contextlib.contextmanager
def ending(ranks: list[RankProcess], tidy: Callable[[], None]) -> Iterator[None]:
    """Leave no process behind, whatever happens, and the directory of the launch tidy.

    What keepers that were killed leave behind comes to this process, unless servers fork for it: they may be its own.
    """
    wraps = forkserver.DIRECTORY_VARIABLE not in os.environ
    before = frozenset(keeper.children())
    if wraps:
        keeper.wrap(wanted=True)
    try:
        yield
    finally:
        all_ended = [rank.kill_all() for rank in ranks]
        tidy()
        for rank in ranks:
            rank.leave()
        if wraps:
            if not all(all_ended):
                keeper.end_all(*(rank.pid for rank in ranks), spared=before)
            keeper.wrap(wanted=False)


def _environment(task: WorkerTask, rank: int) -> dict[str, str]:
    threads = str(task.spec.threads_per_device)
    environment = {
        **{name: value for name, value in os.environ.items() if not _is_announced(name)},
        TASK_VARIABLE: msgspec.json.encode(task).decode(),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(task.mode.world_size),
        "LOCAL_WORLD_SIZE": str(task.mode.world_size),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop(forkserver.DIRECTORY_VARIABLE, None)
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # It orders sets of strings: each rank would number the words of a vocabulary in its own way.
    environment.setdefault("PYTHONHASHSEED", str(task.spec.seed % 2**32))
    absolute_python_path(environment)
    if task.spec.devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(task.spec.devices[i] for i in _places(task.mode, rank))
    elif "CUDA_VISIBLE_DEVICES" not in environment:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if task.mode.replicas or task.mode.num_devices > task.mode.world_size:
        places = _places(task.mode, rank)
        environment[DEVICE_IDS_VARIABLE] = ",".join(str(places.index(i)) for i in task.mode.replicas or places)
    return environment


def _is_announced(name: str) -> bool:
    return name in _ANNOUNCED or name.startswith(_ANNOUNCED_PREFIX)


def absolute_python_path(environment: dict[str, str]) -> None:
    """Keep what PYTHONPATH means in an environment for a process that begins in another directory."""
    if environment.get("PYTHONPATH"):
        # An empty entry means the directory that the person stands in.
        paths = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths)


def _places(mode: ModeSpec, rank: int) -> list[int]:
    """Return which of the run's devices a rank sees, in the order in which torch numbers them.

    nn.DataParallel wants the model on its first device, and scripts put it on "cuda:0": that one comes first.
    """
    if mode.distributed:
        return [rank]
    return list(dict.fromkeys(mode.replicas) or range(mode.num_devices))
