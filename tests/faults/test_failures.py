"""Ranks that die or hang, a person who presses Ctrl-C, inputs that make no sense."""

from __future__ import annotations

import base64
import gzip
import itertools
import random
import shutil
import signal
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dpdoctor import heartbeat, rundir
from dpdoctor.launch import watch
from dpdoctor.records import RankRecord
from tests.builders.html import Elements
from tests.commands import dpdoctor, forking, heed_ctrl_c
from tests.faults.conftest import SCRIPTS, Profiled, arguments

LONG = ("--warmup", "30", "--steps", "10", "--rounds", "2", "--trace-steps", "0", "--ablations", "none")


def everyone_is_gone(profiled: Profiled) -> bool:
    pids = [beat.pid for path in profiled.root.glob("*/rank*") if (beat := heartbeat.read(path))]
    return bool(pids) and not any(is_alive(pid) for pid in pids)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("what", ["gzip.open", "tracer.digest_file"])
def test_a_trace_that_cannot_be_kept_costs_no_other_figure(profile, tmp_path, what):
    script = tmp_path / "train.py"
    planted = f"""
import gzip
from dpdoctor.worker import tracer

def full(path, *_, **__):
    raise OSError("planted")

{what} = full
"""
    script.write_text(planted + (SCRIPTS / "wild_trains_later.py").read_text())
    done = profile(str(script), "--modes", "ddp", "--no-baseline", *LONG, "--trace-steps", "3", args=["0"])
    assert done.exit_code == 0, done.output
    mode = done.mode("ddp")
    assert (mode["status"], mode["step"]["value"] > 0) == ("ok", True)
    assert mode["trace_reason"] == "the trace of rank 0 could not be kept: OSError: planted"
    assert "could not be kept: OSError: planted" in " ".join(done.output.split())


def test_a_proof_that_cannot_be_written_is_not_put_down_to_the_script(profile, tmp_path):
    script = tmp_path / "train.py"
    planted = "import tempfile\ntempfile.tempdir = '/nowhere'\n"
    script.write_text(planted + (SCRIPTS / "ordinary.py").read_text())
    done = profile(str(script), "--modes", "ddp", "--no-baseline", *LONG)
    assert done.mode("ddp")["status"] == "failed"
    reason = done.mode("ddp")["reason"]
    assert "as proof of what it does, could not be written to /nowhere and read again" in reason
    assert "the script raised" not in reason


@pytest.mark.parametrize(
    ("how", "modes", "said", "where"),
    [
        ("raise", "ddp,single", "rank 1: the script raised ValueError: planted", "fails.py:29"),
        ("kill", "ddp", "rank 1: the process was killed by SIGKILL", "stage warmup, after 19 steps"),
    ],
)
def test_a_rank_that_dies_fails_its_mode_only(profile, how, modes, said, where):
    done = profile("fails.py", "--modes", modes, "--no-baseline", *LONG, args=[how], new_processes=how == "kill")
    assert done.exit_code == 1
    launch = done.launch("ddp").record
    assert launch.status == "failed"
    assert launch.failed_rank == 1
    assert said in launch.reason
    assert where in launch.reason
    assert any("rank 1 is about to fail" in line for line in launch.stderr_tail)
    assert everyone_is_gone(done)
    if "single" in modes:
        assert done.mode("single")["status"] == "ok", "the mode after it still ran"


def test_a_rank_that_hangs_is_named_with_its_line_although_it_prints(profile):
    done = profile("fails.py", "--modes", "ddp", "--no-baseline", "--timeout", "8", *LONG, args=["hang"])
    assert done.exit_code == 1
    launch = done.launch("ddp").record
    assert launch.failed_rank == 1
    assert "made no progress for 8.00 s" in launch.reason
    assert "fails.py:34" in launch.reason
    assert watch.PRINTING in launch.reason
    assert everyone_is_gone(done)


def start_and_wait_for_windows(
    tmp_path: Path, environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], Path]:
    root = tmp_path / "run"
    options = (
        "--modes",
        "ddp",
        "--no-baseline",
        "--warmup",
        "4",
        "--steps",
        "4",
        "--rounds",
        "1000",
        "--ablations",
        "none",
    )
    command = [sys.executable, "-m", "dpdoctor", *arguments(root, "fails.py", options, ["wait"])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment, preexec_fn=heed_ctrl_c)  # noqa: PLW1509
    windows = root / "ddp" / "rank0" / rundir.WINDOWS
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (windows.exists() and windows.read_bytes().count(b"measure") >= 2):
        time.sleep(0.1)
    return process, root


