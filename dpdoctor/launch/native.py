"""A launch whose ranks the script, or a launcher of the user's, starts: one command, ranks found by what they leave.

The verdict comes from their records, never from the command's exit code alone: a launcher may hang, or fail, although
all ranks ended well.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec
import psutil

from dpdoctor import heartbeat, rundir, units
from dpdoctor.heartbeat import Beat
from dpdoctor.launch import forkserver, kept, machine, watch
from dpdoctor.launch.interruption import Interruption
from dpdoctor.launch.kept import KeptProcess
from dpdoctor.launch.processes import RankProcess, absolute_python_path
from dpdoctor.launch.progress import Progress
from dpdoctor.launch.tidy import tidy
from dpdoctor.launch.watch import Hope, LaunchOutcome, Patience
from dpdoctor.spec import BASELINE, INJECT, NATIVE_VARIABLE, NO_WALL, STACKS_SIGNAL, TASK_VARIABLE, WorkerTask

PERIOD_S = 0.25
# Once all ranks have recorded what they must, a parent of theirs may wait for them for ever, or begin others.
LEAVING_S = 10.0
# Ranks may outlive who started them: those of torchrun do when it is killed.
ORPHANED_S = 3.0
# A rank that failed makes its peers fail, too; they get this long to say why.
PEERS_GRACE_S = 3.0
# Others may follow a world of ranks that failed, of which so many may fail, and the command do nothing for so long.
MOST_FAILED, ANEW_S = 4, 60.0
# Time for faulthandler to write the stacks of stuck ranks.
STACKS_S = 1.0
# Between SIGTERM and SIGKILL.
END_GRACE_S = 2.0

WALLED = "dpdoctor.worker.walled"
NO_WALL_TEXT = (
    "this machine lets dpdoctor put no wall between the script's processes and your files ({}). Give --allow-writes to "
    "let the script really write"
)
UNSEEN = (
    "processes of the script join each other over torch.distributed.rpc, and none took a training step that could be "
    "seen: distributed autograd and its optimizers run without one. Ranks that train by themselves are measured"
)
WENT_ON = "the job went on once enough was recorded, and failed then: its command {}"

# Stands for the whole job among the numbers of ranks.
JOB = -1
# Of what the command printed, in which is looked for why it failed.
MOST_LINES = 400
_TORCHRUN = re.compile(r"^[EW]\d{4} .*\btorch/distributed/elastic/")
_WAS_ENDED, _OF_THREADS = "death signal", "Setting OMP_NUM_THREADS environment variable for each process"
# What torch, or the script itself, finds missing where nothing started its ranks.
_LACKS_LAUNCHER = re.compile(r"environment variable \w+ expected, but not set|KeyError: '(LOCAL_)?(RANK|WORLD_SIZE)'")
NO_LAUNCHER = ". A launcher sets that for each rank: give --nproc 2 for torchrun, or --launcher with another"
_SAYS = re.compile(r"\w")  # no mere ruler
_RAISED = re.compile(r"^(\[rank\d+\]: )?[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b: .")


class SeenRank(RankProcess):
    """One rank that dpdoctor did not start: what it says of itself in its directory."""

    def __init__(self, directory: Path) -> None:
        self.rank = int(directory.name.removeprefix("rank"))
        self.directory = directory
        self.ended_by_us = False
        self._pid = 0

    @property
    def pid(self) -> int:
        """Return the number of its process; 0 until it says it."""
        return self._pid

    def look(self) -> None:
        """Find out its process, once it says it."""
        beat = heartbeat.read(self.directory)
        self._pid = beat.pid if beat else self._pid

    def exit_code(self) -> int | None:
        """Return None while its process lives; else 0 where it said that it was done, and 1 where not."""
        self.look()
        if not self.pid or _is_alive(self.pid):
            return None
        return 0 if self.is_done() else 1

    def is_done(self) -> bool:
        """Return whether its record is complete."""
        beat = heartbeat.read(self.directory)
        return beat is not None and beat.stage == "done"

    def send(self, signum: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.pid:
                os.kill(self.pid, signum)


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


class Command:
    """The command, all processes that descend from it, and the worlds of ranks that are found among them.

    A keeper ends what the command starts, however dpdoctor ends; a job that is to go on has none and outlives it.
    """

    def __init__(self, task: WorkerTask) -> None:
        self._directory = Path(task.directory)
        rundir.write_json(self._directory / rundir.TASK, task)
        self._log, self._errors = self._directory / rundir.STDOUT, self._directory / rundir.STDERR
        self._seen: dict[int, psutil.Process] = {}
        self._ranks: dict[Path, SeenRank] = {}
        self._ended_by_us = self._was_interrupted = False
        with self._log.open("wb") as stdout, self._errors.open("wb") as stderr:
            self._process = _start(task, stdout, stderr)

    def exit_code(self) -> int | None:
        """Return the command's exit code; None while it runs."""
        return self._process.poll()

    def own_exit_code(self) -> int | None:
        """Return the exit code with which it ended by itself; None where it did not."""
        return None if self._ended_by_us else self.exit_code()

    def look(self) -> list[SeenRank]:
        """Take note of processes and ranks that are new; return the ranks of the world that is shown."""
        self._note_processes()
        # A process that turned out to be another rank has taken away what it left.
        self._ranks = {directory: rank for directory, rank in self._ranks.items() if directory.exists()}
        for directory in sorted(self._directory.glob(f"{rundir.WORLDS}/*/rank*")):
            if directory not in self._ranks:
                self._ranks[directory] = SeenRank(directory)
            self._ranks[directory].look()
        return self.shown()

    def _note_processes(self) -> None:
        with contextlib.suppress(psutil.Error):
            kept_by = self._process.kept_by if isinstance(self._process, KeptProcess) else None
            own = psutil.Process(kept_by or self._process.pid)
            for process in (*own.children(recursive=True), *([] if kept_by else [own])):
                self._seen.setdefault(process.pid, process)
        for rank in self._ranks.values():
            with contextlib.suppress(psutil.Error):
                if rank.pid and rank.pid not in self._seen:
                    self._seen[rank.pid] = psutil.Process(rank.pid)

    def worlds(self) -> list[list[SeenRank]]:
        """Return the worlds in the order of their beginning, each with its ranks in order."""
        found: dict[Path, list[SeenRank]] = {}
        for directory, rank in self._ranks.items():
            found.setdefault(directory.parent, []).append(rank)
        ordered = sorted(found, key=lambda path: path.stat().st_ctime_ns if path.exists() else 0)
        return [sorted(found[path], key=lambda rank: rank.rank) for path in ordered]

    def shown(self) -> list[SeenRank]:
        """Return the largest complete world, of several the first.

        Without one the last world of all, rather than one that failed before it trained, which explains nothing.
        """
        worlds = self.worlds()
        if complete := [world for world in worlds if is_complete(world)]:
            return max(complete, key=len)
        telling = [world for world in worlds if has_trained(world) or not is_failed(world)]
        return next(reversed(telling or worlds), [])

    def pass_on(self, signum: int) -> None:
        """Send the command a signal that dpdoctor heard, once: Ctrl-C as a terminal does, to all of its group."""
        if not self._was_interrupted and self.exit_code() is None:
            self._was_interrupted = True
            send = os.killpg if signum == signal.SIGINT else os.kill
            send(self._process.pid, signum)

    def end(self) -> None:
        """End every process of the tree that still lives."""
        self._ended_by_us |= self.exit_code() is None
        self._note_processes()
        alive = [process for process in self._seen.values() if _is_running(process)]
        for step, grace_s in ((psutil.Process.terminate, END_GRACE_S), (psutil.Process.kill, END_GRACE_S)):
            for process in alive:
                with contextlib.suppress(psutil.Error):
                    for child in process.children(recursive=True):
                        self._seen.setdefault(child.pid, child)
                    step(process)
            psutil.wait_procs(alive, timeout=grace_s)
            alive = [process for process in self._seen.values() if _is_running(process)]
        if isinstance(self._process, KeptProcess):
            self._process.end()
        else:
            self._process.wait()

    def leave(self) -> None:
        """Leave the directory of the launch tidy, and let the keeper go."""
        tidy(self._directory, keeps_logs=not isinstance(self._process, KeptProcess))
        if isinstance(self._process, KeptProcess):
            self._process.leave()

    def settle(self) -> list[SeenRank]:
        """Move the ranks of the world that is shown to where those of other modes are; return them there."""
        world = self.shown()
        for rank in world:
            place = rundir.rank_dir(self._directory, rank.rank)
            rank.directory.rename(place)
            del self._ranks[rank.directory]
            rank.directory = place
            self._ranks[place] = rank
        return world

    def num_watched(self) -> int:
        """Return how many lines its processes have left about themselves: a new one may become a rank."""
        return len(_processes(self._directory))

    def begins(self) -> object:
        """Return what changes while a new process begins, which may become a rank: it computes, or says so."""
        spent_s = 0.0
        for process in self._seen.values():
            with contextlib.suppress(psutil.Error):
                spent_s += sum(process.cpu_times()[:2])
        return self.num_watched(), int(spent_s)

    def sign(self) -> object:
        """Return what changes while a command without ranks does something that can be seen."""
        return self.num_watched(), self._log.stat().st_size, self._errors.stat().st_size

    def errors(self) -> tuple[str, ...]:
        """Return the last lines that the command printed to stderr or, where there are none, to stdout."""
        return without_torchrun(watch.tail(self._errors, MOST_LINES))[-watch.TAIL_LINES :] or watch.tail(self._log)

    def others(self, shown: Sequence[SeenRank]) -> str:
        """Return which other worlds trained, as the end of a sentence; nothing where none did."""
        sizes = [len(world) for world in self.worlds() if has_trained(world) and world[0] not in shown]
        return ", ".join(units.count(size, "rank") for size in sizes)

    def unseen(self) -> str:
        """Return why its processes may train and show no step; empty where nothing says so."""
        return UNSEEN if rundir.OVER_RPC in _processes(self._directory) else ""

    def explain(self) -> str:
        """Return why no rank was seen."""
        code, processes = self.exit_code(), _processes(self._directory)
        failed = next((text for text in processes if text.startswith("failed: ")), None)
        if failed:
            return f"dpdoctor could not look into the script's processes: {failed.removeprefix('failed: ')}"
        printed = without_torchrun(watch.tail(self._errors, MOST_LINES)), watch.tail(self._log)
        raised = last_raised(printed[0])
        last = raised or next(
            (line for lines in reversed(printed) for line in reversed(lines) if _SAYS.search(line)), ""
        )
        said = f"; the last that it {'raised' if raised else 'printed'}: {last}" if last else ""
        if not code and (unseen := self.unseen()):
            return unseen
        if not processes:
            return (
                f"the command ended with code {code}, and none of its processes could be looked into: they ran Python "
                f"with -I, -E or -S, without its environment, or no Python at all{said}"
            )
        way_out = NO_LAUNCHER if _LACKS_LAUNCHER.search(last) else ""
        return f"the command ended with code {code}, and none of its processes trained{said}{way_out}"


