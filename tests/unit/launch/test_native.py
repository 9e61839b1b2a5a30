from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dpdoctor import heartbeat, rundir
from dpdoctor.heartbeat import Beat, Heartbeat
from dpdoctor.launch import launcher, native, watch
from dpdoctor.launch.interruption import Interruption
from dpdoctor.launch.native import SeenRank
from dpdoctor.launch.progress import Silence
from dpdoctor.launch.watch import Hope
from dpdoctor.records import RankRecord
from dpdoctor.spec import NO_WALL, ModeSpec, RunSpec, WorkerTask
from tests.builders.handclock import HandClock
from tests.unit.launch.conftest import Start, lives, until

GONE = 2**22 - 1  # above what the kernel gives by default
STACKS = """Current thread 0x00007e (most recent call first):
  File "/home/me/train.py", line 9 in main
"""


def rank(
    directory: Path,
    number: int,
    *,
    steps: int = 0,
    pid: int | None = None,
    stage: str = "measure",
    passes: int = 0,
    **said: object,
) -> SeenRank:
    """Return a rank that left a heartbeat and, if it said anything, a record."""
    own = directory / f"rank{number}"
    own.mkdir()
    beat = Heartbeat(own, os.getpid() if pid is None else pid, time.monotonic_ns)
    beat.enter("done" if said.get("status") == "ok" else stage)
    for _ in range(passes):
        beat.backward_ended()
    beat.beat(steps, 0)
    if said:
        record = {"world_size": 2, "pid": 1, "host": "", "device": "", "backend": "gloo", **said}
        rundir.write_json(own / rundir.RANK, RankRecord(rank=number, **record))
    return SeenRank(own)


def test_a_world_is_complete_when_all_of_it_is_done(tmp_path: Path) -> None:
    first = rank(tmp_path, 0, status="ok")
    assert not native.is_complete([first])  # one of two
    assert native.is_complete([first, rank(tmp_path, 1, status="ok")])
    assert not native.is_complete([])


@pytest.mark.parametrize("said", [{"status": "running"}, {"status": "failed"}, {}])
def test_a_world_of_which_a_rank_is_not_done_is_not_complete(tmp_path: Path, said: dict[str, str]) -> None:
    assert not native.is_complete([rank(tmp_path, 0, status="ok"), rank(tmp_path, 1, **said)])


def test_a_rank_lives_as_long_as_its_process(tmp_path: Path) -> None:
    assert rank(tmp_path, 0).exit_code() is None
    assert rank(tmp_path, 1, pid=GONE).exit_code() == 1
    assert rank(tmp_path, 2, pid=GONE, status="ok").exit_code() == 0


class Job:
    """A command whose ranks end with it, by itself when it was looked at so often."""

    def __init__(self, ranks: list[SeenRank], looks: int) -> None:
        self._ranks, self._looks = ranks, looks
        self.is_ended = False

    def look(self) -> list[SeenRank]:
        self._looks -= 1
        if not self._looks:
            for each in self._ranks:
                each.directory.joinpath(heartbeat.FILE).unlink()
                each._pid = GONE
        return self._ranks

    def exit_code(self) -> int | None:
        return None if self._looks > 0 else 0

    def own_exit_code(self) -> int | None:
        return None if self.is_ended else self.exit_code()

    def end(self) -> None:
        self.is_ended |= self.exit_code() is None

    def errors(self) -> tuple[str, ...]:
        return ()

    def sign(self) -> object:
        return None

    begins = sign


