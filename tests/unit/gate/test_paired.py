from __future__ import annotations

import pytest

from dpdoctor.gate.decide import Verdict, decide
from dpdoctor.gate.design import sequence
from dpdoctor.gate.model import Calibration, Pair
from dpdoctor.gate.paired import held, other_pace
from tests.builders.noises import noise
from tests.builders.specs import mode_spec, run

CALIBRATED = Calibration(
    created="2026-01-02T03:04:05Z",
    dpdoctor="0.1.0",
    workload="train.py on 2 CPUs",
    fingerprint=run({mode_spec("ddp", 2): []}).header.fingerprint,
    modes={"ddp": noise(0.02)},
)


@pytest.mark.parametrize(
    ("base_s", "told"),
    [
        ((0.1, 0.1, 0.11), None),
        ((0.124,), None),
        ((0.05, 0.06, 0.1), "60.0 ms"),
        ((0.2,), "200 ms"),
        ((), None),
        ((None, None), None),
    ],
)
def test_a_base_of_another_pace_than_the_calibrated_is_told(base_s: tuple[float | None, ...], told: str | None) -> None:
    pairs = [Pair(base_s=seconds, head_s=0.1, order="AB") for seconds in base_s]
    expected = f"In ddp a step of base takes {told}, and took 100 ms where the noise was measured: calibrate anew"
    assert other_pace({"ddp": pairs}, CALIBRATED) == ((expected,) if told else ())


def test_pairs_that_do_not_count_say_nothing_of_the_pace() -> None:
    held_up = Pair(base_s=0.9, head_s=0.1, order="AB", replaced="throttled")
    assert other_pace({"ddp": [held_up]}, CALIBRATED) == ()


def passed(base_s: float, *, now_and_then: float = 1.0) -> Verdict:
    """Return what holds of a pass of seven pairs of equal launches; by all windows head takes so much longer."""
    calm = noise(0.02)
    pair = Pair(base_s=base_s, head_s=base_s, base_shown_s=base_s, head_shown_s=now_and_then * base_s, order="AB")
    verdict = decide([0.0] * 7, plan=sequence(), noise=calm, asked=0.05)
    assert verdict.outcome == "pass"
    return held(verdict, [pair] * 7, sequence(), calm)


def test_what_passes_by_noise_of_its_own_and_by_all_windows_passes() -> None:
    assert passed(0.1).outcome == "pass"
    assert passed(0.1, now_and_then=1.2).outcome == "inconclusive"


def test_nothing_passes_by_the_noise_of_another_pace() -> None:
    found = passed(0.2)
    assert found.outcome == "inconclusive"
    assert "takes 200 ms, and took 100 ms where the noise was measured" in found.reason
    assert "Calibrate anew" in found.reason
