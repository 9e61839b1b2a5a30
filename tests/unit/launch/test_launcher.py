"""Whole launches of ranks that are a few lines of Python each and know nothing of torch."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.errors import OutputError
from dpdoctor.heartbeat import Beat
from dpdoctor.launch import interruption, launcher, processes, sampling, watch
from dpdoctor.launch.progress import Silence
from dpdoctor.records import Conversion, LaunchRecord, RankRecord, WrappedModule
from dpdoctor.spec import (
    COPIES_IN_THE_WAY,
    OVERLAY_FULL,
    OVERLAY_IN_THE_WAY,
    LoaderSetting,
    ModeSpec,
    RunHeader,
    RunSpec,
)
from tests.builders import records
from tests.builders.specs import mode_spec
from tests.unit.launch.conftest import lives, task_in

# Begins like a rank: says where it is, and leaves a record by the end.
RANK = """
import json, os, pathlib, signal, sys, time
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.spec import TASK_VARIABLE
task, rank = json.loads(os.environ[TASK_VARIABLE]), int(os.environ["RANK"])
directory = pathlib.Path(task["directory"], f"rank{rank}")
heart = Heartbeat(directory, os.getpid(), time.monotonic_ns)

def tell(status, reason=None, raised_in=()):
    record = {"rank": rank, "world_size": 2, "pid": os.getpid(), "host": "box", "device": "cpu", "backend": None,
              "protected_by": "kernel", "status": status, "reason": reason, "raised_in": raised_in}
    (directory / "whole").write_text(json.dumps(record))  # it may be ended while it writes
    (directory / "whole").rename(directory / "rank.json")

unused = pathlib.Path(task["directory"], "unused.json")
print(task["mode"]["name"], *(json.loads(unused.read_text()) if unused.exists() else []), flush=True)
heart.enter("measure")
"""
WELL = 'tell("ok")\n'


class Heard(Silence):
    """Notes what a person would see."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.records: list[LaunchRecord] = []
        self.pids: set[int] = set()
        self.at_first_beat: Callable[[], None] = lambda: None

    def began(self, title: str, directory: Path) -> None:
        assert directory.is_dir()
        self.titles.append(title)

    def moved(self, beats: Sequence[Beat | None]) -> None:
        pids = {beat.pid for beat in beats if beat}
        if len(pids) == len(beats) and not pids <= self.pids:
            self.at_first_beat()
        self.pids |= pids

    def ended(self, record: LaunchRecord) -> None:
        self.records.append(record)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, wait little."""
    monkeypatch.setattr(launcher, "PERIOD_S", 0.01)
    monkeypatch.setattr(launcher, "PEERS_GRACE_S", 0.05)
    monkeypatch.setattr(launcher, "STACKS_S", 0.05)
    monkeypatch.setattr(processes, "GRACE_S", 0.1)
    monkeypatch.setattr(sampling, "PERIOD_S", 0.01)


@pytest.fixture
def ranks_do(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give a function that says what a rank does once it has begun."""
    monkeypatch.setenv("PYTHONPATH", str(Path(launcher.__file__).parents[2]))
    return lambda lines: monkeypatch.setattr(processes, "WORKER", (sys.executable, "-c", RANK + lines))


def spec(*modes: ModeSpec, repeat: int = 1, timeout_s: float = 60.0) -> RunSpec:
    task = task_in(Path("unused")).spec
    names = tuple(mode.name for mode in modes)
    return replace(task, modes=modes, requested_modes=names, repeat=repeat, timeout_s=timeout_s)


def header() -> RunHeader:
    return records.header({"single": 1})


def test_a_run_directory_begins_with_its_header(tmp_path: Path) -> None:
    launcher.create(tmp_path / "a" / "run", header())
    assert rundir.read(tmp_path / "a" / "run").header == header()


@pytest.mark.parametrize(
    ("path", "said"), [(".", "exists already"), ("file/run", "cannot create .*file/run: Not a dir")]
)
def test_nothing_is_overwritten(tmp_path: Path, path: str, said: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=said):
        launcher.create(tmp_path / path, header())