def last_raised(lines: Sequence[str]) -> str:
    """Return the last exception of what was printed; empty: there is none.

    It is not what accelerate's launcher raises when a script of one rank fails, where the script said more.
    """
    raised = [line for line in lines if _RAISED.match(line)]
    of_script = [line for line in raised if not line.startswith("subprocess.CalledProcessError: ")]
    return next(iter((of_script or raised)[-1:]), "")


def without_torchrun(lines: Sequence[str]) -> tuple[str, ...]:
    """Return what was printed up to where torchrun tells that a rank failed: why it did stands before that.

    Where it was ended itself, as dpdoctor does in the end, it knows no more. What it says of threads explains nothing.
    """
    lines = [line for line in lines if not line.startswith(_OF_THREADS)]
    end = next((number for number, line in enumerate(lines) if _TORCHRUN.match(line)), len(lines))
    is_ended = end < len(lines) and _WAS_ENDED in lines[end]
    return tuple(lines[:end] if is_ended else lines[:end] or lines)


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_complete(world: Sequence[SeenRank]) -> bool:
    """Return whether all ranks of a world left good records."""
    records = [watch.record_of(rank) for rank in world]
    good = [record for record in records if record is not None and record.status == "ok"]
    return bool(world) and len(good) == len(world) == good[0].world_size and all(rank.is_done() for rank in world)


