"""Gates that launch: two checkouts of a script that sleeps in every step, as long as a number in it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from dpdoctor import cgroup, rundir
from dpdoctor.gate import calibration
from dpdoctor.gate.model import Calibration, ModeNoise
from dpdoctor.gate.recorded import Workload
from dpdoctor.launch import machine
from tests.commands import dpdoctor, forking, heed_ctrl_c
from tests.faults.conftest import SCRIPTS

SCRIPT = (SCRIPTS / "paced.py").read_text()
COUNTED = ("--modes", "single", "--warmup", "3")
SHORT = (*COUNTED, "--steps", "8", "--rounds", "4")
# As quiet as --quick wants it; the pace of the script is what matters here.
NOISE = ModeNoise(
    run_cv=0.005,
    shown_cv=0.005,
    pair_sd=0.007,
    autocorrelation=0.0,
    median_s=0.005,
    log_ratios=(0.0,) * 10,
    log_seconds=(0.0,) * 20,
    sharing="per-device",
)
TOLERANCE = ("--quick", "--tolerance", "40")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One finished `dpdoctor gate`."""

    exit_code: int
    output: str
    root: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.root / "gate.json").read_text())

    @property
    def launches(self) -> list[str]:
        return sorted(str(path.parent.relative_to(self.root)) for path in self.root.rglob(rundir.LAUNCH))


Gate = Callable[..., Done]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a directory with the noise of this machine, said to be quiet."""
    of = Workload(
        script="train.py",
        args="",
        devices=1,
        on="CPU",
        threads_per_device=cgroup.cores(),
        samples_per_step=None,
        fsdp_wrap=None,
        warmup=3,
        steps=8,
        rounds=4,
    )
    calibration.keep(
        tmp_path / "kept",
        Calibration(
            created="2026-01-02T03:04:05Z",
            dpdoctor="0.1.0",
            workload=str(of),
            fingerprint=machine.fingerprint(None, machine.package_versions()),
            modes={"single": NOISE},
        ),
    )
    return tmp_path / "kept"


def arguments(tmp_path: Path, *options: str) -> list[str]:
    sides = ("--base", str(tmp_path / "base"), "--head", str(tmp_path / "head"), "--out", str(tmp_path / "out"))
    return ["gate", *sides, *(COUNTED if "--exact" in options else SHORT), *options, "train.py"]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Return a function that gates the script against another text of it."""

    def run(head: str, *options: str) -> Done:
        write(tmp_path, head)
        done = dpdoctor(*arguments(tmp_path, *options), cwd=tmp_path)
        return Done(exit_code=done.returncode, output=done.stdout + done.stderr, root=tmp_path / "out")

    return run