def test_every_mode_runs_as_often_as_asked_for(tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]) -> None:
    ranks_do(WELL)
    handler = signal.getsignal(signal.SIGTERM)
    found = launcher.launch(tmp_path, spec(mode_spec("single"), mode_spec("ddp", 2), repeat=2), heard)
    assert [(r.mode, r.launch, r.status, r.exit_codes) for r in found] == [
        ("single", 1, "ok", (0,)),
        ("ddp", 1, "ok", (0, 0)),
        ("single", 2, "ok", (0,)),
        ("ddp", 2, "ok", (0, 0)),
    ]
    assert heard.records == found
    assert heard.titles[:2] == ["single (launch 1 of 2)", "ddp (launch 1 of 2)"]
    assert rundir.read_json(tmp_path / "ddp.2" / rundir.LAUNCH, LaunchRecord) == found[3]
    assert all(record.begin_ns < record.end_ns for record in found)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_mode_that_fails_leaves_the_next_its_turn(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]
) -> None:
    ranks_do("""
if task["mode"]["name"] == "single" or rank == 0:
    tell("ok")
else:
    print("planted", file=sys.stderr)
    tell("failed", "planted")
    sys.exit(1)
""")
    failed, good = launcher.launch(tmp_path, spec(mode_spec("ddp", 2), mode_spec("single")), heard)
    assert (failed.status, failed.reason, failed.failed_rank) == ("failed", "rank 1: planted", 1)
    assert failed.stderr_tail == ("planted",)
    assert good.status == "ok"


@pytest.mark.parametrize(
    "fails",
    [
        f"""tell("failed", {f"No space left on device; {OVERLAY_FULL}"!r}); sys.exit(1)""",
        f"""tell("failed", {f"Invalid cross-device link; {OVERLAY_IN_THE_WAY}"!r}); sys.exit(1)""",
        """print("cp: 'b': No space left on device", file=sys.stderr); tell("failed", "cp"); sys.exit(1)""",
        """tell("running"); os.kill(os.getpid(), signal.SIGBUS)""",
        """tell("running"); counters.write_text("oom_kill 8\\n"); os.kill(os.getpid(), signal.SIGKILL)""",
    ],
    ids=["full", "in the way", "a program says so", "memory of a file", "memory"],
)
def test_a_mode_that_failed_by_the_overlay_runs_again_behind_the_next_wall(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    counters = tmp_path / "counters"
    counters.write_text("nr_free_pages 5\noom_kill 7\n")
    monkeypatch.setattr(watch, "_COUNTERS", counters)
    root = tmp_path / "run"
    root.mkdir()
    ranks_do(f"""
counters = pathlib.Path({str(counters)!r})
if task["spec"]["wall"] == "overlay":
    {fails}
assert "single failed behind one" in task["spec"]["no_overlay"]
tell("ok")
""")
    found = launcher.launch(root, spec(mode_spec("single"), mode_spec("ddp", 2), repeat=2), heard)
    assert [(each.mode, each.launch, each.status) for each in found] == [
        *(("single", 1, "ok"), ("ddp", 1, "ok")),
        *(("single", 2, "ok"), ("ddp", 2, "ok")),
    ]
    # What the first launch left is kept, and the launches after it do not try again.
    assert [path.name for path in root.glob("failed-*")] == ["failed-single"]
    failed = rundir.read_json(root / "failed-single" / rundir.LAUNCH, LaunchRecord)
    assert failed.status == "failed"
    assert [each.again for each in found] == [failed.reason, "", "", ""]


@pytest.mark.parametrize("hint", [COPIES_IN_THE_WAY, OVERLAY_IN_THE_WAY])
def test_a_bare_launch_that_failed_by_copies_runs_again_without_any(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None], hint: str
) -> None:
    ranks_do(f"""
if task["copied"]:
    tell("failed", {f"Device or resource busy; {hint}"!r})
    sys.exit(1)
tell("ok")
""")
    found = launcher.launch(tmp_path, replace(spec(mode_spec("single")), control=True), heard)
    assert [(each.mode, each.launch, each.status) for each in found] == [
        *(("bare", 1, "ok"), ("single", 1, "ok"), ("bare", 2, "ok"))
    ]
    # What the first one left is kept; the overlay stays, and those after it have no copies from the first.
    assert [path.name for path in tmp_path.glob("*-*")] == ["copied-bare"]
    without = "single, bare, without copies of files"
    assert heard.titles == ["single, bare", without, "single", without]


