"""Scripts that distribute themselves, in processes that dpdoctor did not start."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from dpdoctor import heartbeat
from dpdoctor.launch.native import WENT_ON
from tests.faults.conftest import LITTLE, NO_WALL, SCRIPTS, TWO_FORKED, arguments, in_turn

SHORT = (*LITTLE, "--modes", "native", "--no-baseline")


def test_torchrun_ends_well_and_counts_what_its_ranks_drew(profile):
    launcher = "torchrun --nproc-per-node 2 --max-restarts 2 --standalone"
    run = profile("native_ddp.py", *LITTLE, "--modes", "native", "--launcher", launcher)
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    alone = run.mode("single")
    assert (alone["status"], alone["world_size"], alone["batch"]["global"]) == ("ok", 1, 5)
    assert alone["native"]["launcher"][:3] == ["torchrun", "--nproc-per-node", "1"]
    assert {rank["device"] for mode in ("single", "native") for rank in run.mode(mode)["ranks"]} == {
        alone["ranks"][0]["device"]
    }
    assert run.mode("native")["batch"]["rule"] == "per-device"
    mode = run.mode("native")
    assert (mode["status"], mode["world_size"]) == ("ok", 2)
    assert "gloo" in mode["backend"]
    assert (mode["batch"]["per_device"], mode["batch"]["global"]) == (5, 10)
    # 640 samples, 5 to a batch, on two ranks
    assert run.record("native").steps_per_epoch == 64
    assert mode["throughput"]["value"] * mode["step"]["value"] == pytest.approx(10, rel=0.01)
    assert [check["ok"] for check in mode["conversion"]["proof"] if check["name"] == "parameters equal"] == [True]
    assert not mode["conversion"]["warnings"]
    assert [way["name"] for way in mode["conversion"]["strategies"]] == ["ddp"]
    assert mode["native"]["collectives"]["value"] == 1
    # The script switches the reduction off in all micro-batches but the last.
    assert not [found for found in run.summary["findings"] if found["rule"] == "accumulation_sync"]
    printed = (run.root / "native" / "stdout.log").read_text()  # in which a line of one may stand within the other's
    assert sorted(re.findall(r"rank . unwound, attempt .", printed)) == [f"rank {i} unwound, attempt 0" for i in (0, 1)]
    ended = run.launch("native").record
    assert (ended.exit_codes, ended.ended_by_dpdoctor) == ((0,), (False,))


READS_ONCE = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in torch.utils.data.DataLoader(torch.rand(400, 8), batch_size=4):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_loader_processes_would_cost_is_tried_as_a_job_ends_by_itself(profile, tmp_path):
    script = tmp_path / "once.py"
    script.write_text(READS_ONCE)
    run = profile(str(script), *SHORT, "--rounds", "500", *TWO_FORKED)
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    first, second = (rank.record for rank in run.launch("native").ranks)
    assert (first.ending, second.ending) == ("returned", "returned")
    assert [hand_off.n > 0 for hand_off in first.hand_offs] == [True]
    assert not second.hand_offs


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ([], "torch.multiprocessing.spawn at"),
        in_turn(["as_processes"], "torch.distributed.init_process_group, as one of 2 ranks, at"),
        in_turn(["as_processes", "anew"], "torch.distributed.init_process_group, as one of 2 ranks, at"),
    ],
)
def test_spawned_ranks_on_the_same_samples_do_the_work_of_one(profile, tmp_path, how, said):
    (tmp_path / "start.pt").write_text("the user's")
    # Nobody needs to know that there is such a mode, and already the first launch, a control, finds it out.
    run = profile("native_spawned.py", *LITTLE, args=["2", *how], control=True)
    skip_without_wall(run)
    assert re.search(rf"single, bare: failed after .*: the script distributes itself: {re.escape(said)}", run.output)
    assert list(run.summary["modes"]) == ["native"]
    assert run.exit_code == 0, run.output
    mode = run.mode("native")
    assert mode["speedup"]["reason"] == "no baseline: the script itself decides how many ranks it starts"
    assert (mode["status"], mode["world_size"]) == ("ok", 2)
    assert (mode["batch"]["per_device"], mode["batch"]["global"]) == (4, 4)
    assert mode["throughput"]["value"] * mode["step"]["value"] == pytest.approx(4, rel=0.01)
    (way,) = mode["conversion"]["strategies"]
    assert (way["name"], way["line"].rpartition(":")[2]) == ("hand-written", "29")
    assert way["facts"] == "2 calls of all_reduce in a step, 36 B, outside of the backward pass"
    assert mode["native"]["collectives"]["value"] == 2
    assert mode["phases"]["communication"]["value"] > 0
    (finding,) = (found for found in run.summary["findings"] if found["rule"] == "unsharded_data")
    assert "DistributedSampler" in finding["code"]
    assert "the parent ends" in (run.root / "native" / "stdout.log").read_text()
    assert (tmp_path / "start.pt").read_text() == "the user's"


@pytest.mark.parametrize(("averaged", "found"), [("gradients", ["native_apart.py:22"]), in_turn("updated", [])])
def test_ranks_that_average_the_gradients_of_different_models_are_told(profile, averaged, found):
    run = profile("native_apart.py", *SHORT, *TWO_FORKED, args=[averaged])
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    lines = [each["line"] for each in run.summary["findings"] if each["rule"] == "replicas_differ"]
    assert [line.rpartition("/")[2] for line in lines] == found


@pytest.mark.parametrize(("args", "is_same"), [([], False), in_turn(["sent"], True)])
def test_what_enters_the_model_alike_is_no_sample_where_loaders_give_ranks_others(profile, args, is_same):
    run = profile("native_field.py", *SHORT, *TWO_FORKED, args=args)
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    assert run.mode("native")["conversion"]["same_samples"] is is_same
    assert ("unsharded_data" in [each["rule"] for each in run.summary["findings"]]) is is_same


def test_a_rank_that_leaves_early_ends_the_observation_and_not_the_job(profile):
    run = profile("native_short.py", *SHORT, *TWO_FORKED, args=["200", "4"])
    skip_without_wall(run)
    assert run.exit_code == 1
    assert "rank 1" in run.mode("native")["reason"]
    assert "4 steps" in run.mode("native")["reason"]
    printed = (run.root / "native" / "stdout.log").read_text()
    assert sorted(re.findall("rank . ends by itself", printed)) == [f"rank {i} ends by itself" for i in (0, 1)]


@pytest.mark.parametrize(
    ("launcher", "then"),
    [
        ("torchrun --standalone --nproc-per-node 2 --max-restarts 1", "stop"),
        in_turn("torchrun --standalone --nproc-per-node 2 --max-restarts 1", "go-on"),
        ("python", "stop"),
        in_turn("python", "go-on"),
    ],
)
def test_ranks_that_follow_others_that_failed_are_observed(profile, monkeypatch, launcher, then):
    # With the one store that torchrun keeps for all its attempts, gloo of torch 2.14 meets the ranks that are gone.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    steps = ("30",) if then == "go-on" else ()  # one that goes on is to come to an end
    run = profile("native_again.py", *SHORT, "--launcher", launcher, "--then", then, args=steps)
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    mode = run.mode("native")
    assert (mode["status"], mode["world_size"]) == ("ok", 2)
    assert run.launch("native").record.other_worlds == "2 ranks"


@pytest.mark.parametrize("launcher", ["torchrun --standalone --nproc-per-node 2", in_turn("python")])
def test_a_rank_that_fails_where_none_follows_is_to_blame(profile, launcher):
    run = profile("native_again.py", *SHORT, "--launcher", launcher, args=["0"])
    skip_without_wall(run)
    assert run.exit_code == 1
    assert "rank 1, after 3 steps: the script raised ValueError: planted" in run.mode("native")["reason"]
    assert run.launch("native").record.failed_rank == 1
    assert not alive(run)


def test_a_script_that_trains_nowhere_is_explained(profile, tmp_path):
    script = tmp_path / "needs_gpus.py"
    script.write_text("print('this needs 8 GPUs')\n")
    run = profile(str(script), *SHORT)
    skip_without_wall(run)
    assert run.exit_code == 1
    reason = run.mode("native")["reason"]
    assert "ended with code 0, and none of its processes trained" in reason
    assert "this needs 8 GPUs" in reason


def test_a_script_that_waits_for_a_launchers_variables_is_told_to_get_one(profile):
    run = profile(str(Path(__file__).parents[2] / "samples" / "ddp_torchrun.py"), "--modes", "native", "--no-baseline")
    skip_without_wall(run)
    assert run.exit_code == 1
    assert (
        "RANK expected, but not set. A launcher sets that for each rank: give --nproc 2" in run.mode("native")["reason"]
    )


@pytest.mark.parametrize("when", [in_turn("before its first step"), "after its first step"])
def test_a_script_that_prints_for_ever_is_ended(profile, tmp_path, when):
    script = tmp_path / "prints.py"
    script.write_text(
        "import sys, time, torch\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        f"for _ in range({int(when.startswith('after'))}):\n"
        "    model(torch.rand(2, 1)).sum().backward()\n"
        "    optimizer.step()\n"
        "while True:\n"
        "    time.sleep(0.2)\n"
        "    print('still here', flush=True)\n"
    )
    run = profile(str(script), *SHORT, "--timeout", "10")
    skip_without_wall(run)
    assert run.exit_code == 1
    mode = run.mode("native")
    assert f"{script}:8" in mode["reason"]
    assert "no progress for 10.0 s" in mode["reason"]
    ended = run.launch("native").record
    assert (ended.exit_codes, ended.ended_by_dpdoctor) == ((None,), (True,))


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# Who starts the ranks of a job, alone and observed; others are started by torchrun.
STARTED_BY = {
    "hand": ((sys.executable,), ()),
    "fsdp2": (shlex.split(TWO_FORKED[1]), TWO_FORKED),
}


@pytest.mark.parametrize(
    ("script", "args", "checkpoint"),
    [
        ("native_exact.py", ["ddp"], "last.pt"),
        ("native_exact.py", ["fsdp2"], "last.pt"),
        in_turn("native_exact.py", ["hand"], "last.pt"),
        ("native_exact_trainer.py", [], "out/checkpoint-24/model.safetensors"),
    ],
)
def test_a_job_that_goes_on_ends_as_it_would_without(profile, tmp_path, script, args, checkpoint):
    if not args:
        pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
    starter, options = STARTED_BY.get(args[0] if args else "", (TORCHRUN, ("--nproc", "2")))
    (tmp_path / "alone").mkdir()
    alone = subprocess.run(
        [*starter, str(SCRIPTS / script), *args], cwd=tmp_path / "alone", capture_output=True, text=True, check=True
    )
    run = profile(script, *LITTLE, "--modes", "native", "--no-baseline", *options, "--then", "go-on", args=args)
    assert run.exit_code == 0, run.output
    assert "what it writes is really written" in run.output
    assert run.mode("native")["status"] == "ok"
    assert weights((run.root / "native" / "stdout.log").read_text()) == weights(alone.stdout)
    if checkpoint.endswith(".pt"):
        apart, observed = (torch.load(folder / checkpoint) for folder in (tmp_path / "alone", tmp_path))
        assert all(map(torch.equal, apart, observed))
    else:
        assert (tmp_path / checkpoint).read_bytes() == (tmp_path / "alone" / checkpoint).read_bytes()


GO_ON = (*LITTLE, "--modes", "native", "--no-baseline", "--then", "go-on")
TWO_WINDOWS = 14


def trains(num_steps: int, *then: str) -> str:
    """Return a script that takes so many steps in one process, and does something then."""
    lines = (
        "import sys, torch",
        "model = torch.nn.Linear(1, 1)",
        "optimizer = torch.optim.SGD(model.parameters())",
        f"for _ in range({num_steps}):",
        "    model(torch.rand(2, 1)).sum().backward()",
        "    optimizer.step()",
        *then,
    )
    return "\n".join(lines)


def test_a_job_that_goes_on_is_run_once_though_it_ends_before_its_trace(profile, tmp_path):
    script = tmp_path / "counts.py"
    script.write_text(trains(TWO_WINDOWS, "print('ran', file=open('runs', 'a'))"))
    run = profile(str(script), *GO_ON, "--trace-steps", "3")
    assert run.exit_code == 0, run.output
    assert (tmp_path / "runs").read_text() == "ran\n"
    assert run.mode("native")["trace_reason"].endswith("before its trace: a job that goes on is run once")


def test_a_job_that_fails_after_it_was_recorded_fails_and_keeps_its_figures(profile, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(trains(TWO_WINDOWS + 1, "sys.exit(3)"))
    run = profile(str(script), *GO_ON)
    assert run.exit_code == 1, run.output
    mode = run.mode("native")
    assert (mode["status"], mode["reason"]) == ("ok", WENT_ON.format("ended with exit code 3"))
    assert mode["step"]["value"] > 0
    assert "failed then: its command ended with exit code 3" in " ".join(run.output.split())


def test_a_job_that_goes_on_profiles_itself_again(profile):
    watched = (*SHORT, "--then", "go-on")
    run = profile("wild_own_profiler.py", *watched, args=["scheduled", "200"])
    assert run.exit_code == 0, run.output
    assert any("kept from recording" in warning for warning in run.record("native").conversion.warnings)
    first, *_, last, events = (run.root / "native" / "stdout.log").read_text().splitlines()
    assert first == "cycle 5 0"
    assert int(last.split()[-1]) > 0
    assert int(events.split()[-1]) > 0


def weights(printed: str) -> str:
    """Return the digest of its final weights that a script printed."""
    (line,) = (line for line in printed.splitlines() if line.startswith("weights "))
    return line


# Rank 1 runs out of batches one step before rank 0: what comes of it, and where each then stands.
@pytest.mark.parametrize(
    ("way", "steps", "lines"),
    [
        ("exit", 29, ("loss.backward()", None)),
        in_turn("barrier", 29, ("loss.backward()", "dist.barrier()")),
        ("epochs", 87, ("dist.all_reduce(layers.weight.grad)", "dist.barrier()")),
        in_turn("metric", 29, ("loss.backward()", "dist.all_reduce(mean)")),
    ],
)
def test_ranks_of_unequal_steps_are_told_with_their_counts_and_lines(profile, way, steps, lines):
    script = SCRIPTS / "native_unequal.py"
    windows = ("--warmup", "40", "--steps", "60", "--rounds", "3", "--trace-steps", "0", "--ablations", "none")
    run = profile(
        str(script), "--modes", "native", "--no-baseline", *TWO_FORKED, *windows, "--timeout", "15", args=[way]
    )
    skip_without_wall(run)
    assert run.exit_code == 1
    reason = run.mode("native")["reason"]
    assert reason.count(f"after {steps} steps") == 2
    assert "rank 0" in reason
    assert "rank 1" in reason
    text = script.read_text().splitlines()
    for line in filter(None, lines):
        assert f"{script}:{next(n for n, found in enumerate(text, 1) if found.strip() == line)}" in reason
    if way == "metric":
        assert run.launch("native").record.failed_rank == 1
        assert reason.startswith("rank 1")
    assert not alive(run)


def alive(run) -> list[int]:
    """Return the processes that any rank, or a process that could have become one, has left."""
    armed = (run.root / "native" / "processes.tsv").read_text().splitlines()
    return [pid for pid in {int(line.split("\t")[0]) for line in armed} if psutil.pid_exists(pid)]


@pytest.mark.parametrize("killed", ["torchrun", "dpdoctor"])
def test_nothing_is_left_of_a_job_when_its_launcher_or_dpdoctor_is_killed(tmp_path, killed):
    root = tmp_path / "run"
    script = tmp_path / "trains.py"
    script.write_text((SCRIPTS / "native_short.py").read_text())
    options = ("--modes", "native", "--no-baseline", "--no-control", "--nproc", "2", "--warmup", "1000000")
    command = [*arguments(root, str(script), options, ["1000000", "1000000"])]
    process = subprocess.Popen(
        [sys.executable, "-m", "dpdoctor", *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        deadline = time.monotonic() + 90
        while process.poll() is None and len(training(root)) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        ranks = training(root)
        if process.poll() is None:
            (launcher,) = {psutil.Process(pid).ppid() for pid in ranks}
            os.kill(process.pid if killed == "dpdoctor" else launcher, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and any(map(psutil.pid_exists, [*ranks, launcher])):
                time.sleep(0.1)
    finally:
        process.kill()
        printed = process.communicate()[0].decode()
    if NO_WALL in printed.replace("\n", " "):
        pytest.skip(NO_WALL)
    assert len(ranks) == 2, printed
    assert not any(map(psutil.pid_exists, [*ranks, launcher]))


def training(root: Path) -> list[int]:
    """Return the processes of the ranks that have taken a step."""
    beats = map(heartbeat.read, root.glob("native/worlds/*/rank*"))
    return [beat.pid for beat in beats if beat is not None and beat.step]


def skip_without_wall(run):
    if NO_WALL in run.output.replace("\n", " "):
        pytest.skip("this machine lets no user make a mount namespace, in which files are protected")