# Of these ranks those are gone that are in stage proof.
@pytest.mark.parametrize(
    ("stages", "timeout_s"),
    [
        (("done",), 1e-9),
        (("done", "proof"), 1e-9),
        (("done", "done"), 1e-9),
        (("proof", "measure"), 60.0),
        (("measure", "measure"), 1e-9),
    ],
)
def test_a_job_that_goes_on_is_never_ended_for_what_was_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: tuple[str, ...], timeout_s: float
) -> None:
    for name in ("PERIOD_S", "PEERS_GRACE_S", "LEAVING_S", "ORPHANED_S"):
        monkeypatch.setattr(native, name, 0)
    said = {"status": "failed", "reason": "another model"}
    pids = {"proof": GONE}
    ranks = [rank(tmp_path, number, pid=pids.get(stage), stage=stage, **said) for number, stage in enumerate(stages)]
    job, of_job = Job(ranks, looks=20), task(tmp_path, "native", go_on=True, timeout_s=timeout_s)
    outcome = native.run(job, [], of_job, Silence(), Interruption())  # type: ignore[arg-type]
    assert not job.is_ended
    assert outcome.status == "failed"
    assert "another model" in (outcome.reason or "")


class Retrying(Job):
    """A command that begins one world after the other, and ends then by itself with this code or, without one, not."""

    def __init__(self, *worlds: list[SeenRank], code: int | None = None) -> None:
        super().__init__([], looks=0)
        self._worlds, self._code = worlds, code
        self._num_looks = 0
        self.num_begun = 0

    def look(self) -> list[SeenRank]:
        self._num_looks += 1
        self.num_begun = min(1 + self._num_looks // 10, len(self._worlds))
        return self._worlds[self.num_begun - 1]

    def exit_code(self) -> int | None:
        return None if self._num_looks < 10 * len(self._worlds) else self._code


PLANTED = {"status": "failed", "reason": "planted", "ending": "raised"}


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., watch.LaunchOutcome]:
    """Give a function that watches a command with little patience, of which more by keyword."""
    for name, seconds in {"PERIOD_S": 0.0, "PEERS_GRACE_S": 0.05, "LEAVING_S": 0.05, "ORPHANED_S": 0.05}.items():
        monkeypatch.setattr(native, name, seconds)

    def run(job: Job, *, anew_s: float = 60.0, timeout_s: float = 60.0) -> watch.LaunchOutcome:
        monkeypatch.setattr(native, "ANEW_S", anew_s)
        return native.run(job, [], task(tmp_path, "native", timeout_s=timeout_s), Silence(), Interruption())  # type: ignore[arg-type]

    return run


def world(directory: Path, name: str, *ranks: dict[str, object]) -> list[SeenRank]:
    """Return a world of ranks, each as `rank` has it."""
    own = directory / name
    own.mkdir()
    return [rank(own, number, **{"pid": GONE, "steps": 3, **said}) for number, said in enumerate(ranks)]  # type: ignore[arg-type]


def test_ranks_that_follow_others_that_failed_are_those_that_count(
    tmp_path: Path, follow: Callable[..., watch.LaunchOutcome]
) -> None:
    failed, good = world(tmp_path, "1", PLANTED, PLANTED), world(tmp_path, "2", *[{"status": "ok"}] * 2)
    job = Retrying(failed, good, code=0)
    assert (follow(job).status, job.is_ended) == ("ok", False)


@pytest.mark.parametrize("patience", [{"anew_s": 0.05}, {"timeout_s": 0.05}])
def test_where_no_rank_follows_the_reason_is_why_the_first_ones_failed(
    tmp_path: Path, follow: Callable[..., watch.LaunchOutcome], patience: dict[str, float]
) -> None:
    job = Retrying(world(tmp_path, "1", PLANTED, {"status": "ok"}))
    outcome = follow(job, **patience)
    assert (outcome.status, outcome.reason, outcome.failed_rank) == ("failed", "rank 0, after 3 steps: planted", 0)
    assert job.is_ended


def test_ranks_that_always_fail_are_not_awaited_for_ever(
    tmp_path: Path, follow: Callable[..., watch.LaunchOutcome]
) -> None:
    job = Retrying(*(world(tmp_path, f"{number}", PLANTED, PLANTED) for number in range(native.MOST_FAILED + 1)))
    assert follow(job).status == "failed"
    assert (job.num_begun, job.is_ended) == (native.MOST_FAILED, True)


