"""`dpdoctor profile`, as far as nothing needs to be launched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.cli import main
from dpdoctor.gate import calibration
from dpdoctor.gate.calibration import launch_spread
from dpdoctor.gate.model import Calibration
from dpdoctor.gate.recorded import sharing, workload
from dpdoctor.launch import launcher
from dpdoctor.launch.progress import Progress
from dpdoctor.records import LaunchRecord
from dpdoctor.spec import DISTRIBUTES_ITSELF, NATIVE, SPAWNS, RunHeader, RunSpec
from tests.builders import launched_runs, run_directories
from tests.builders.noises import CALIBRATED


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the present directory, with a script that starts its ranks by itself; a step of it takes 100 ms."""

    def launch(
        root: Path, spec: RunSpec, _: Progress, is_enough: Callable[[LaunchRecord], bool] = lambda _: False
    ) -> list[LaunchRecord]:
        mode = spec.modes[0].name
        if mode != NATIVE:
            record = LaunchRecord(
                mode=mode, launch=1, status="failed", reason=f"{DISTRIBUTES_ITSELF}{SPAWNS[0]} at train.py:3"
            )
            assert is_enough(record)
            return [record]
        found = launched_runs.launch(100)
        found = replace(found, record=replace(found.record, mode=NATIVE))
        run_directories.write_launch(rundir.launch_dir(root, NATIVE), found)
        return [found.record]

    monkeypatch.setattr(launcher, "launch", launch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "train.py").touch()
    return tmp_path


def profile(*options: str) -> Result:
    return CliRunner().invoke(main, ["profile", "--no-baseline", "--ablations", "none", *options, "train.py"])


def header(root: Path) -> RunHeader:
    return rundir.read_json(root / rundir.HEADER, RunHeader)


def calibrate(of: RunHeader, median_s: float) -> None:
    (mode,) = of.spec.modes
    noise = replace(CALIBRATED, median_s=median_s, sharing=sharing(mode))
    kept = Calibration(
        created=of.created,
        dpdoctor=of.dpdoctor,
        workload=str(workload(of.spec)),
        fingerprint=of.fingerprint,
        modes={mode.name: noise},
    )
    calibration.keep(calibration.default_directory(), kept)


def test_a_script_that_turns_out_to_be_native_has_what_was_calibrated_of_it(here: Path) -> None:
    assert profile("--out", "before").exit_code == 0
    assert header(here / "before").launch_spread == {}
    calibrate(header(here / "before"), 0.1)
    done = profile("--out", "after")
    assert done.exit_code == 0, done.output
    assert header(here / "after").launch_spread == {NATIVE: launch_spread(CALIBRATED)}


def test_the_noise_of_another_pace_is_not_used(here: Path) -> None:
    assert profile("--out", "before").exit_code == 0
    calibrate(header(here / "before"), 0.01)
    done = profile("--out", "after")
    assert done.exit_code == 0, done.output
    assert header(here / "after").launch_spread == {}
    assert "in native a step takes 100 ms, and took 10.0 ms where the noise was measured" in done.stderr


@pytest.mark.parametrize("options", [("--modes", "ddp"), ("--explain",)])
@pytest.mark.usefixtures("here")
def test_a_launcher_is_refused_where_no_mode_is_started_by_it(options: tuple[str, ...]) -> None:
    done = profile("--launcher", "torchrun --nproc-per-node 2", *options)
    assert done.exit_code == 2
    assert "--launcher is for mode native" in done.output


def test_a_launcher_is_taken_where_the_script_may_turn_out_to_be_native(here: Path) -> None:
    done = profile("--launcher", "torchrun --nproc-per-node 2", "--out", "run")
    assert done.exit_code == 0, done.output
    (mode,) = header(here / "run").spec.modes
    assert mode.launcher == ("torchrun", "--nproc-per-node", "2")


@pytest.mark.usefixtures("here")
def test_all_modes_that_failed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object, **__: object) -> list[LaunchRecord]:
        return [LaunchRecord(mode=name, launch=1, status="failed", reason="no data") for name in ("ddp", "fsdp")]

    monkeypatch.setattr(launcher, "launch", launch)
    done = profile("--modes", "ddp,fsdp", "--quiet")
    assert done.exit_code == 1
    assert "modes ddp, fsdp failed: no data" in done.output
