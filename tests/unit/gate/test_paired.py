from __future__ import annotations

import pytest

from dpdoctor.gate.model import Calibration, Pair
from dpdoctor.gate.paired import other_pace
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