def is_over(world: Sequence[SeenRank]) -> bool:
    """Return whether no rank of a world is observed any more: each is done, or gone."""
    return bool(world) and all(rank.is_done() or rank.exit_code() is not None for rank in world)


def is_failed(world: Sequence[SeenRank]) -> bool:
    """Return whether a world will not be complete any more: a rank of it failed, or all are over without that."""
    return any(map(watch.has_failed, world)) or (is_over(world) and not is_complete(world))


def has_trained(world: Sequence[SeenRank]) -> bool:
    """Return whether any rank of a world took a step."""
    return any(beat.step for rank in world if (beat := watch.beat_of(rank)))


def _start(task: WorkerTask, stdout: IO[bytes], stderr: IO[bytes]) -> KeptProcess | subprocess.Popen[bytes]:
    """Start the command: with a keeper or, where it is to go on even without dpdoctor, alone."""
    command, environment = [sys.executable, "-m", WALLED, *_words(task)], _environment(task)
    if not task.spec.go_on:
        return kept.start(command, cwd=task.directory, environment=environment, stdout=stdout, stderr=stderr)
    return subprocess.Popen(
        command,
        cwd=task.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def _words(task: WorkerTask) -> list[str]:
    """Return the command; `python` and `torchrun` are this interpreter's."""
    first, *rest = task.mode.launcher
    own = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
    script = ["-m", task.spec.target] if task.spec.is_module else [task.spec.target]
    return [*own.get(first, [machine.command(first) or first]), *rest, *script, *task.spec.args]


def _environment(task: WorkerTask) -> dict[str, str]:
    """Return the user's own environment, and what watches the processes."""
    environment = {
        **os.environ,
        TASK_VARIABLE: msgspec.json.encode(task).decode(),
        NATIVE_VARIABLE: task.directory,
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop(forkserver.DIRECTORY_VARIABLE, None)
    absolute_python_path(environment)
    ours = str(INJECT)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [ours, environment.get("PYTHONPATH")]))
    if not task.spec.devices:
        environment.setdefault("CUDA_VISIBLE_DEVICES", "")
    if not task.spec.go_on:
        environment.setdefault("WANDB_MODE", "offline")  # as in other modes: nothing of a trial is uploaded
    if task.mode.name == BASELINE:
        _let_alone(environment, task)
    return environment


