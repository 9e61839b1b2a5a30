from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor.gate.model import Pair
from dpdoctor.gate.noise import autocorrelation, launch_spread, mode_noise, spread


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
