from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.gate import against_baseline, calibration
from dpdoctor.gate.against_baseline import against
from dpdoctor.gate.baselines import AuditLine, Baseline
from dpdoctor.gate.model import Calibration, GateResult, ModeNoise, ModeResult
from dpdoctor.gate.recorded import workload
from dpdoctor.records import Collective, Run
from tests.builders import launched_runs
from tests.builders.launched_runs import COUNTERS, launch, of
from tests.builders.noises import CALIBRATED

BASE = of(100, 101, 99, 100, 100.5)
LINE = AuditLine(at="2026-01-02T03:04:05Z", by="ada", reason="first", created=BASE.header.created, seconds={})
BASELINE = Baseline(audit=(LINE,), recorded=BASE)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a directory with this machine's calibration."""
    return _kept(tmp_path, CALIBRATED)


def _kept(tmp_path: Path, noise: ModeNoise) -> Path:
    header = BASE.header
    spec = replace(header.spec, cwd="/home/me", target="/home/me/train.py")
    calibration.keep(
        tmp_path / "kept",
        Calibration(
            created="2026-01-02T03:04:05Z",
            dpdoctor="0.1.0",
            workload=str(workload(spec)),
            fingerprint=header.fingerprint,
            modes={"ddp": noise},
        ),
    )
    return tmp_path / "kept"


def run(slowdown: float = 1.0, **fields: object) -> Run:
    times = enumerate((100, 101, 99, 100, 100.5), 1)
    return launched_runs.run(*(launch(slowdown * ms, number, **fields) for number, ms in times))  # type: ignore[arg-type]


def gate(found: Run, kept: Path) -> GateResult:
    return against_baseline.gate(found, BASELINE, "main", asked=0.05, calibrations=kept)


def test_a_run_that_is_alike_passes(kept: Path) -> None:
    found = gate(run(), kept)
    assert (found.kind, found.outcome) == ("baseline", "pass")
    assert found.modes["ddp"].effect.value == pytest.approx(1)
    assert found.calibration is not None
    assert found.base.label == f"main, of {BASE.header.created}"
    assert "on another day" in found.remarks[0]


def test_a_slower_run_regressed_and_what_moved_is_told(kept: Path) -> None:
    found = gate(run(1.2), kept)
    assert found.outcome == "regressed"
    assert [(item.kind, item.name) for item in found.modes["ddp"].moved] == [("phase", "forward")]


def test_slow_steps_that_come_only_now_and_then_keep_it_from_passing(kept: Path) -> None:
    found = gate(run(last_window=2.0), kept)
    assert found.outcome == "inconclusive"
    assert found.modes["ddp"].effect.value == pytest.approx(1)
    assert "0.0% longer" in found.modes["ddp"].reason
    assert "by all of them the step takes 25% longer" in found.modes["ddp"].reason


def test_the_noise_of_another_pace_is_not_used(tmp_path: Path) -> None:
    quick = replace(CALIBRATED, median_s=0.01)
    found = gate(run(), _kept(tmp_path, quick))
    assert (found.outcome, found.modes) == ("refused", {})
    (refusal,) = (one for one in found.refusals if one.hard)
    assert refusal.field == "ddp: calibration"
    assert "base takes 100 ms, and took 10.0 ms where the noise was measured" in refusal.remedy
    assert "`dpdoctor calibrate`" in refusal.remedy


def test_without_a_calibration_nothing_is_judged(tmp_path: Path) -> None:
    found = gate(run(1.2), tmp_path)
    assert (found.outcome, found.modes) == ("refused", {})
    assert [refusal.field for refusal in found.refusals] == ["calibration"]


def test_another_machine_is_refused_with_all_that_differs(kept: Path) -> None:
    other = run(1.2)
    fingerprint = replace(other.header.fingerprint, cores=8, packages={"torch": "2.16.0"})
    found = gate(replace(other, header=replace(other.header, fingerprint=fingerprint)), kept)
    assert (found.outcome, found.modes) == ("refused", {})
    assert {"cores", "torch", "calibration"} <= {refusal.field for refusal in found.refusals}


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"status": "failed"}, "ddp: mode"), ({"batch": 64}, "ddp: global batch")],
)
def test_what_is_no_evidence_is_refused(kept: Path, fields: dict[str, object], name: str) -> None:
    found = gate(run(**fields), kept)
    assert (found.outcome, found.modes) == ("refused", {})
    assert name in {refusal.field for refusal in found.refusals if refusal.hard}