def _let_alone(environment: dict[str, str], task: WorkerTask) -> None:
    """Let one rank have what one of several has: a device and, with torchrun and its like, one thread."""
    if task.spec.devices:
        environment["CUDA_VISIBLE_DEVICES"] = task.spec.devices[0]
    if task.mode.launcher[0] != "python":
        environment.setdefault("OMP_NUM_THREADS", "1")


def _processes(directory: Path) -> list[str]:
    """Return what the watched processes of a launch said of themselves, but for the one that became the command."""
    try:
        lines = (directory / rundir.PROCESSES).read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line.split("\t")[-1] for line in lines[1:]]


def run(
    command: Command, ranks: list[SeenRank], task: WorkerTask, progress: Progress, heard: Interruption
) -> LaunchOutcome:
    """Wait until all ranks have ended, one has failed or shows no sign of life for too long, or somebody interrupts.

    `ranks` is kept to those of the world that is shown. A script that is to go on is waited for once none of them is
    observed any more, however that ended: it may be well. Who interrupts it interrupts the script, and ends it by
    insisting.
    """
    go_on = task.spec.go_on
    outcome = _watch(command, ranks, task, progress, heard)
    if heard.insists or not go_on:  # what a script that goes on leaves running, it leaves on purpose
        command.end()
    ranks[:] = command.look()
    if heard.name and not (go_on and is_complete(ranks)):
        where = f" {watch.where(ranks[0])}" if ranks else ""
        return LaunchOutcome(status="interrupted", reason=f"{heard.name}{where}")
    return outcome or outcome_of(command, ranks, went_on=go_on)


