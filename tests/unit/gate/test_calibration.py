from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from dpdoctor.errors import BaselineError, OutputError
from dpdoctor.gate import calibration
from dpdoctor.gate.model import Calibration, ModeNoise
from dpdoctor.gate.noise import launch_spread
from dpdoctor.gate.workload import workload
from tests.builders import launched_runs
from tests.builders.launched_runs import of

HEADER = of(10).header
SPEC, MACHINE = HEADER.spec, HEADER.fingerprint
NOISE = ModeNoise(
    run_cv=0.01,
    shown_cv=0.01,
    pair_sd=0.012,
    autocorrelation=0.1,
    median_s=0.01,
    log_ratios=(0.0, 0.01),
    log_seconds=(-4.6, -4.6),
    sharing="per-device",
    created="2026-01-02T03:04:05Z",
    fingerprint=MACHINE,
)
CALIBRATION = Calibration(
    created="2026-01-02T03:04:05Z",
    dpdoctor="0.1.0",
    workload=str(workload(SPEC)),
    fingerprint=MACHINE,
    modes={"ddp": NOISE},
)


def test_what_is_kept_is_found_by_the_same_workload_on_the_same_machine(tmp_path: Path) -> None:
    path, _ = calibration.keep(tmp_path / "kept", CALIBRATION)
    assert path.name.startswith("train.py-")
    assert calibration.find(tmp_path / "kept", SPEC, MACHINE) == CALIBRATION


def test_a_soft_difference_finds_it_all_the_same(tmp_path: Path) -> None:
    calibration.keep(tmp_path, CALIBRATION)
    assert calibration.find(tmp_path, SPEC, replace(MACHINE, host="another")) == CALIBRATION
    assert calibration.find(tmp_path, replace(SPEC, seed=9), MACHINE) == CALIBRATION


def test_another_machine_or_workload_has_none(tmp_path: Path) -> None:
    calibration.keep(tmp_path, CALIBRATION)
    other = replace(MACHINE, cores=8)
    assert calibration.find(tmp_path, SPEC, other) is None
    assert calibration.find(tmp_path, replace(SPEC, args=("--epochs", "9")), MACHINE) is None


def test_modes_that_were_calibrated_before_stay(tmp_path: Path) -> None:
    calibration.keep(tmp_path, CALIBRATION)
    newer = replace(NOISE, run_cv=0.05)
    calibration.keep(tmp_path, replace(CALIBRATION, modes={"fsdp": newer}))
    calibration.keep(tmp_path, replace(CALIBRATION, modes={"fsdp": NOISE}))
    found = calibration.find(tmp_path, SPEC, MACHINE)
    assert found is not None
    assert found.modes == {"ddp": NOISE, "fsdp": NOISE}
    assert len(list(tmp_path.iterdir())) == 1


def test_each_mode_keeps_when_and_where_it_was_measured(tmp_path: Path) -> None:
    other = replace(MACHINE, host="another")
    before_that_was_kept = replace(NOISE, created="", fingerprint=None)
    calibration.keep(tmp_path, replace(CALIBRATION, modes={"ddp": before_that_was_kept}))
    newer = replace(NOISE, created="2027-01-01T00:00:00Z", fingerprint=other)
    calibration.keep(tmp_path, replace(CALIBRATION, created=newer.created, fingerprint=other, modes={"fsdp": newer}))
    found = calibration.find(tmp_path, SPEC, other)
    assert found is not None
    assert found.modes == {"ddp": NOISE, "fsdp": newer}


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1}', "[]"])
def test_a_damaged_file_is_named_and_mended_by_calibrating_anew(tmp_path: Path, text: str) -> None:
    path, _ = calibration.keep(tmp_path, CALIBRATION)
    path.write_text(text)
    with pytest.raises(BaselineError, match=r"is damaged: .*\. Remove it and calibrate anew") as caught:
        calibration.find(tmp_path, SPEC, MACHINE)
    assert str(path) in str(caught.value)
    calibration.keep(tmp_path, CALIBRATION)
    assert calibration.find(tmp_path, SPEC, MACHINE) == CALIBRATION