@pytest.mark.parametrize(
    "ranks",
    [[PLANTED, {"pid": os.getpid()}], [{"pid": os.getpid(), "stage": "done", **PLANTED}] * 2],
    ids=["a peer lives on", "all are over and live on"],
)
def test_ranks_of_a_failed_world_that_live_on_are_ended(
    tmp_path: Path, follow: Callable[..., watch.LaunchOutcome], ranks: list[dict[str, object]]
) -> None:
    failed = world(tmp_path, "1", *ranks)
    job = Retrying(failed, world(tmp_path, "2", *[{"status": "ok"}] * 2))
    began_s = time.monotonic()
    follow(job)
    assert time.monotonic() - began_s >= native.PEERS_GRACE_S
    assert (job.num_begun, job.is_ended) == (1, True)


# Takes a while to leave when it is asked to, and has a child that writes what it gets itself.
TAKES_LEAVE = """
import os, signal, sys, time
from pathlib import Path

def leave(signum, _):
    if os.getpid() != parent:
        Path("child").touch()
        os._exit(0)
    time.sleep(0.5)
    Path("left").touch()
    sys.exit()

parent = os.getpid()
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
if os.fork():
    Path("ready").touch()
time.sleep(60)
"""


class Interrupting(Silence):
    """Interrupts once the script is ready; `insists`: twice."""

    def __init__(self, ready: Path, signum: int, *, insists: bool) -> None:
        self.heard = Interruption()
        self._ready, self._signum, self._insists = ready, signum, insists

    def moved(self, beats: Sequence[Beat | None]) -> None:  # noqa: ARG002 - Progress's
        if self._ready.exists():
            self.heard.signum, self.heard.insists = self._signum, self._insists


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], WorkerTask]:
    """Give a function that returns the task of a job that goes on, which is a few lines of Python."""

    def write(lines: str) -> WorkerTask:
        (tmp_path / "job.py").write_text(lines)
        options = {"go_on": True, "cwd": str(tmp_path), "target": str(tmp_path / "job.py")}
        return task(tmp_path / "launch", "native", "python", **options)

    return write


@pytest.mark.parametrize(
    ("signum", "insists", "left"),
    [
        (signal.SIGTERM, False, {"left"}),
        (signal.SIGINT, False, {"left", "child"}),
        (signal.SIGINT, True, {"child"}),
    ],
)
def test_a_job_that_goes_on_gets_a_signal_itself_and_takes_its_time(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: Callable[[str], WorkerTask],
    signum: int,
    insists: bool,
    left: set[str],
) -> None:
    monkeypatch.setattr(native, "END_GRACE_S", 0.1)
    of_job = job(TAKES_LEAVE)
    Path(of_job.directory).mkdir()
    command = native.Command(of_job)
    progress = Interrupting(tmp_path / "ready", signum, insists=insists)
    outcome = native.run(command, [], of_job, progress, progress.heard)
    assert outcome.status == "interrupted"
    assert command.own_exit_code() == (None if insists else 0)
    assert {path.name for path in tmp_path.iterdir()} & {"left", "child"} == left
    command.end()


class Broken(Silence):
    """Cannot be shown, as where a pipe is closed."""

    def moved(self, beats: Sequence[Beat | None]) -> None:  # noqa: ARG002 - Progress's
        raise SystemExit(1)


@pytest.mark.parametrize("at", ["progress", "watching"])
def test_a_job_that_goes_on_outlives_what_goes_wrong_in_dpdoctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Callable[[str], WorkerTask], at: str
) -> None:
    commands: list[native.Command] = []

    def fail(command: native.Command, *_: object) -> None:
        commands.append(command)
        raise ZeroDivisionError

    of_job = job('import time; from pathlib import Path; time.sleep(1); Path("done").touch()')
    if at == "watching":
        monkeypatch.setattr(native, "run", fail)
        with pytest.raises(ZeroDivisionError):
            launcher._launch_command(of_job, "native", 1, "native", Silence())
        until(lambda: commands[0].exit_code() is not None)
    else:
        assert launcher._launch_command(of_job, "native", 1, "native", Broken()).exit_codes == (0,)
    assert (tmp_path / "done").exists()