@pytest.mark.parametrize("fails", ['tell("failed", "a bug"); sys.exit(1)', "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_mode_that_failed_by_itself_is_launched_once(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None], fails: str
) -> None:
    ranks_do(fails)
    (found,) = launcher.launch(tmp_path, spec(mode_spec("single")), heard)
    assert (found.status, found.again) == ("failed", "")
    assert len(heard.titles) == 1


def test_a_mode_that_failed_with_an_ablation_runs_again_without_it_and_then_without_any(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]
) -> None:
    ranks_do("""
raised = task["spec"]["recording"]["raised"]
for name in ("amp", "no_comm"):
    if name not in raised and (name, task["mode"]["name"]) != ("no_comm", "single"):
        time.sleep(60 * rank)
        tell("failed", f"planted with {name}", [name])
        sys.exit(1)
tell("ok")
""")
    wanted = spec(mode_spec("single"), mode_spec("ddp", 2), repeat=2)
    recording = replace(wanted.recording, ablations=("amp", "no_comm", "one_worker"))
    found = launcher.launch(tmp_path, replace(wanted, recording=recording), heard)
    assert [(each.mode, each.launch, each.status, each.raised) for each in found] == [
        *(("single", 1, "ok", "planted with amp"), ("ddp", 1, "ok", "rank 0: planted with no_comm")),
        *(("single", 2, "ok", ""), ("ddp", 2, "ok", "")),
    ]
    # What failed is kept, and the launches after it do not try again.
    assert sorted(path.name for path in tmp_path.glob("raised*")) == ["raised1-single", "raised2-ddp"]
    titles = [title.replace(" (launch 1 of 2)", "") for title in heard.titles]
    assert titles[:4] == ["single", "single, again without amp", "ddp", "ddp, again without any ablation"]
    assert len(titles) == 6


def test_a_mode_that_fails_with_its_ablations_and_without_them_is_launched_three_times(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]
) -> None:
    ranks_do("""
left = [name for name in task["spec"]["recording"]["ablations"] if name not in task["spec"]["recording"]["raised"]]
tell("failed", "a bug", left[:1])
sys.exit(1)
""")
    wanted = spec(mode_spec("single"))
    recording = replace(wanted.recording, ablations=("amp", "no_comm", "one_worker"))
    (found,) = launcher.launch(tmp_path, replace(wanted, recording=recording), heard)
    assert (found.status, found.reason) == ("failed", "a bug")
    assert len(heard.titles) == 3


def test_secrets_in_what_a_rank_said_are_not_recorded(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]
) -> None:
    ranks_do("""
print("POST https://me:hunter2@host?token=abc", file=sys.stderr)
tell("failed", "cannot open https://me:hunter2@host")
sys.exit(1)
""")
    (record,) = launcher.launch(tmp_path, spec(mode_spec("single")), heard)
    assert record.stderr_tail == ("POST https://<redacted>@host?token=<redacted>",)
    assert record.reason is not None
    assert "cannot open https://<redacted>@host" in record.reason
    assert "hunter2" not in (tmp_path / "single" / rundir.LAUNCH).read_text()


def test_peers_of_a_dead_rank_are_ended(tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]) -> None:
    ranks_do("time.sleep(60) if rank == 0 else os.kill(os.getpid(), signal.SIGKILL)")
    (record,) = launcher.launch(tmp_path, spec(mode_spec("ddp", 2)), heard)
    assert record.failed_rank == 1
    assert "SIGKILL" in (record.reason or "")
    assert "stage measure" in (record.reason or "")
    assert record.exit_codes == (None, -signal.SIGKILL)
    assert record.ended_by_dpdoctor == (True, False)
    assert not any(lives(pid) for pid in heard.pids)