@pytest.mark.parametrize(
    ("signum", "environment", "name"), [(signal.SIGINT, lambda: None, "Ctrl-C"), (signal.SIGTERM, forking, "SIGTERM")]
)
def test_ctrl_c_keeps_what_was_recorded_and_a_second_one_changes_nothing(tmp_path, signum, environment, name):
    process, root = start_and_wait_for_windows(tmp_path, environment())
    for again in (signum, signal.SIGINT, signal.SIGHUP):
        process.send_signal(again)
        time.sleep(0.1)
    while not (root / rundir.SUMMARY).exists() and process.poll() is None:
        process.send_signal(signum)
        time.sleep(0.1)
    _, stderr = process.communicate(timeout=60)
    done = Profiled(exit_code=process.returncode, output=stderr.decode(), root=root)
    assert done.exit_code == 128 + signum
    assert f"interrupted by {name}" in done.output
    assert done.mode("ddp")["status"] == "interrupted"
    assert done.mode("ddp")["reason"].startswith(f"{name} in stage ")
    assert done.mode("ddp")["throughput"]["value"] > 0
    assert (root / rundir.REPORT).exists()
    assert everyone_is_gone(done)


@pytest.mark.parametrize("environment", [lambda: None, forking], ids=["new", "forked"])
def test_ranks_die_with_a_launcher_that_was_killed(tmp_path, environment):
    process, root = start_and_wait_for_windows(tmp_path, environment())
    process.kill()
    process.communicate(timeout=60)
    done = Profiled(exit_code=process.returncode, output="", root=root)
    deadline = time.monotonic() + 10
    while not everyone_is_gone(done) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert everyone_is_gone(done)
    assert done.launch("ddp").record.reason == "dpdoctor itself was ended during this mode"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no_step", "ended without a training step"),
        ("no_module", "no module could be wrapped"),
        ("image", "wrapped: SGD holds tensors that are no module's parameters"),
        ("copies", "wrapped: SGD holds tensors that are no module's parameters"),
        ("copies", "no optimizer holds any of them: where one steps copies of them, such as weights in full precision"),
        ("held_copies", ". Linear, called at "),
        ("by_hand", "wrapped: the script trains tensors that are no module's parameters"),
        ("func", "no backward() was seen: functional_call at "),
        ("functional", "wrapped: functional_call at "),
        ("functional", "runs a module on tensors that stand in for its parameters"),
        ("short", "ended after 5 steps"),
    ],
)
def test_scripts_that_give_nothing_to_measure(profile, what, said):
    done = profile("nothing.py", "--modes", "single", args=[what])
    assert done.exit_code == 1
    assert said in done.mode("single")["reason"]
    assert said in done.output


def test_a_script_that_trained_fails_by_what_it_raised_though_it_started_a_process_with_a_group(profile, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("""
import multiprocessing, torch

def evaluate():
    torch.distributed.init_process_group("gloo", init_method="file:///nowhere", rank=0, world_size=2)

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(4, 3)).mean().backward()
    optimizer.step()
process = multiprocessing.get_context("fork").Process(target=evaluate)
process.start()
process.join()
raise ValueError("of its own")
""")
    done = profile(str(script), *LONG, control=True)
    raised = (
        f"the script raised ValueError: of its own ({script}:15); a process that it started was refused a process group"
    )
    records = [rundir.read_json(path, RankRecord) for path in done.root.glob(f"*/rank0/{rundir.RANK}")]
    assert {(record.reason or "").partition(": the script d")[0] for record in records} == {raised}
    assert {path.name for path in done.root.iterdir() if path.is_dir()} == {"bare", "single", "ddp"}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["profile", "absent.py"], 2, "there is no script absent.py"),
        (["profile", "-m", "absent.module"], 2, "there is no module 'absent.module'"),
        (["profile"], 2, "give a SCRIPT"),
        (["profile", "here.py", "--modes", "dpp"], 2, "no mode 'dpp'. Known modes: single, dp, ddp, fsdp, native"),
        (["profile", "here.py", "--nproc", "1000"], 2, "more ranks than there are cores"),
        (["profile", "here.py", "--time-budget", "0"], 2, "must be above 0"),
        (["profile", "here.py", "--out", "here.py/run"], 1, "cannot create here.py/run"),
        (["profile", "here.py", "--out", "."], 1, "exists already"),
        (["report", "absent"], 1, "is not a directory"),
        (["report", "."], 1, "is not a run directory"),
    ],
)
def test_clear_errors_before_anything_runs(tmp_path, args, code, said):
    (tmp_path / "here.py").write_text("raise SystemExit('must not run')")
    done = dpdoctor(*args, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "said"), [('{"schema": 99}', "has schema 99"), ('{"schema"', "is damaged")])
