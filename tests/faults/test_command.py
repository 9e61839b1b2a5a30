"""The command as a whole: its options, what it prints, what it leaves."""

from __future__ import annotations

import json

import pytest

from dpdoctor import rundir
from dpdoctor.report import page
from tests.commands import dpdoctor
from tests.faults.conftest import SCRIPTS, SHORT

SINGLE = ("--modes", "single", *SHORT)


def test_a_module_runs_as_python_m_would_run_it(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys\nfrom package import __name__ as own\nprint(own, sys.argv[1:])\n")
    with (package / "train.py").open("a") as file:
        file.write((SCRIPTS / "predictor_beside.py").read_text())
    root = tmp_path / "run"
    done = dpdoctor("profile", "-m", "package.train", *SINGLE, "--out", str(root), "--", "--a", "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (root / "single/rank0" / rundir.STDOUT).read_text() == "package ['--a', 'b']\n"


def test_the_run_directory_may_be_relative(tmp_path):
    options = (*SHORT, "--modes", "ddp", "--no-baseline", "--out", "some/where")
    done = dpdoctor("profile", str(SCRIPTS / "predictor_beside.py"), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("rank*") if path.is_dir())
    assert [str(path) for path in ranks] == ["some/where/ddp/rank0", "some/where/ddp/rank1"]


def test_repeated_launches_give_intervals_between_launches(profile):
    done = profile("predictor_beside.py", *SINGLE, "--repeat", "2")
    assert done.exit_code == 0, done.output
    assert done.mode("single")["launches"] == 2
    throughput = done.mode("single")["throughput"]
    assert (throughput["scope"], throughput["n"]) == ("launches", 2)
    assert (done.root / "single.2" / "rank0" / rundir.STEPS).exists()


def test_json_alone_on_stdout(tmp_path):
    options = (*SINGLE, "--format", "json", "--samples-per-step", "7")
    done = dpdoctor("profile", str(SCRIPTS / "predictor_beside.py"), *options, cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert summary["modes"]["single"]["batch"]["per_device"] == 7
    (root,) = (tmp_path / "reports").iterdir()
    assert root.name.startswith("predictor_beside-")
    assert json.loads((root / rundir.SUMMARY).read_text()) == summary


def test_markdown_alone_on_stdout_and_what_explains_it_on_stderr(tmp_path):
    options = (*SINGLE, "--explain", "--format", "markdown", "--plotlyjs", "directory", "--out", "run")
    done = dpdoctor("profile", str(SCRIPTS / "predictor_beside.py"), *options, cwd=tmp_path)
    assert done.stdout.startswith("### The script was wrapped in every mode; nothing was measured.")
    assert "Plan:" in done.stderr
    assert "single: ok" in done.stderr
    assert "Report: run/report.html" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run", page.PLOTLY_FILE}


def test_quiet_prints_errors_only(profile):
    assert profile("predictor_beside.py", *SINGLE, "--quiet").output == ""


def test_verbose_also_prints_what_the_script_prints(profile):
    done = profile("mathematics.py", *SINGLE, "--verbose", args=["mean"])
    printed = done.printed("single").splitlines()
    assert [line.strip(" |") for line in done.output.splitlines() if line.startswith("  |")] == printed


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--keep-going",), 0)])
def test_a_failed_mode_decides_the_exit_code_unless_told_otherwise(profile, options, code):
    assert profile("nothing.py", *SINGLE, *options, args=["no_step"]).exit_code == code


def test_the_trace_is_written_per_rank_and_its_cost_is_told(profile):
    options = (
        "--modes",
        "ddp",
        "--no-baseline",
        "--warmup",
        "3",
        "--steps",
        "4",
        "--rounds",
        "2",
        "--trace-steps",
        "3",
        "--ablations",
        "none",
    )
    done = profile("predictor_beside.py", *options)
    assert done.exit_code == 0, done.output
    for rank in (0, 1):
        trace = done.rank("ddp", rank).trace
        assert trace.read_bytes()[:2] == b"\x1f\x8b"
    traced = [window for window in done.rank("ddp").windows if window.kind == "trace"]
    assert [(window.num_steps, window.complete) for window in traced] == [(3, True)]
    assert done.mode("ddp")["profiler_overhead"]["value"] > 0


def test_the_report_is_made_anew_from_the_directory(profile, tmp_path):
    done = profile("predictor_beside.py", *SINGLE)
    before = (done.root / rundir.SUMMARY).read_text()
    for name in (rundir.SUMMARY, rundir.REPORT):
        (done.root / name).unlink()
    again = dpdoctor("report", str(done.root), cwd=tmp_path)
    assert "single" in again.stdout
    assert (done.root / rundir.SUMMARY).read_text() == before
    assert (done.root / rundir.REPORT).stat().st_size > 1_000_000


def test_a_fetching_thread_and_a_parameter_outside_of_every_module(profile):
    done = profile("background.py", "--modes", "single,ddp", *SHORT)
    assert done.mode("single")["status"] == "ok"
    steps = done.rank("single").steps
    assert sum(step.samples_drawn for step in steps) == pytest.approx(4 * len(steps), abs=4 * 4)
    assert len(done.record("single").conversion.loaders) == 1
    assert done.mode("single")["phases"]["data_wait"]["value"] == 0
    assert done.mode("ddp")["status"] == "failed"
    assert "outside of every module that the script calls" in done.mode("ddp")["reason"]
    assert done.mode("ddp")["reason"].endswith("an nn.Parameter, of a module that is called")


def test_a_parameter_that_a_model_makes_in_its_first_forward_is_left_out_by_parallel_wrappers(profile):
    done = profile("made_in_forward.py", "--modes", "single,ddp,fsdp", *SHORT)
    assert done.mode("single")["status"] == "ok"
    for name in ("ddp", "fsdp"):
        mode = done.mode(name)
        assert mode["status"] == "failed"
        assert "made when its model was wrapped already, at its first training forward: weight" in mode["reason"], name
        assert "in `__init__`" in mode["reason"]
