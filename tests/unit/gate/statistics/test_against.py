from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from dpdoctor import units
from dpdoctor.gate.model import ModeNoise, ModeResult
from dpdoctor.gate.statistics.against import against
from tests.builders.noises import CALIBRATED

BASE = (0.100, 0.101, 0.099, 0.100, 0.1005)


def judged(head: float, *, noise: ModeNoise = CALIBRATED, asked: float = 0.05, launches: int = 5) -> ModeResult:
    return against(BASE, [head * value for value in BASE[:launches]], noise, asked)


def test_alike_passes_and_says_what_would_have_been_found() -> None:
    found = judged(1.001)
    assert found.outcome == "pass"
    assert found.effect.value == pytest.approx(1.001)
    assert found.effect.low is not None
    assert found.effect.high is not None
    assert found.effect.low < 1 < found.effect.high < 1.05
    assert found.mde is not None
    figures = re.findall(r"[\d.]+ %", found.reason)
    assert "0.1 % longer" in found.reason
    assert {units.share(found.mde), "80.0 %"} <= set(figures)


def test_slower_than_allowed_regressed() -> None:
    found = judged(1.10)
    assert found.outcome == "regressed"
    assert found.effect.low is not None
    assert found.effect.low > 1
    assert found.effect.value == pytest.approx(1.10)
    assert "10.0 % longer" in found.reason
    assert re.findall(r"[\d.]+ %", found.reason)[-1] == "5.0 %"


def test_faster_passes() -> None:
    found = judged(0.80)
    assert found.outcome == "pass"
    assert "20.0 % shorter" in found.reason


@pytest.mark.parametrize("head", [1.03, 1.045])
def test_close_to_the_tolerance_cannot_be_told(head: float) -> None:
    found = judged(head)
    assert found.outcome == "inconclusive"
    assert "5.0 %" in found.reason
    assert re.findall(r"--[a-z-]+", found.reason) == ["--repeat", "--base", "--head"]


@pytest.mark.parametrize("launches", [1, 2])
def test_one_or_two_launches_say_nothing(launches: int) -> None:
    found = judged(2.0, launches=launches)
    assert found.outcome == "inconclusive"
    assert f"the run {launches} launch" in found.reason
    assert "--repeat 3" in found.reason
    assert found.effect.value is None


def test_a_noisy_machine_passes_nothing_it_could_not_have_seen() -> None:
    noisy = dataclasses.replace(CALIBRATED, run_cv=0.05)
    found = judged(1.0, noise=noisy)
    assert found.outcome == "inconclusive"
    assert found.tolerance > 0.10
    assert "5.0 %" in found.reason
    assert re.findall(r"--[a-z-]+", found.reason) == ["--repeat", "--tolerance", "--base", "--head"]


def test_a_noisy_machine_still_finds_what_is_beyond_its_noise() -> None:
    assert judged(2.0, noise=dataclasses.replace(CALIBRATED, run_cv=0.05)).outcome == "regressed"


def test_launches_that_hang_together_widen_the_interval() -> None:
    alone, together = (judged(1.0, noise=dataclasses.replace(CALIBRATED, autocorrelation=rho)) for rho in (-0.5, 0.5))
    assert alone.effect.high is not None
    assert together.effect.high is not None
    assert np.log(together.effect.high) == pytest.approx(np.sqrt(3) * np.log(alone.effect.high))


def test_launches_that_spread_more_than_the_calibrated_ones_count_as_they_are() -> None:
    head = (0.100, 0.130, 0.105, 0.085, 0.115)
    found = against(BASE, head, CALIBRATED, 0.05)
    assert found.effect.high is not None
    assert found.effect.high > 1.2
    assert found.outcome == "inconclusive"


def test_several_modes_share_the_error() -> None:
    alone, one_of_two = (against(BASE, BASE, CALIBRATED, 0.05, num_modes=number) for number in (1, 2))
    assert one_of_two.alpha == alone.alpha / 2
    assert alone.effect.high is not None
    assert one_of_two.effect.high is not None
    assert one_of_two.effect.high > alone.effect.high


@pytest.mark.parametrize("asked", [0.0, -0.1, float("nan"), float("inf")])
def test_a_tolerance_that_is_none(asked: float) -> None:
    with pytest.raises(ValueError, match="the tolerance is"):
        against(BASE, BASE, CALIBRATED, asked)


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