def test_another_schema(tmp_path: Path) -> None:
    calibration.keep(tmp_path, replace(CALIBRATION, schema=7))
    with pytest.raises(BaselineError, match=r"schema 7\b.*schema 1\b"):
        calibration.find(tmp_path, SPEC, MACHINE)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot create the directory"):
        calibration.keep(tmp_path / "file" / "below", CALIBRATION)


def told(directory: Path, found: Calibration | None = None, **machine: object) -> list[tuple[str, str]]:
    fingerprint = replace(MACHINE, **machine)
    refusals = calibration.missing(directory, SPEC, fingerprint, found, ("ddp", "fsdp"))
    assert all(refusal.hard and "`dpdoctor calibrate`" in refusal.remedy for refusal in refusals)
    return [(refusal.field, refusal.remedy.partition(". ")[0]) for refusal in refusals]


def test_why_there_is_none_says_what_there_is(tmp_path: Path) -> None:
    ((field, there_is),) = told(tmp_path / "absent")
    assert field == "calibration"
    assert there_is.endswith(f"none of {workload(SPEC)}")
    calibration.keep(tmp_path, CALIBRATION)
    packages = {"torch": "2.16.0"}
    ((field, there_is),) = told(tmp_path, cores=8, packages=packages)
    assert field == "calibration"
    assert there_is.endswith(" cores, torch")
    ((field, there_is),) = told(tmp_path, CALIBRATION)
    assert field == "fsdp: calibration"
    assert re.findall(r"\b(?:ddp|fsdp)\b", there_is) == ["ddp"]


def test_why_there_is_none_of_another_workload(tmp_path: Path) -> None:
    other = "other.py on 2 devices"
    calibration.keep(tmp_path, replace(CALIBRATION, workload=other))
    ((field, there_is),) = told(tmp_path)
    assert field == "calibration"
    assert f"one of {other}" in there_is
    assert there_is.endswith(f"none of {workload(SPEC)}")


def test_it_is_kept_among_the_users_data(tmp_path: Path) -> None:
    os.environ["XDG_DATA_HOME"] = str(tmp_path)
    assert calibration.default_directory() == tmp_path / "dpdoctor" / "calibrations"
    for ignored in ("", "relative/path"):
        os.environ["XDG_DATA_HOME"] = ignored
        assert calibration.default_directory() == Path.home() / ".local/share/dpdoctor/calibrations"


def test_a_mode_whose_devices_share_batches_otherwise_was_not_calibrated(tmp_path: Path) -> None:
    calibration.keep(tmp_path, CALIBRATION)
    (mode,) = SPEC.modes
    other = replace(SPEC, modes=(replace(mode, batch_rule="global"),))
    found = calibration.find(tmp_path, other, MACHINE)
    assert found is not None
    assert found.modes == {}
    (refusal,) = calibration.missing(tmp_path, other, MACHINE, found, ("ddp",))
    assert "other --batch" in refusal.remedy


def test_a_directory_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(BaselineError, match=r"cannot read .*: Permission denied"):
        calibration.find(tmp_path, SPEC, MACHINE)


def test_a_run_is_told_how_far_its_launches_differ() -> None:
    run = launched_runs.run(launched_runs.launch(10))
    assert calibration.launch_spreads(CALIBRATION, run) == ({"ddp": launch_spread(NOISE)}, ())


def test_a_run_of_another_pace_is_not() -> None:
    run = launched_runs.run(launched_runs.launch(13))
    spreads, (told,) = calibration.launch_spreads(CALIBRATION, run)
    assert spreads == {}
    assert told == "in ddp a step takes 13.0 ms, and took 10.0 ms where the noise was measured"


def test_what_takes_the_place_of_another_pace_is_told(tmp_path: Path) -> None:
    assert calibration.keep(tmp_path, CALIBRATION)[1] == ()
    alike = replace(NOISE, median_s=0.011)
    assert calibration.keep(tmp_path, replace(CALIBRATION, modes={"ddp": alike}))[1] == ()
    slower = replace(NOISE, median_s=0.1)
    _, (told,) = calibration.keep(tmp_path, replace(CALIBRATION, modes={"ddp": slower, "fsdp": slower}))
    assert told == "in ddp a step takes 100 ms, and took 11.0 ms where the noise was measured"


def test_where_nothing_can_be_kept_is_known_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration.prepare(tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OutputError, match=r"cannot write to .*kept: No space left on device"):
        calibration.prepare(tmp_path / "kept")