def _watch(
    command: Command, ranks: list[SeenRank], task: WorkerTask, progress: Progress, heard: Interruption
) -> LaunchOutcome | None:
    """Wait as `run` does; return what came of it where what the ranks leave does not tell."""
    timeout_s = task.spec.timeout_s
    hope, failures = Hope(timeout_s, time.monotonic), Failures(command)
    leaving, orphaned = Patience(LEAVING_S, time.monotonic), Patience(ORPHANED_S, time.monotonic)
    while True:
        time.sleep(PERIOD_S)
        ranks[:] = command.look()
        if heard.signum is not None:
            if heard.insists or not task.spec.go_on:
                break
            command.pass_on(heard.signum)
        progress.moved([watch.beat_of(rank) for rank in ranks])
        running = [rank for rank in ranks if rank.exit_code() is None]
        if command.exit_code() is not None and not running:
            break
        if task.spec.go_on and is_over(ranks):
            continue
        if leaving.exhausted_by({-1: command.begins() if is_complete(ranks) else time.monotonic()}):
            break
        if task.spec.go_on:
            continue  # whatever is seen of it, or not, the job is its owner's
        if orphaned.exhausted_by({-1: command.exit_code()} if command.exit_code() is not None else {}):
            break
        if failures.are_final(ranks):
            break
        beats = {rank.rank: watch.beat_of(rank) for rank in running if not rank.is_done()}
        silent = lost(hope, beats, command.sign)
        if silent and beats:
            return _stuck(command, ranks, [rank for rank in silent if rank != JOB] or list(beats), timeout_s)
        if silent and not (is_complete(ranks) or is_failed(ranks)):
            command.end()
            reason = command.unseen() or _silent(timeout_s)
            return LaunchOutcome(status="failed", reason=reason, stderr_tail=command.errors())
        if silent:
            break
    return None


