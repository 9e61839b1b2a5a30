"""`dpdoctor calibrate`, as far as nothing needs to be launched."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dpdoctor.cli import main
from dpdoctor.cli.calibrate import LEAST_PAIRS
from dpdoctor.gate import calibration
from dpdoctor.gate.alternate import Alternated
from dpdoctor.gate.calibration import Calibrated
from tests.builders.gate_results import CALIBRATION

CALIBRATE = ("calibrate", "--quiet", "--calibrations", "kept", "--out", "launches")


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the directories of what is launched, which gives the same calibration each time."""
    roots: list[Path] = []

    def measure(root: Path, *_: object, **__: object) -> Calibrated:
        roots.append(root)
        return Calibrated(calibration=CALIBRATION, launched=Alternated(pairs={}, verdicts={}))

    monkeypatch.setattr(calibration, "calibrate", measure)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return roots


def run(*options: str) -> Result:
    return CliRunner().invoke(main, [*CALIBRATE, *options, "train.py"])


def test_where_nothing_can_be_kept_nothing_is_launched(launched: list[Path]) -> None:
    Path("kept").touch()
    done = run()
    assert done.exit_code == 1
    assert "cannot create the directory kept" in done.output
    assert launched == []
    assert not Path("launches").exists()


def test_what_was_measured_is_shown_though_it_cannot_be_kept(
    launched: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = calibration.prepare

    def until_then(directory: Path) -> None:
        prepare(directory)
        directory.rmdir()
        directory.touch()

    monkeypatch.setattr(calibration, "prepare", until_then)
    done = run()
    assert launched
    assert done.exit_code == 1
    assert "Launches differ by" in done.output
    assert "cannot create the directory kept" in done.output


def test_another_pace_that_was_replaced_is_told(launched: list[Path]) -> None:
    assert "replaced" not in run().output
    slower = {name: replace(noise, median_s=1.0) for name, noise in CALIBRATION.modes.items()}
    calibration.keep(Path("kept"), replace(CALIBRATION, modes=slower))
    assert len(launched) == 1
    done = run("--out", "again")
    assert "in ddp a step takes 100 ms, and took 1.00 s where the noise was measured" in done.output


@pytest.mark.usefixtures("launched")
def test_a_launcher_is_refused_where_no_mode_is_started_by_it() -> None:
    done = run("--launcher", "torchrun --nproc-per-node 2")
    assert done.exit_code == 2
    assert "--launcher is for mode native" in done.output


def test_the_least_pairs_are_those_that_noise_is_told_from() -> None:
    assert LEAST_PAIRS == calibration.LEAST_PAIRS