def test_a_run_without_the_mode_is_refused(kept: Path) -> None:
    found = gate(replace(run(), modes={"ddp": ()}), kept)
    assert found.outcome == "refused"


def test_one_launch_alone_cannot_be_judged(kept: Path) -> None:
    found = gate(launched_runs.run(launch(100)), kept)
    assert found.outcome == "inconclusive"
    assert "--repeat 3" in found.modes["ddp"].reason


def test_a_soft_difference_is_told_and_judged(kept: Path) -> None:
    other = run()
    fingerprint = replace(other.header.fingerprint, host="another")
    found = gate(replace(other, header=replace(other.header, fingerprint=fingerprint)), kept)
    assert found.outcome == "pass"
    assert [(refusal.field, refusal.hard) for refusal in found.refusals] == [("host", False)]


def test_counters_need_neither_calibration_nor_launches() -> None:
    more = replace(COUNTERS, collectives={"all_reduce": Collective(count=3, num_bytes=1000)})
    one = launched_runs.run(launch(100))
    other = launched_runs.run(launch(100, counters=more))
    assert against_baseline.gate_exactly(one, BASELINE, "main").outcome == "pass"
    found = against_baseline.gate_exactly(other, BASELINE, "main")
    assert (found.kind, found.outcome) == ("exact", "regressed")
    assert [item.name for item in found.exact["ddp"].differences] == ["all_reduce.count"]


def test_what_head_does_in_one_of_two_launches_varies_by_nature() -> None:
    more = replace(COUNTERS, collectives={"all_reduce": Collective(count=3, num_bytes=1000)})
    both = launched_runs.run(launch(100, counters=more), launch(100, 2))
    found = against_baseline.gate_exactly(both, BASELINE, "main")
    assert found.outcome == "pass"
    assert [item.name for item in found.exact["ddp"].left_out] == ["all_reduce.count"]


def test_a_baseline_of_one_launch_does_not_tell_what_varies() -> None:
    once = replace(BASELINE, recorded=of(100))
    (told,) = against_baseline.gate_exactly(run(), once, "main").remarks
    assert "one launch of ddp" in told
    assert "--repeat 2" in told
    assert against_baseline.gate_exactly(run(), BASELINE, "main").remarks == ()


def test_counters_of_another_torch_are_not_compared() -> None:
    other = run()
    fingerprint = replace(other.header.fingerprint, packages={"torch": "2.16.0"})
    header = replace(other.header, fingerprint=fingerprint)
    found = against_baseline.gate_exactly(replace(other, header=header), BASELINE, "main")
    assert (found.outcome, found.exact) == ("refused", {})


def test_counters_of_a_faster_machine_are() -> None:
    other = run()
    fingerprint = replace(other.header.fingerprint, cores=64, cpu="Another")
    header = replace(other.header, fingerprint=fingerprint)
    assert against_baseline.gate_exactly(replace(other, header=header), BASELINE, "main").outcome == "pass"


SECONDS = (0.100, 0.101, 0.099, 0.100, 0.1005)


def judged(head: float, *, noise: ModeNoise = CALIBRATED, asked: float = 0.05, launches: int = 5) -> ModeResult:
    return against(SECONDS, [head * value for value in SECONDS[:launches]], noise, asked)


def test_alike_passes_and_says_what_would_have_been_found() -> None:
    found = judged(1.001)
    assert found.outcome == "pass"
    assert found.effect.value == pytest.approx(1.001)
    assert found.effect.low is not None
    assert found.effect.high is not None
    assert found.effect.low < 1 < found.effect.high < 1.05
    assert found.mde is not None
    figures = re.findall(r"[\d.]+%", found.reason)
    assert "0.1% longer" in found.reason
    assert {units.share(found.mde), "80%"} <= set(figures)
    assert "was asked for" not in found.reason


def test_slower_than_allowed_regressed() -> None:
    found = judged(1.10)
    assert found.outcome == "regressed"
    assert found.effect.low is not None
    assert found.effect.low > 1
    assert found.effect.value == pytest.approx(1.10)
    assert "10% longer" in found.reason
    assert re.findall(r"[\d.]+%", found.reason)[-1] == "5.0%"