class Failures:
    """Worlds of ranks that failed, after which others may begin: torchrun starts ranks anew, a script may try again."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._failed: set[Path] = set()
        self._idle = Patience(ANEW_S, time.monotonic)

    def are_final(self, ranks: Sequence[SeenRank]) -> bool:
        """Return whether the world that is shown failed, and no other is waited for: its ranks get time to say why."""
        has_failed = is_failed(ranks)
        is_idle = self._idle.exhausted_by({JOB: self._command.begins() if has_failed else time.monotonic()})
        if not has_failed:
            return False
        self._failed.add(ranks[0].directory.parent)
        return self._outlive(ranks[0].directory.parent) or len(self._failed) >= MOST_FAILED or bool(is_idle)

    def _outlive(self, world: Path) -> bool:
        """Return whether ranks of a failed world live on, once they had time to end."""
        deadline = time.monotonic() + PEERS_GRACE_S
        while any(rank.exit_code() is None for rank in self._command.look() if rank.directory.parent == world):
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.05)
        return False


def lost(hope: Hope, beats: Mapping[int, Beat | None], printed: Callable[[], object]) -> list[int]:
    """Return the ranks without progress, and JOB where all have none: its clock runs on while ranks come and go."""
    furthest = max((beat for beat in beats.values() if beat), key=lambda beat: beat.step, default=None)
    return hope.lost_in({JOB: furthest, **beats}, lambda _: printed())


def _silent(timeout_s: float) -> str:
    return (
        f"no process of the script took a training step within {units.seconds(timeout_s)}; {watch.PRINTING}. "
        "--timeout gives it more time"
    )


def _stuck(command: Command, ranks: list[SeenRank], silent: list[int], timeout_s: float) -> LaunchOutcome:
    for rank in ranks:
        if rank.exit_code() is None:
            rank.send(STACKS_SIGNAL)
    time.sleep(STACKS_S)
    stuck, done = [rank for rank in ranks if rank.rank in silent], [rank for rank in ranks if rank.is_done()]
    reason = stuck_words(stuck, done, timeout_s)
    command.end()
    return LaunchOutcome(status="failed", reason=reason, failed_rank=silent[0], stderr_tail=command.errors())


def stuck_words(stuck: Sequence[SeenRank], done: Sequence[SeenRank], timeout_s: float) -> str:
    """Return where each rank stands that makes no progress: who waits for whom is seen from their lines and steps.

    The others may wait for ranks that are done, too.
    """
    standing = [f"rank {rank.rank} stands at {_line(rank)} after {_steps(rank)}" for rank in stuck]
    over = [f"rank {rank.rank} {_done_words(rank)}" for rank in done]
    told = "; ".join(_first(words) for words in (standing, over) if words)
    why = watch.without_update([*stuck, *done]) or watch.EQUALLY
    return f"no progress for {units.seconds(timeout_s)}: {told}. {why} --timeout gives them more time"


def _done_words(rank: SeenRank) -> str:
    """Return what became of a rank that is not observed any more; one that was let go trained on.

    What let it go may have kept its record from saying so.
    """
    record = watch.record_of(rank)
    if record is not None and record.ending not in {"", "let go"}:
        return f"was done after {_steps(rank)}"
    now = f"stands at {_line(rank)}" if rank.exit_code() is None else "has ended"
    return f"{now}, and was not observed any more after {_steps(rank)}"


def _line(rank: SeenRank) -> str:
    frame = watch.innermost_users_frame(rank.directory / rundir.STACKS)
    return f"{frame.file}:{frame.line}" if frame else "an unknown line"


def _steps(rank: SeenRank) -> str:
    beat = watch.beat_of(rank)
    return units.count(beat.step if beat else 0, "step")


def _first(told: Sequence[str]) -> str:
    more = f", and {len(told) - watch.MOST_TOLD} more" if len(told) > watch.MOST_TOLD else ""
    return f"{', '.join(told[: watch.MOST_TOLD])}{more}"


def outcome_of(command: Command, ranks: Sequence[SeenRank], *, went_on: bool = False) -> LaunchOutcome:
    """Return the verdict over the ranks that are shown, and the command that started them.

    Of one that `went_on` what was recorded before is good, however it ended; the reason says where it failed.
    """
    code, tail = command.own_exit_code(), command.errors()
    if not ranks:
        _, no_wall, why = " ".join(tail).partition(NO_WALL)
        if no_wall:
            return LaunchOutcome(status="failed", reason=NO_WALL_TEXT.format(why))
        return LaunchOutcome(status="failed", reason=command.explain(), stderr_tail=tail if code else ())
    if apart := watch.ended_apart(ranks):
        return LaunchOutcome(status="failed", reason=apart, stderr_tail=tail)
    if failed := watch.ends_of_failed(ranks):
        killed = f"; the command was killed by signal {-code}" if code is not None and code < 0 else ""
        reason = f"{watch.told_ends(failed) if len(ranks) > 1 else failed[0].words}{killed}"
        return LaunchOutcome(status="failed", reason=reason, failed_rank=failed[0].rank, stderr_tail=tail)
    return _judge_good(command, ranks, went_on=went_on)


def _judge_good(command: Command, ranks: Sequence[SeenRank], *, went_on: bool) -> LaunchOutcome:
    """Return the verdict over ranks each of which left a good record."""
    code, tail = command.own_exit_code(), command.errors()
    records = [record for rank in ranks if (record := watch.record_of(rank))]
    world_size = max(record.world_size for record in records)
    if len(ranks) < world_size:
        here = {rank.rank for rank in ranks}
        missing = next(rank for rank in range(world_size) if rank not in here)
        reason = f"rank {missing} of {world_size} was not seen: is it on another host, or in another interpreter?"
        return LaunchOutcome(status="failed", reason=reason, failed_rank=missing, stderr_tail=tail)
    if code and any(record.ending == "returned" for record in records):
        return LaunchOutcome(status="failed", reason=f"the command ended with exit code {code}", stderr_tail=tail)
    if code and went_on:
        how = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
        return LaunchOutcome(status="ok", reason=WENT_ON.format(how), stderr_tail=tail)
    return LaunchOutcome(status="ok")
