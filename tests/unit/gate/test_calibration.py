from __future__ import annotations

import itertools
import math
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor.errors import BaselineError, OutputError
from dpdoctor.gate import calibration
from dpdoctor.gate.calibration import autocorrelation, launch_spread, mode_noise, spread
from dpdoctor.gate.model import Calibration, ModeNoise, Pair
from dpdoctor.gate.recorded import workload
from tests.builders import launched_runs
from tests.builders.launched_runs import of


def pair(base_s: float | None, head_s: float | None, order: str = "AB", replaced: str | None = None) -> Pair:
    return Pair(base_s=base_s, head_s=head_s, base_shown_s=base_s, head_shown_s=head_s, order=order, replaced=replaced)


def abba(seconds: list[float]) -> list[Pair]:
    """Return launches in their order in time as pairs, base first, then head first: all of their windows are alike."""
    pairs = zip(seconds[::2], seconds[1::2], strict=True)
    return [pair(a, b) if place % 2 == 0 else pair(b, a, "BA") for place, (a, b) in enumerate(pairs)]


def shown(pairs: list[Pair], logs: list[float]) -> list[Pair]:
    """Return pairs of which reports show these, as logs over 0.1 s: of base and head, over and over."""
    values = (0.1 * math.exp(value) for value in itertools.cycle(logs))
    return [replace(pair, base_shown_s=next(values), head_shown_s=next(values)) for pair in pairs]


def test_figures_by_hand():
    # Logs 0, 0.01, -0.01, 0.02, ... so that every distance is known.
    logs = [0.0, 0.01, -0.01, 0.02] * 5
    found = mode_noise(shown(abba([0.1 * math.exp(value) for value in logs]), [0.0, 0.03, -0.01, 0.01]))
    assert found.median_s == pytest.approx(0.1 * math.exp(0.005))
    # From the median 0.005: 0.005, 0.005, 0.015, 0.015.
    assert found.run_cv == pytest.approx(1.4826 * 0.010)
    # About the median 0.005: 0.005, 0.025, 0.015, 0.005.
    assert found.shown_cv == pytest.approx(1.4826 * 0.010)
    # Base and head are 0.03 apart, then 0.02.
    assert found.shown_pair_sd == pytest.approx(1.4826 * 0.025)
    # Base first: 0.01 - 0; head first: -0.01 - 0.02.
    assert found.log_ratios == pytest.approx([0.01, -0.03] * 5)
    assert found.pair_sd == pytest.approx(1.4826 * 0.02)


def test_an_interval_for_a_launch_allows_for_how_little_so_few_tell():
    launches = abba([0.1 * math.exp(value) for value in [0.0, 0.01, -0.01, 0.02] * 5])
    found = mode_noise(shown(launches, [0.0, 0.03, -0.03, 0.02]))
    assert found.shown_cv > found.run_cv
    # 20 launches are worth 0.37 * 19 = 7.03 degrees of freedom, for which Student's t is 2.363; 1.960 for as many as
    # one likes.
    assert launch_spread(found) == pytest.approx(math.expm1(2.363 * found.shown_cv), rel=1e-3)


def test_launches_are_in_their_order_in_time():
    seconds = np.linspace(0.1, 0.2, 20).tolist()
    found = mode_noise(abba(seconds))
    assert found.log_seconds == pytest.approx(np.log(seconds))


def test_a_pair_that_does_not_count_is_left_out_whole():
    good = abba(np.linspace(0.1, 0.2, 20).tolist())
    bad = [pair(0.5, 0.1, replaced="throttled"), pair(None, 0.1), pair(0.1, None)]
    assert mode_noise([*bad, *good]) == mode_noise(good)


def test_nine_pairs_are_too_few():
    with pytest.raises(ValueError, match="9 pairs count; noise is told from 10 at least"):
        mode_noise([*abba([0.1] * 18), pair(None, 0.1)])


def test_it_finds_the_noise_that_was_put_in_and_is_not_led_astray_by_outliers():
    dice = np.random.default_rng(3)
    logs = dice.normal(0, 0.02, size=400)
    logs[::20] += 0.5
    found = mode_noise(abba(np.exp(logs).tolist()))
    assert found.run_cv == pytest.approx(0.02, rel=0.1)
    assert found.pair_sd == pytest.approx(0.02 * math.sqrt(2), rel=0.15)
    assert found.autocorrelation == pytest.approx(0, abs=0.1)


def test_neighbours_share_a_drift_and_their_ratio_does_not_show_it():
    dice = np.random.default_rng(4)
    logs = np.cumsum(dice.normal(0, 0.01, size=400)) + dice.normal(0, 0.002, size=400)
    found = mode_noise(abba(np.exp(logs).tolist()))
    assert found.autocorrelation > 0.9
    assert found.pair_sd < found.run_cv / 3


def test_a_drift_of_one_direction_counts_as_noise_of_the_pairs():
    # Launches get slower and slower: base first gains by it, head first loses by it.
    found = mode_noise(abba(np.exp(0.01 * np.arange(20)).tolist()))
    assert sorted(set(np.round(found.log_ratios, 6))) == [-0.01, 0.01]
    assert found.pair_sd == pytest.approx(1.4826 * 0.01)


class TestSpread:
    def test_where_most_values_are_alike_the_others_still_count(self):
        assert spread([0.0, 0.0, 0.0, 0.04], 0.0) == pytest.approx(0.02)

    def test_where_nothing_varies_there_is_none(self):
        assert spread([0.3, 0.3, 0.3], 0.3) == 0


class TestAutocorrelation:
    @pytest.mark.parametrize(("values", "expected"), [([1, -1, 1, -1], -0.75), ([1, 1, -1, -1], 0.25), ([2, 2, 2], 0)])
    def test_by_hand(self, values, expected):
        assert autocorrelation(values) == expected


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