def test_faster_passes() -> None:
    found = judged(0.80)
    assert found.outcome == "pass"
    assert "20% shorter" in found.reason


@pytest.mark.parametrize("head", [1.03, 1.045])
def test_close_to_the_tolerance_cannot_be_told(head: float) -> None:
    found = judged(head)
    assert found.outcome == "inconclusive"
    assert "5.0%" in found.reason
    assert re.findall(r"--[a-z-]+", found.reason) == ["--repeat", "--base", "--head"]


@pytest.mark.parametrize("launches", [1, 2])
def test_one_or_two_launches_say_nothing(launches: int) -> None:
    found = judged(2.0, launches=launches)
    assert found.outcome == "inconclusive"
    assert f"the run {launches} launch" in found.reason
    assert "--repeat 3" in found.reason
    assert found.effect.value is None


def test_a_noisy_machine_passes_nothing_it_could_not_have_seen() -> None:
    noisy = replace(CALIBRATED, run_cv=0.05)
    found = judged(1.0, noise=noisy)
    assert found.outcome == "inconclusive"
    assert found.tolerance > 0.10
    assert "5.0%" in found.reason
    assert re.findall(r"--[a-z-]+", found.reason) == ["--repeat", "--tolerance", "--base", "--head"]


def test_a_tolerance_that_noise_widened_is_said() -> None:
    found = judged(1.0, noise=replace(CALIBRATED, run_cv=0.0125))
    assert found.tolerance > 0.05
    assert "(5.0% was asked for, but the noise of this machine hides more)" in found.reason


def test_a_noisy_machine_still_finds_what_is_beyond_its_noise() -> None:
    assert judged(2.0, noise=replace(CALIBRATED, run_cv=0.05)).outcome == "regressed"


def test_launches_that_hang_together_widen_the_interval() -> None:
    alone, together = (judged(1.0, noise=replace(CALIBRATED, autocorrelation=rho)) for rho in (-0.5, 0.5))
    assert alone.effect.high is not None
    assert together.effect.high is not None
    assert np.log(together.effect.high) == pytest.approx(np.sqrt(3) * np.log(alone.effect.high))


def test_launches_that_spread_more_than_the_calibrated_ones_count_as_they_are() -> None:
    head = (0.100, 0.130, 0.105, 0.085, 0.115)
    found = against(SECONDS, head, CALIBRATED, 0.05)
    assert found.effect.high is not None
    assert found.effect.high > 1.2
    assert found.outcome == "inconclusive"


def test_several_modes_share_the_error() -> None:
    alone, one_of_two = (against(SECONDS, SECONDS, CALIBRATED, 0.05, num_modes=number) for number in (1, 2))
    assert one_of_two.alpha == alone.alpha / 2
    assert alone.effect.high is not None
    assert one_of_two.effect.high is not None
    assert one_of_two.effect.high > alone.effect.high


@pytest.mark.parametrize("asked", [0.0, -0.1, float("nan"), float("inf")])
def test_a_tolerance_that_is_none(asked: float) -> None:
    with pytest.raises(ValueError, match="the tolerance is"):
        against(SECONDS, SECONDS, CALIBRATED, asked)


def rates(slowdown: float, *, held_up: float = 0.05) -> tuple[float, float]:
    """Return the shares of regressed and of passed gates of five launches each, on a machine that holds some up."""
    dice = np.random.default_rng(1)
    outcomes = []
    for _ in range(400):
        noise = dice.normal(0, 0.01, size=(2, 5))
        noise += np.log1p(dice.exponential(0.10, size=(2, 5))) * (dice.random((2, 5)) < held_up)
        base, head = np.exp(noise) * np.array([[0.1], [0.1 * (1 + slowdown)]])
        outcomes.append(against(base, head, CALIBRATED, 0.05).outcome)
    return outcomes.count("regressed") / 400, outcomes.count("pass") / 400


def test_error_rates() -> None:
    false_alarms, _ = rates(0.0)
    caught, missed = rates(0.10)
    assert false_alarms <= 0.01
    assert missed <= 0.01
    assert caught > 0.7
