"""Every sentence, with the effect, the interval and the way out in it."""

from __future__ import annotations

import functools

import pytest

from dpdoctor.analysis import Figure
from dpdoctor.gate.statistics import words
from dpdoctor.gate.statistics.design import QUICK, sequence
from dpdoctor.gate.statistics.power import Capability


def effect(value: float, low: float | None = None, high: float | None = None, n: int = 7) -> Figure:
    return Figure(value=value, low=low, high=high, n=n, unit="x", scope="launches")


def limits(tolerance: float = 0.05, mde: float = 0.061) -> Capability:
    return Capability(tolerance=tolerance, mde=mde, pairs_needed=None)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (effect(1.003, 0.995, 1.011), "the step takes 0.3 % longer (-0.5 to 1.1 %, 7 pairs)"),
        (effect(0.979, 0.965, 0.993), "the step takes 2.1 % shorter (-3.5 to -0.7 %, 7 pairs)"),
        (effect(1.003, None, 1.011), "the step takes 0.3 % longer (at most 1.1 %, 7 pairs)"),
        (effect(1.003, n=1), "the step takes 0.3 % longer (1 pair)"),
    ],
)
def test_an_effect_is_said_with_the_bounds_that_it_has(of, said):
    assert words.goes_on(of, sequence()).startswith(f"{said}; the next look is after ")


def test_a_pass_says_what_would_have_been_found():
    assert words.passed(effect(1.0, 0.99, 1.01), limits(), 0.05).endswith(
        ", which is surely less than the 5.0 % that is allowed; 6.1 % or more would have been found with a "
        "probability of 80.0 %"
    )


def test_a_regression_says_what_is_allowed():
    assert words.regressed(effect(1.098, 1.081, 1.119), limits(), 0.05) == (
        "the step takes 9.8 % longer (8.1 to 11.9 %, 7 pairs); 5.0 % is allowed"
    )


def test_what_the_last_look_leaves_open_says_what_to_do():
    said = words.undecided(effect(1.041, 1.009, 1.073, n=20), sequence(), limits(), 0.05)
    assert said.startswith("the step takes 4.1 % longer (0.9 to 7.3 %, 20 pairs), which is too close to the 5.0 % ")
    assert all(way in said for way in ("(--max-pairs)", "quieten the machine", "(--tolerance)"))


def test_a_quick_gate_that_cannot_tell_is_not_told_to_use_what_goes_not_with_it():
    said = words.undecided(effect(1.007, 0.962, 1.054, n=5), QUICK, limits(), 0.05)
    said += words.unsupported(QUICK, limits(), 0.01, 12)
    assert said.count("leave out --quick") == 2
    assert "--max-pairs" not in said


def test_a_tolerance_that_noise_widened_is_said_in_every_verdict():
    wide, said = limits(tolerance=0.063), "(5.0 % was asked for, but the noise of this machine hides more)"
    undecided = functools.partial(words.undecided, plan=sequence())
    for sentence in (words.passed, words.regressed, undecided):
        assert said in sentence(effect(1.0, 0.99, 1.01), limits=wide, asked=0.05)
        assert said not in sentence(effect(1.0, 0.99, 1.01), limits=limits(), asked=0.05)


def test_a_machine_that_is_too_noisy_is_told_its_ways_out():
    assert words.unsupported(sequence(), limits(tolerance=0.12, mde=0.1452), 0.05, 38) == (
        "launches on this machine differ too much to gate at 5.0 %: 20 pairs find a slowdown of 14.5 % or more with a "
        "probability of 80.0 %, and must find 10.0 %. About 38 pairs would (--max-pairs), or allow 7.3 % "
        "(--tolerance), or use a quieter machine"
    )


def test_a_quick_gate_says_why_it_is_none():
    assert "differ by 1.0 % or less; on this one they differ by 1.4 %" in words.not_for_quick(0.014, 0.01)
    assert words.too_many_modes(QUICK, 3).startswith("5 pairs cannot show a regression in one of 3 modes")
