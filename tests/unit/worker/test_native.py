"""What a process of the user's finds of dpdoctor, whether the observation ends well or not: each case is a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dpdoctor import inject, rundir
from dpdoctor.records import RankRecord
from dpdoctor.spec import NATIVE_VARIABLE, OVERLAY_ALONE, ModeSpec, Recording, RunSpec, WorkerTask

pytestmark = pytest.mark.new_processes

# Three steps and the proof, then windows of two steps and one before each: enough is recorded after ten.
RECORDING = Recording(warmup=3, steps=2, rounds=2, trace_steps=0, ablations=(), loader_trials=False)
ENOUGH = 10
BEGIN = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(num_steps):
    for _ in range(num_steps):
        model(torch.ones(4, 3)).mean().backward()
        optimizer.step()

"""

Observe = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def observe(tmp_path: Path) -> Observe:
    """Give a function that runs a few lines, which follow BEGIN, in a process that becomes a rank at its optimizer."""

    def run(
        lines: str, *, go_on: bool = False, allow_writes: bool = True, recording: Recording = RECORDING
    ) -> subprocess.CompletedProcess[str]:
        mode = ModeSpec(
            name="native",
            world_size=1,
            num_devices=1,
            distributed=True,
            batch_rule="per-device",
            launcher=("python",),
        )
        spec = RunSpec(
            target="train.py",
            cwd=str(tmp_path),
            modes=(mode,),
            requested_modes=("native",),
            threads_per_device=1,
            allow_writes=allow_writes,
            go_on=go_on,
            recording=recording,
        )
        rundir.write_json(tmp_path / rundir.TASK, WorkerTask(spec=spec, mode=mode, directory=str(tmp_path)))
        (tmp_path / "train.py").write_text(BEGIN + lines)
        paths = os.pathsep.join([str(Path(inject.__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, NATIVE_VARIABLE: str(tmp_path)}
        command = [sys.executable, str(tmp_path / "train.py")]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def records(directory: Path) -> list[RankRecord]:
    """Return what each rank that trained said of itself last."""
    trained = (path.parent for path in directory.glob(f"{rundir.WORLDS}/*/rank0/{rundir.STEPS}") if path.stat().st_size)
    return [rundir.read_json(path / rundir.RANK, RankRecord) for path in trained]


def record(directory: Path) -> RankRecord:
    """Return what the only rank said of itself last."""
    (path,) = directory.glob(f"{rundir.WORLDS}/*/rank0/{rundir.RANK}")
    return rundir.read_json(path, RankRecord)


def test_the_first_step_is_that_of_the_optimizer_at_which_the_process_became_a_rank(
    observe: Observe, tmp_path: Path
) -> None:
    done = observe(f"train({ENOUGH} - 1)")
    assert (done.returncode, record(tmp_path).status) == (0, "ok"), done.stderr
    (steps,) = tmp_path.glob(f"{rundir.WORLDS}/*/rank0/{rundir.STEPS}")
    assert len(steps.read_text().splitlines()) == ENOUGH - 1


COPIES = """
copies = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
optimizer = torch.optim.SGD(copies, lr=0.1)
for _ in range(100):
    model.zero_grad()
    model(torch.ones(4, 3)).mean().backward()
    for copy, p in zip(copies, model.parameters()):
        copy.grad = p.grad.clone()
    optimizer.step()
    with torch.no_grad():
        for copy, p in zip(copies, model.parameters()):
            p.copy_(copy)
"""


def test_a_model_is_seen_of_whose_parameters_an_optimizer_holds_copies(observe: Observe, tmp_path: Path) -> None:
    done = observe(COPIES)
    assert (done.returncode, record(tmp_path).status) == (0, "ok"), done.stderr
    assert [unit.name for unit in record(tmp_path).conversion.modules] == ["Linear"]


COPIES_WITHOUT_BACKWARD = """
copies = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
optimizer = torch.optim.SGD(copies, lr=0.1)
for _ in range(60):
    gradients = torch.autograd.grad(model(torch.ones(4, 3)).mean(), list(model.parameters()))
    for copy, gradient in zip(copies, gradients):
        copy.grad = gradient
    optimizer.step()
"""


def test_mode_native_does_not_name_itself_as_a_way_out(observe: Observe, tmp_path: Path) -> None:
    observe(COPIES_WITHOUT_BACKWARD)
    reason = str(record(tmp_path).reason)
    assert "no module could be wrapped" in reason
    assert "--modes native" not in reason


ONE_BY_COPIES = """
generator, critic = torch.nn.Sequential(torch.nn.Linear(3, 1)), torch.nn.Linear(3, 1)
copies = [torch.nn.Parameter(p.detach().clone()) for p in generator.parameters()]
of_generator, of_critic = torch.optim.SGD(copies, lr=0.1), torch.optim.SGD(critic.parameters(), lr=0.1)
for _ in range(100):
    generator.zero_grad()
    generator(torch.ones(4, 3)).mean().backward()
    for copy, p in zip(copies, generator.parameters()):
        copy.grad = p.grad.clone()
    of_generator.step()
    critic(torch.ones(4, 3)).mean().backward()
    of_critic.step()
"""


def test_a_model_that_is_stepped_by_copies_is_seen_beside_one_that_is_not(observe: Observe, tmp_path: Path) -> None:
    done = observe(ONE_BY_COPIES)
    assert (done.returncode, record(tmp_path).status) == (0, "ok"), done.stderr
    assert [unit.name for unit in record(tmp_path).conversion.modules] == ["Linear", "Sequential"]


WITH_TEACHER = """
teacher = torch.nn.Sequential(torch.nn.Linear(3, 1))
for _ in range(3):
    ({}).sum().backward()
for _ in range(100):
    (model(torch.ones(4, 3)) - teacher(torch.ones(4, 3))).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("before", ["torch.ones(3, requires_grad=True)", "teacher(torch.ones(4, 3))"])
def test_backward_passes_before_the_models_first_do_not_make_a_teacher_a_model(
    observe: Observe, tmp_path: Path, before: str
) -> None:
    done = observe(WITH_TEACHER.format(before))
    assert (done.returncode, record(tmp_path).status) == (0, "ok"), done.stderr
    assert [unit.name for unit in record(tmp_path).conversion.modules] == ["Linear"]


OWN_HANDLERS = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: print("preempted", flush=True))
around = sys.excepthook
def told(kind, error, trace):
    print("told of", error)
    around(kind, error, trace)
sys.excepthook = told
"""


@pytest.mark.parametrize("num_steps", [1, ENOUGH + 1])
def test_a_job_that_goes_on_keeps_what_it_does_at_a_signal_and_at_an_exception(
    observe: Observe, tmp_path: Path, num_steps: int
) -> None:
    end = f'train({num_steps})\nos.kill(os.getpid(), signal.SIGTERM)\nraise ValueError("planted")\n'
    done = observe(f"{OWN_HANDLERS}{end}", go_on=True)
    assert done.stdout == "preempted\ntold of planted\n"
    assert done.returncode == 1
    assert "ValueError: planted" in done.stderr
    assert record(tmp_path).status == ("ok" if num_steps > ENOUGH else "failed")


OWN_PATCHES = """
from torch.utils.data import DataLoader
calls = set()

def put_around(owner, name):
    theirs = getattr(owner, name)
    def call(*args, **kwargs):
        calls.add(name)
        return theirs(*args, **kwargs)
    setattr(owner, name, call)
    return call

names = {(torch.nn.Module, "__call__"), (DataLoader, "__iter__"), (torch.autograd, "backward"), (torch, "save")}
around = {at: put_around(*at) for at in names}
"""
TRAINS_ANEW = """
calls.clear()
assert all(getattr(*at) is call for at, call in around.items())
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs in DataLoader(torch.ones(8, 3), batch_size=4, num_workers=1):
    model(inputs).mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
assert model._compiled_call_impl is None
print(*sorted(calls))
"""


def test_a_job_that_goes_on_keeps_what_it_has_put_around_torch(observe: Observe, tmp_path: Path) -> None:
    done = observe(f"{OWN_PATCHES}train({ENOUGH} + 1)\n{TRAINS_ANEW}", go_on=True)
    assert (done.returncode, done.stdout) == (0, "__call__ __iter__ backward save\n"), done.stderr
    assert record(tmp_path).status == "ok"


FULL = """
from dpdoctor import rundir
from dpdoctor.errors import OutputError

def full(*_):
    raise OutputError("No space left on device")

rundir.write_json = rundir.append_lines = full
"""
MAKES_A_GROUP = """
import os
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/rendezvous", rank=0, world_size=1)
"""


@pytest.mark.parametrize("go_on", [True, False])
@pytest.mark.parametrize("lines", [f"train({ENOUGH} + 5)", f"train(2)\n{MAKES_A_GROUP}"], ids=["full", "late group"])
def test_what_cannot_be_recorded_does_not_end_the_job(observe: Observe, lines: str, *, go_on: bool) -> None:
    done = observe(f"{FULL}{lines}\nprint('trained')", go_on=go_on)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "OutputError: No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("go_on", "num_steps"), [(True, ENOUGH + 9), (False, ENOUGH + 9), (False, ENOUGH + 2)], ids=["", "", "ends in it"]
)
def test_a_trace_that_cannot_be_written_ends_neither_the_job_nor_its_record(
    observe: Observe, tmp_path: Path, *, go_on: bool, num_steps: int
) -> None:
    lines = f"""
import gzip
from pathlib import Path

def full(path, _):
    Path(path).write_text("a part")
    print("no space")
    raise OSError("planted")

gzip.open = full
train({num_steps})
print("trained")
"""
    done = observe(lines, go_on=go_on, recording=replace(RECORDING, trace_steps=3))
    told = "trained\nno space\n" if num_steps < ENOUGH + 9 else "no space\n"
    assert (done.returncode, done.stdout) == (0, told + "trained\n" * go_on), done.stderr
    found = record(tmp_path)
    assert (found.status, found.trace_lost) == ("ok", "OSError: planted")
    assert not list(tmp_path.rglob(rundir.TRACE))


@pytest.mark.parametrize(("code", "status"), [(0, "ok"), (3, "failed")])
def test_a_script_that_leaves_past_its_end_has_its_record(
    observe: Observe, tmp_path: Path, code: int, status: str
) -> None:
    of_a_child = "import os\nif os.fork() == 0:\n    os._exit(5)\nprint(os.wait()[1] >> 8, flush=True)\n"
    done = observe(f"train({ENOUGH} - 2)\n{of_a_child}train(1)\nos._exit({code})")
    assert (done.returncode, done.stdout) == (code, "5\n"), done.stderr
    found = record(tmp_path)
    assert (found.status, found.ending) == (status, "returned")
    assert found.reason == (f"the script ended itself with exit code {code}" if code else None)


RAISES = """
from multiprocessing import get_context
from torch import distributed as dist, multiprocessing as mp

class Handled(Exception):
    pass

def work(rank, ending):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    train(5)
    if ending == "raise":
        raise ValueError("planted")
    elif ending == "exit":
        raise SystemExit(3)

def fork_while_handling():
    try:
        raise Handled("of the parent")
    except Handled:
        process = get_context("fork").Process(target=work, args=(0, "return"))
        process.start()
        process.join()

def fork(ending):
    process = get_context("fork").Process(target=work, args=(0, ending))
    process.start()
    process.join()

"""


@pytest.mark.parametrize(
    ("begin", "ending", "reason"),
    [
        ("fork('raise')", "raised", r"the script raised ValueError: planted \(.*/train.py:22\)"),
        ("mp.spawn(work, args=('raise',))", "raised", r"the script raised ValueError: planted \(.*/train.py:22\)"),
        ("fork('exit')", "returned", "the script ended itself with exit code 3"),
        ("fork('return')", "returned", "the script ended after"),
        ("fork_while_handling()", "returned", "the script ended after"),
    ],
)
def test_a_process_of_multiprocessings_tells_what_it_raised(
    observe: Observe, tmp_path: Path, begin: str, ending: str, reason: str
) -> None:
    done = observe(f'{RAISES}\nif __name__ == "__main__":\n    {begin}\n')
    (found,) = records(tmp_path)
    assert (found.status, found.ending) == ("failed", ending), done.stderr
    assert re.match(reason, found.reason or "")


ATTEMPTS = """
import os
import torch.distributed as dist
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
for attempt in range(2):
    if not os.fork():
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        dist.init_process_group("gloo", store=dist.TCPStore("localhost", store.port), rank=0, world_size=1)
        train(2)
        os._exit(0)
    os.wait()
"""


def test_each_attempt_of_torchruns_is_a_world_of_its_own_though_all_have_one_store(
    observe: Observe, tmp_path: Path
) -> None:
    done = observe(ATTEMPTS)
    assert len(records(tmp_path)) == 2, done.stderr


def test_a_rank_that_turns_out_to_be_another_takes_away_nothing_but_its_own(observe: Observe, tmp_path: Path) -> None:
    beside = "import glob, os\n(own,) = glob.glob('worlds/*/rank0')\nos.mkdir(f'{own[:-1]}1')\n"
    done = observe(f"{beside}{MAKES_A_GROUP}train(2)")
    assert len(records(tmp_path)) == 1, done.stderr
    assert len(list(tmp_path.glob(f"{rundir.WORLDS}/*/rank1"))) == 1


def test_a_file_that_the_overlay_has_no_room_for_is_told_with_the_way_out(observe: Observe, tmp_path: Path) -> None:
    raises = 'train(2)\nraise OSError(28, "No space left on device")'
    done = observe(raises, allow_writes=False)
    assert (record(tmp_path).reason or "").endswith(f"; {OVERLAY_ALONE}"), done.stderr