STAYS = """
import subprocess, sys, time
from pathlib import Path
stays = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
Path("stays").write_text(str(stays.pid))
time.sleep(1)
"""


def test_what_a_job_that_goes_on_leaves_running_lives_on(tmp_path: Path, job: Callable[[str], WorkerTask]) -> None:
    launcher._launch_command(job(STAYS), "native", 1, "native", Silence())
    stays = int((tmp_path / "stays").read_text())
    assert lives(stays)
    os.kill(stays, signal.SIGKILL)


def test_ranks_that_appear_late_give_a_job_no_more_time_to_prepare() -> None:
    clock = HandClock()
    hope, lines = Hope(10, clock), iter(range(100))

    def lost(*ranks: int, step: int = 0) -> list[int]:
        clock.tick(4)
        beats = {rank: Beat(pid=1, stage="script", step=step, samples=0, window=0, at_ns=step) for rank in ranks}
        return native.lost(hope, beats, lambda: next(lines))

    assert [lost(), lost(), lost(), lost(0), lost(0, 1)] == [[], [], [], [], [native.JOB]]
    assert [lost(0, 1, step=step) for step in (1, 2)] == [[], []]
    assert [lost(), lost(), lost(), lost(), lost()] == [[], [], [], [], [native.JOB]], "the next ranks have as long"


def test_stuck_ranks_are_told_with_their_steps_and_their_own_lines(tmp_path: Path) -> None:
    ranks = [rank(tmp_path, 0, steps=14), rank(tmp_path, 1, steps=14)]
    (tmp_path / "rank0" / rundir.STACKS).write_text(STACKS)
    told = native.stuck_words(ranks, [], 20)
    assert "rank 0 stands at /home/me/train.py:9 after 14 steps, rank 1 stands at an unknown line after 14" in told


def test_ranks_whose_optimizer_takes_no_step_are_told_so(tmp_path: Path) -> None:
    ranks = [rank(tmp_path, number, passes=passes) for number, passes in enumerate((400, 399))]
    told = native.stuck_words(ranks, [], 20)
    assert watch.NO_UPDATE.format("399 backward passes") in told
    assert watch.EQUALLY not in told


@pytest.mark.parametrize(("steps", "passes"), [(1, 400), (0, 2)])
def test_ranks_that_took_a_step_or_hardly_began_are_told_to_take_equally_many(
    tmp_path: Path, steps: int, passes: int
) -> None:
    told = native.stuck_words([rank(tmp_path, number, steps=steps, passes=passes) for number in (0, 1)], [], 20)
    assert watch.EQUALLY in told
    assert "optimizer" not in told


def test_a_rank_that_is_done_is_told_to_those_that_wait_for_it(tmp_path: Path) -> None:
    done = rank(tmp_path, 1, steps=20, status="ok", ending="stopped")
    told = native.stuck_words([rank(tmp_path, 0, steps=29)], [done], 20)
    assert "rank 0 stands at an unknown line after 29 steps; rank 1 was done after 20 steps. " in told


@pytest.mark.parametrize(("pid", "now"), [(None, "stands at /home/me/train.py:9"), (GONE, "has ended")])
@pytest.mark.parametrize("said", [{"status": "ok", "ending": "let go"}, {"status": "running"}], ids=["kept", "unkept"])
def test_a_rank_that_was_let_go_is_not_told_to_be_done(
    tmp_path: Path, pid: int | None, now: str, said: dict[str, str]
) -> None:
    let_go = rank(tmp_path, 1, steps=20, pid=pid, stage="done", **said)
    (tmp_path / "rank1" / rundir.STACKS).write_text(STACKS)
    told = native.stuck_words([rank(tmp_path, 0, steps=29)], [let_go], 20)
    assert f"after 29 steps; rank 1 {now}, and was not observed any more after 20 steps. " in told