def test_a_rank_without_a_sign_of_life_is_ended(tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]) -> None:
    ranks_do("""
import faulthandler
faulthandler.register(signal.SIGUSR1, file=open(directory / "stacks.log", "w"), all_threads=True)
time.sleep(60)
""")
    (record,) = launcher.launch(tmp_path, spec(mode_spec("single"), timeout_s=0.3), heard)
    assert record.status == "failed"
    assert "300 ms" in (record.reason or "")
    assert "--timeout" in (record.reason or "")
    assert not any(lives(pid) for pid in heard.pids)


@pytest.fixture
def heeded() -> Iterator[None]:
    """Let no signal be ignored that whoever started the tests has ignored, in the background or with nohup."""
    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.signal(signum, signal.default_int_handler) for signum in signums}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize(
    ("signum", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")]
)
def test_signals_end_the_launch_and_the_run_and_a_second_one_changes_nothing(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None], signum: int, name: str
) -> None:
    ranks_do("time.sleep(60)")

    def twice() -> None:
        os.kill(os.getpid(), signum)
        os.kill(os.getpid(), signal.SIGINT)

    heard.at_first_beat = twice
    before = signal.getsignal(signum)
    with interruption.heeding() as noted:
        found = launcher.launch(tmp_path, spec(mode_spec("ddp", 2), mode_spec("single")), heard)
        (tmp_path / "late").mkdir()
        late = launcher.launch(tmp_path / "late", spec(mode_spec("single")), heard)
    assert [(record.mode, record.status) for record in found] == [("ddp", "interrupted")]
    assert str(found[0].reason).startswith(f"{name} in stage measure")
    assert (noted.name, noted.exit_code) == (name, 128 + signum)
    assert [record.reason for record in late] == [f"{name} before it began"]
    assert signal.getsignal(signum) is before
    assert not any(lives(pid) for pid in heard.pids)
    assert not [thread.name for thread in threading.enumerate() if thread.name == "dpdoctor-sampling"]


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize(("at_once_s", "insists"), [(60.0, False), (0.0, True)])
def test_who_interrupts_twice_at_once_does_not_insist(
    monkeypatch: pytest.MonkeyPatch, at_once_s: float, *, insists: bool
) -> None:
    monkeypatch.setattr(interruption, "_AT_ONCE_S", at_once_s)
    with interruption.heeding() as heard:
        os.kill(os.getpid(), signal.SIGINT)
        assert (heard.name, heard.insists) == ("Ctrl-C", False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (heard.name, heard.insists) == ("Ctrl-C", insists)


def test_an_inactive_mode_that_ran_well_says_why_it_is_inactive(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]
) -> None:
    ranks_do(WELL)
    mode = replace(mode_spec("dp"), inactive="no GPU")
    (record,) = launcher.launch(tmp_path, spec(mode), heard)
    assert (record.status, record.reason) == ("inactive", "no GPU")


def test_a_setting_is_tried_in_a_launch_of_its_own(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]
) -> None:
    ranks_do(WELL)
    setting = LoaderSetting(num_workers=2, prefetch_factor=4)
    of = spec(mode_spec("single"), mode_spec("ddp", 2))
    (record,) = launcher.try_loaders(tmp_path, of, {"ddp": setting}, heard)
    assert (record.mode, record.status, record.loader_setting) == ("ddp", "ok", setting)
    assert [path.name for path in tmp_path.iterdir()] == ["ddp.trial"]
    assert "ddp, again to try num_workers=2, prefetch_factor=4" in heard.titles


def test_modes_are_told_which_parameters_the_baseline_left_without_gradient(
    tmp_path: Path, heard: Heard, ranks_do: Callable[[str], None]
) -> None:
    ranks_do(WELL)
    unit = WrappedModule(name="Net", line="train.py:1", num_parameters=1, trainable_bytes=4, unused=("head.weight",))
    baseline = RankRecord(
        rank=0,
        world_size=1,
        pid=1,
        host="box",
        device="cpu",
        backend=None,
        status="ok",
        conversion=Conversion(modules=(unit,)),
    )
    (tmp_path / "single" / "rank0").mkdir(parents=True)
    rundir.write_json(tmp_path / "single" / "rank0" / rundir.RANK, baseline)
    launcher.launch(tmp_path, spec(mode_spec("ddp", 2)), heard)
    assert (tmp_path / "ddp" / "rank1" / rundir.STDOUT).read_text() == "ddp head.weight\n"