def write(tmp_path: Path, head: str) -> None:
    for side, text in (("base", SCRIPT), ("head", head)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(text)


@pytest.mark.measured
def test_what_is_alike_passes(gate: Gate, kept: Path) -> None:
    done = gate(SCRIPT, *TOLERANCE, "--calibrations", str(kept))
    assert done.exit_code == 0, done.output
    mode = done.result["modes"]["single"]
    assert mode["outcome"] == "pass"
    pairs = mode["pairs"]
    assert [pair["order"] for pair in pairs][:5] == ["AB", "BA", "AB", "BA", "AB"]
    assert sum(pair["replaced"] is None for pair in pairs) == 5
    assert all(pair["base_s"] > 0.004 for pair in pairs)
    assert done.launches[:2] == ["base/single", "base/single.2"]
    assert {"discarded/base/single", "discarded/head/single"} <= set(done.launches)
    assert "base: single (launch 1 of" in done.output
    assert ET.parse(done.root / "gate.xml").getroot().attrib["failures"] == "0"
    assert (done.root / "gate.md").read_text().startswith("### Passed")
    assert rundir.read(done.root / "head").header.spec.cwd == str((done.root.parent / "head").resolve())


@pytest.mark.measured
def test_what_is_slower_regressed_and_the_phase_that_grew_is_told(gate: Gate, kept: Path) -> None:
    done = gate(SCRIPT.replace("PACE_S = 0.004", "PACE_S = 0.010"), *TOLERANCE, "--calibrations", str(kept))
    assert done.exit_code == 3, done.output
    mode = done.result["modes"]["single"]
    assert mode["outcome"] == "regressed"
    assert 1.5 < mode["effect"]["value"] < 3
    assert mode["effect"]["low"] > 1
    phases = [item["name"] for item in mode["moved"] if item["kind"] == "phase"]
    assert phases[0] == "forward"  # the script paces itself where a loss would be computed
    assert {"explained/base/single", "explained/head/single"} <= set(done.launches)


def test_a_mode_that_fails_in_head_is_refused_after_one_launch(gate: Gate, kept: Path) -> None:
    done = gate("raise ValueError('planted')\n", *TOLERANCE, "--calibrations", str(kept))
    assert done.exit_code == 4, done.output
    (refusal,) = done.result["refusals"]
    assert refusal["field"] == "single: mode"
    assert "ValueError: planted" in refusal["head"]
    assert done.launches == ["discarded/head/single"]


def test_another_batch_is_other_work(gate: Gate, kept: Path) -> None:
    done = gate(SCRIPT.replace("BATCH = 4", "BATCH = 8"), *TOLERANCE, "--calibrations", str(kept))
    assert done.exit_code == 4, done.output
    (refusal,) = done.result["refusals"]
    assert (refusal["field"], refusal["base"], refusal["head"]) == ("single: global batch", "4 samples", "8 samples")


def test_a_script_that_ends_too_soon_measures_too_few_steps(gate: Gate, kept: Path) -> None:
    short = SCRIPT.replace("while True:", "for _ in range(1):").replace("640", "64")
    done = gate(short, *TOLERANCE, "--calibrations", str(kept))
    assert done.exit_code == 4, done.output
    (refusal,) = done.result["refusals"]
    assert refusal["field"] == "single: steps"


def test_counters_are_compared_in_a_few_launches(gate: Gate) -> None:
    more = SCRIPT.replace("        loss.backward()", "        loss.item()\n        loss.backward()")
    done = gate(more, "--exact")
    assert done.exit_code == 3, done.output
    # Head once more, as it did not pass.
    assert done.launches == ["base-again/single", "base/single", "head-again/single", "head/single"]
    differences = done.result["exact"]["single"]["differences"]
    assert [(item["name"], item["base"], item["head"]) for item in differences if "sync" in item["name"]] == [
        ("syncs.item", 0, 1)
    ]


def test_each_side_imports_its_own_package_though_one_is_installed(tmp_path: Path) -> None:
    write(tmp_path, "")
    for side, pace in (("base", 0.004), ("head", 0.010)):
        (tmp_path / side / "src" / "pace").mkdir(parents=True)
        (tmp_path / side / "src" / "pace" / "__init__.py").write_text(f"PACE_S = {pace}\nprint('pace of', {side!r})\n")
        (tmp_path / side / "train.py").write_text(SCRIPT.replace("PACE_S = 0.004", "from pace import PACE_S"))
    # As `pip install -e head` would: both scripts find the package of head.
    paths = [str(tmp_path / "head" / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = dpdoctor(*arguments(tmp_path, "--exact"), cwd=tmp_path, environment=environment, new_processes=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for side, expected in (("base", "base"), ("head", "head"), ("base-again", "base")):
        printed = (tmp_path / "out" / side / "single" / "rank0" / rundir.STDOUT).read_text()
        assert printed == f"pace of {expected}\n"


@pytest.mark.measured  # a gate by time does not go on where other processes take its cores
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_launched(tmp_path: Path, kept: Path, signum: int) -> None:
    write(tmp_path, SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-m", "dpdoctor", *arguments(tmp_path, *TOLERANCE, "--calibrations", str(kept))],
        cwd=tmp_path,
        env=forking(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509 - it takes no lock
    )
    wait_for(tmp_path / "out" / "head" / "single" / "rank0" / rundir.WINDOWS, process)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 4, output
    result = json.loads((tmp_path / "out" / "gate.json").read_text())
    assert result["outcome"] == "inconclusive"
    assert "Interrupted; pairs that count: " in result["remarks"][0]
    assert rundir.read(tmp_path / "out" / "base").modes["single"][0].record.status == "ok"


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


@pytest.mark.measured  # the pace that a profile finds must be the one that was calibrated
def test_a_profile_of_a_calibrated_workload_has_intervals_between_launches(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, SCRIPT)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    home = tmp_path / "data" / "dpdoctor" / "calibrations"
    home.parent.mkdir(parents=True)
    kept.rename(home)
    (file,) = home.iterdir()
    options = (*SHORT, "--no-baseline", "--trace-steps", "0", "--ablations", "none", "train.py")

    def profiled(name: str) -> tuple[dict[str, Any], str]:
        done = dpdoctor("profile", *options, "--out", str(tmp_path / name), cwd=tmp_path / "base")
        assert done.returncode == 0, done.stdout + done.stderr
        step = json.loads((tmp_path / name / rundir.SUMMARY).read_text())["modes"]["single"]["step"]
        return step, done.stderr

    calibrated = file.read_text()
    file.write_text(calibrated.replace('"median_s": 0.005', '"median_s": 0.5'))
    step, said = profiled("another project's")
    assert step["scope"] == "run"
    assert "Intervals hold within launches only: in single a step takes " in said
    assert "and took 500 ms where the noise was measured" in said
    file.write_text(calibrated.replace('"median_s": 0.005', f'"median_s": {step["value"]}'))
    assert profiled("calibrated")[0]["scope"] == "calibrated"
    file.write_text("{")
    step, said = profiled("damaged")
    assert step["scope"] == "run"
    assert f"Intervals hold within launches only: {file} is damaged" in said


@pytest.mark.slow
@pytest.mark.measured
def test_from_calibration_to_a_gate(tmp_path: Path) -> None:
    """What `dpdoctor calibrate` keeps is what the gate of the same script with the same options finds."""
    write(tmp_path, SCRIPT)
    kept = ("--calibrations", str(tmp_path / "kept"))
    done = dpdoctor(
        *("calibrate", *kept, *SHORT, "--out", str(tmp_path / "aa"), "train.py"),
        cwd=tmp_path / "base",
        new_processes=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Launches differ by" in done.stdout
    (path,) = (tmp_path / "kept").iterdir()
    noise = json.loads(path.read_text())["modes"]["single"]
    assert len(noise["log_ratios"]) >= 10
    assert noise["median_s"] > 0.004
    gated = dpdoctor(*arguments(tmp_path, *kept, "--tolerance", "40"), cwd=tmp_path, new_processes=True)
    assert gated.returncode == 0, gated.stdout + gated.stderr


@pytest.mark.measured  # a run that was disturbed becomes no baseline
def test_a_profile_becomes_a_baseline_that_another_is_judged_by(tmp_path: Path) -> None:
    write(tmp_path, SCRIPT)
    quick = ("--trace-steps", "0", "--ablations", "none", "--no-control")
    options: Sequence[str] = (*SHORT, "--repeat", "3", *quick, "train.py")
    for name in ("before", "after"):
        done = dpdoctor("profile", *options, "--out", str(tmp_path / name), cwd=tmp_path / "base")
        assert done.returncode == 0, done.stdout + done.stderr
    file = str(tmp_path / "main.json")
    assert dpdoctor("baseline", "save", "before", file, cwd=tmp_path).returncode == 0
    uncalibrated = dpdoctor("gate", "after", "--baseline", file, "--calibrations", "nothing", cwd=tmp_path)
    assert uncalibrated.returncode == 4
    exact = dpdoctor("gate", "after", "--baseline", file, "--exact", cwd=tmp_path)
    assert exact.returncode == 0, exact.stdout + exact.stderr
    accepted = dpdoctor("baseline", "accept", "after", file, "--reason", "measured anew", cwd=tmp_path)
    assert accepted.returncode == 0
    assert "measured anew" in dpdoctor("baseline", "list", str(tmp_path), cwd=tmp_path).stdout