class Ended:
    """A command that ended, by itself with this code or, without one, as dpdoctor ended it."""

    def __init__(self, code: int | None) -> None:
        self._code = code

    def own_exit_code(self) -> int | None:
        return self._code

    def errors(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(("code", "is_told"), [(-9, True), (None, False), (1, False)])
def test_a_command_that_dpdoctor_ended_was_killed_by_nobody(tmp_path: Path, code: int | None, is_told: bool) -> None:
    gone = rank(tmp_path, 0, steps=1, pid=GONE, status="failed", reason="too short", ending="returned")
    outcome = native.outcome_of(Ended(code), [gone])  # type: ignore[arg-type]
    assert outcome.reason == ("too short; the command was killed by signal 9" if is_told else "too short")


@pytest.mark.parametrize(("code", "status"), [(1, "failed"), (0, "ok"), (None, "ok")])
def test_a_command_that_fails_after_its_ranks_returned_has_failed(
    tmp_path: Path, code: int | None, status: str
) -> None:
    good = rank(tmp_path, 0, pid=GONE, status="ok", ending="returned", world_size=1)
    assert native.outcome_of(Ended(code), [good]).status == status  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "how"), [(3, "ended with exit code 3"), (-9, "was killed by signal 9"), (0, ""), (None, "")]
)
def test_a_job_that_fails_once_enough_was_recorded_keeps_that_and_says_so(
    tmp_path: Path, code: int | None, how: str
) -> None:
    good = rank(tmp_path, 0, pid=GONE, status="ok", ending="stopped", world_size=1)
    outcome = native.outcome_of(Ended(code), [good], went_on=True)  # type: ignore[arg-type]
    assert (outcome.status, outcome.reason) == ("ok", native.WENT_ON.format(how) if how else None)