def test_a_run_of_another_schema_is_refused(tmp_path, text, said):
    (tmp_path / rundir.SUMMARY).write_text(text)
    done = dpdoctor("report", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr


def drawn_secrets() -> Iterator[str]:
    """Yield secrets of some length, other ones in each run, none of them a plain word."""
    while True:
        drawn = random.choices(string.ascii_letters + string.digits + "_", k=random.randint(6, 24))
        yield f"Zq7{''.join(drawn)}0"


@pytest.fixture
def secrets(monkeypatch) -> tuple[list[str], list[str]]:
    """Give secrets, of which one is in the environment, and the arguments that say the others, each in another form."""
    forms = (
        *("--api-key\n{}", "--wandb-key\n{}", "-p\n{}", "--pw={}", '{{"api_key": "{}"}}', "https://{}@host"),
        *("https://me:{}@host", "http://host?a=1&sig={}", "-H\nAuthorization: Basic {}", "-H\ntoken {}"),
        *("--user\nme:{}", "--dsn\nhost=db password={} user=me", "-H\nX-Api-Key: {}", "-H\nCookie: session={}"),
        *("--smtp-pass\n{}", '--set\npassword = "{}"', "-p{}", '{{"name": "db-password", "value": "{}"}}'),
    )
    *told, of_environment = itertools.islice(drawn_secrets(), len(forms) + 1)
    monkeypatch.setenv("SERVICE_TOKEN", of_environment)
    arguments = [part for form, secret in zip(forms, told, strict=True) for part in form.format(secret).split("\n")]
    return [*told, of_environment], arguments


@pytest.mark.parametrize("what", ["raise", "train"])
def test_secrets_reach_no_file_of_the_run_and_no_terminal(profile, secrets, what):
    hidden, args = secrets
    options = (*("--modes", "single", "--warmup", "2", "--steps", "4"), *("--rounds", "1", "--trace-steps", "4"))
    done = profile("tells_secrets.py", *options, "--ablations", "none", "--verbose", args=[what, *args])
    assert done.exit_code == (what == "raise"), done.output
    files = {path: path.read_bytes() for path in done.root.rglob("*") if path.is_file()}
    shown = {path.name: gzip.decompress(data) if path.suffix == ".gz" else data for path, data in files.items()}
    assert (rundir.TRACE in shown) == (what == "train")
    shown["inflated"] = "".join(Elements(shown[rundir.REPORT].decode()).json).encode()
    told = [*map(str.encode, hidden), *(base64.b64encode(f"me:{each}".encode())[4:-4] for each in hidden)]
    assert [(name, each) for name, data in shown.items() for each in told if each in data] == []
    assert [each for each in hidden if each in done.output] == []
    assert "logged in with <redacted>" in done.output
    assert shown[rundir.STDERR].count(b"and '<redacted>'") == len(hidden)
    assert any(file.path.endswith("model-<redacted>.pt") for file in done.record("single").conversion.written)
    if what == "raise":
        assert "401 for <redacted> and <redacted>" in done.launch("single").record.reason


@pytest.mark.parametrize("form", ["junit", "github"])
def test_secrets_reach_no_report_of_a_gate(secrets, tmp_path, form):
    hidden, args = secrets
    for side in ("base", "head"):
        (tmp_path / side).mkdir()
        shutil.copy(SCRIPTS / "tells_secrets.py", tmp_path / side)
    sides = ("--exact", "--base", "base", "--head", "head", "--format", form)
    done = dpdoctor("gate", *sides, "tells_secrets.py", "--", "raise", *args, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    printed = done.stdout + done.stderr
    assert "401 for" in printed
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert [each for each in hidden if each in printed or any(each.encode() in data for data in files)] == []


def test_a_syntax_error_is_named_with_its_line(tmp_path):
    (tmp_path / "typo.py").write_text("import torch\nfor x in range(3)\n    print(x)\n")
    done = dpdoctor("profile", "typo.py", "--modes", "single", "--no-control", "--out", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert f"the script raised SyntaxError: expected ':' ({tmp_path}/typo.py:2)" in " ".join(done.stdout.split())