def test_all_that_a_job_printed_is_kept_which_goes_on(
    job: Callable[[str], WorkerTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "MOST_LOG_BYTES", 100)
    started = job("for number in range(100): print('line', number)")
    Path(started.directory).mkdir()
    command = native.Command(started)
    until(lambda: command.exit_code() is not None)
    command.leave()
    printed = (Path(started.directory) / rundir.STDOUT).read_text()
    assert printed.splitlines() == [f"line {number}" for number in range(100)]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[native.Command]:
    """Give a command that starts no rank by itself, in this directory."""
    found = native.Command(task(tmp_path, "native", "true", allow_writes=True))
    yield found
    found.end()
    found.leave()


def test_a_rank_that_turned_out_to_be_another_one_is_forgotten(command: native.Command, tmp_path: Path) -> None:
    alone, both = (tmp_path / rundir.WORLDS / name for name in ("alone", "both"))
    alone.mkdir(parents=True)
    rank(alone, 0, pid=GONE)
    assert [found.directory.parent for found in command.look()] == [alone]
    shutil.rmtree(alone)
    both.mkdir()
    ranks = [rank(both, number, pid=GONE, status="ok") for number in (0, 1)]
    assert [found.directory for found in command.look()] == [found.directory for found in ranks]
    assert command.others(command.settle()) == ""


def test_processes_that_join_over_rpc_and_show_no_step_are_explained(command: native.Command, tmp_path: Path) -> None:
    lines = tmp_path / rundir.PROCESSES
    lines.write_text("1\t0\tpython\tstarted\n2\t1\tpython\tstarted\n")
    until(lambda: command.exit_code() is not None)
    assert (command.unseen(), "torch.distributed.rpc" in command.explain()) == ("", False)
    lines.write_text(f"{lines.read_text()}2\t1\tpython\t{rundir.OVER_RPC}\n")
    assert command.unseen() == command.explain() == native.UNSEEN


def task(directory: Path, name: str, *launcher: str, **options: object) -> WorkerTask:
    """Return the task of a launch in this directory; options of the run by keyword."""
    mode = ModeSpec(
        name=name, world_size=1, num_devices=1, distributed=True, batch_rule="per-device", launcher=launcher
    )
    fields = {"target": "/t.py", "cwd": "/", "modes": (mode,), "requested_modes": (name,), "threads_per_device": 1}
    return WorkerTask(spec=RunSpec(**{**fields, **options}), mode=mode, directory=str(directory))  # type: ignore[arg-type]


def environment(name: str, *launcher: str, devices: tuple[str, ...] = ()) -> dict[str, str]:
    return native._environment(task(Path("/run"), name, *launcher, devices=devices))


def test_a_world_that_failed_before_it_trained_is_not_told_of_where_another_trained(
    command: native.Command, start: Start, tmp_path: Path
) -> None:
    first, second = (tmp_path / rundir.WORLDS / name for name in "12")
    lasting = start()
    first.mkdir(parents=True)
    trained = rank(first, 0, steps=3, pid=GONE, **PLANTED)
    command.look()
    second.mkdir()
    rank(second, 0, pid=GONE, **PLANTED)
    assert [found.directory for found in command.look()] == [trained.directory]
    rank(second, 1, pid=lasting.pid)
    assert [found.directory.parent for found in command.look()] == [first]
    shutil.rmtree(second / "rank0")
    assert [found.directory.parent for found in command.look()] == [second], "it may train yet"


def test_only_the_process_that_was_to_become_the_command_says_that_no_wall_can_stand(tmp_path: Path) -> None:
    command = native.Command(task(tmp_path, "native", "sh", "-c", "exit 3", allow_writes=True))
    until(lambda: command.exit_code() is not None)
    command.end()
    command.leave()
    assert (native.outcome_of(command, []).reason or "").startswith("the command ended with code 3")
    command._errors.write_text(f"{NO_WALL}not permitted")
    assert native.outcome_of(command, []).reason == native.NO_WALL_TEXT.format("not permitted")


@pytest.mark.parametrize(("go_on", "mode"), [(False, "offline"), (True, None)])
def test_only_a_job_that_goes_on_uploads_anything(
    monkeypatch: pytest.MonkeyPatch, *, go_on: bool, mode: str | None
) -> None:
    def environment() -> dict[str, str]:
        return native._environment(task(Path("/run"), "native", "python", go_on=go_on))

    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert environment().get("WANDB_MODE") == mode
    monkeypatch.setenv("WANDB_MODE", "online")
    assert environment()["WANDB_MODE"] == "online"


def test_one_rank_alone_has_what_one_of_several_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    several, alone = environment("native", "torchrun"), environment("single", "torchrun", "--nproc-per-node", "1")
    assert "OMP_NUM_THREADS" not in several  # torchrun gives each of several ranks one thread
    assert alone["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment("single", "python")
    assert environment("single", "python", devices=("3", "5"))["CUDA_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in environment("native", "python", devices=("3", "5"))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environment("single", "torchrun")["OMP_NUM_THREADS"] == "7"


def test_a_launcher_is_found_beside_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "accelerate"
    launcher.touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    words = [
        native._words(task(tmp_path, "native", *first))[:2] for first in (("accelerate", "launch"), ("absent", "-n"))
    ]
    assert words == [[str(launcher), "launch"], ["absent", "-n"]]


TORCHRUN = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
ValueError: `devices=2` and a world size of 1
E1124 08:31:08.544000 19365 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""


def test_what_a_rank_raised_stands_before_what_torchrun_says_of_it() -> None:
    lines = TORCHRUN.splitlines()
    assert native.without_torchrun(lines) == tuple(lines[:3])
    assert native.without_torchrun(lines[:3]) == tuple(lines[:3])
    assert native.without_torchrun(lines[3:]) == tuple(lines[3:])  # a rank may have said nothing
    ended = lines[3].replace("failed (exitcode: 1) local_rank: 0", "Received 15 death signal, shutting down workers")
    assert native.without_torchrun([ended, *lines[4:]]) == ()
    of_threads = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid ..."
    assert native.without_torchrun([of_threads, *lines[:3]]) == tuple(lines[:3])


def test_what_a_script_raised_is_told_and_not_what_its_launcher_makes_of_it() -> None:
    of_script, of_launcher = "ImportError: no module", "subprocess.CalledProcessError: Command '['python']' failed"
    assert native.last_raised([of_script, "Traceback", of_launcher]) == of_script
    assert native.last_raised(["Traceback", of_launcher]) == of_launcher
    assert native.last_raised(["nothing"]) == ""
