from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.stats import Figure


def figure(value: float, half: float, **fields: object) -> Figure:
    return Figure(value=value, low=value - half, high=value + half, n=5, unit="s", **fields)


def share_covered(truth: float, experiment: Callable[[], Figure], times: int = 1000) -> float:
    figures = [experiment() for _ in range(times)]
    return sum(f.low <= truth <= f.high for f in figures) / times


class TestCalibrated:
    def test_half_widths_add_up_in_squares(self) -> None:
        found = stats.calibrated(figure(10, 3), 0.4)
        assert (found.low, found.high, found.scope) == (5, 15, "calibrated")

    def test_each_side_of_an_interval_keeps_its_own_width(self) -> None:
        found = stats.calibrated(Figure(value=2.0, low=1.6, high=5.0, n=3, unit="x"), 0.15)
        assert (found.low, found.high) == pytest.approx((1.5, 2 + (9 + 0.09) ** 0.5))

    def test_an_interval_without_an_upper_end_gets_none(self) -> None:
        found = stats.calibrated(Figure(value=4.0, low=3.7, n=3, unit="x"), 0.1)
        assert (found.low, found.high, found.scope) == (3.5, None, "calibrated")

    def test_a_launch_without_an_interval_of_its_own_gets_one(self) -> None:
        found = stats.calibrated(Figure(value=10, n=1, unit="s"), 0.1)
        assert (found.low, found.high) == (9, 11)

    def test_no_time_lies_below_0(self) -> None:
        assert stats.calibrated(figure(10, 0), 2).low == 0

    def test_what_is_not_calibrated_unknown_or_of_launches_stays(self) -> None:
        for unchanged in (figure(10, 1, scope="launches"), stats.unknown("s", "it crashed")):
            assert stats.calibrated(unchanged, 0.1) == unchanged
        assert stats.calibrated(figure(10, 1), None) == figure(10, 1)

    @pytest.mark.parametrize(
        ("scopes", "expected"),
        [
            (("calibrated", "calibrated"), "calibrated"),
            (("calibrated", "launches"), "calibrated"),
            (("calibrated", "run"), "run"),
            (("run", "launches"), "run"),
        ],
    )
    def test_a_ratio_holds_as_far_as_the_part_that_holds_least(self, scopes: tuple[str, str], expected: str) -> None:
        one, other = (figure(10, 1, scope=scope) for scope in scopes)
        assert stats.ratio(one, other, "x").scope == stats.ratio(other, one, "x").scope == expected


class TestMean:
    def test_student_t_by_hand(self) -> None:
        # mean 2, standard deviation 1, t(0.975, 2) = 4.302653, so the half width is 4.302653 / sqrt(3).
        found = stats.mean_interval([1, 2, 3], "s")
        assert (found.value, found.n, found.unit, found.scope) == (2, 3, "s", "run")
        assert (found.low, found.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)

    def test_one_value_has_no_interval(self) -> None:
        assert stats.mean_interval([3.5], "s") == Figure(value=3.5, n=1, unit="s")

    def test_no_value_is_unknown_with_the_reason_given(self) -> None:
        assert stats.mean_interval([], "s", reason="it crashed") == Figure(value=None, unit="s", reason="it crashed")

    def test_it_covers_the_truth_in_95_of_100(self) -> None:
        rng = np.random.default_rng(1)
        covered = share_covered(10, lambda: stats.mean_interval(list(rng.normal(10, 3, size=5)), "s"))
        assert covered == pytest.approx(0.95, abs=0.02)


def rates(parts: list[tuple[float, float]]) -> list[float]:
    return [amount / weight for amount, weight in parts]


def varied_windows(rng: np.random.Generator, number: int = 10) -> list[tuple[float, float]]:
    """Return (samples, seconds) of windows of 4 steps; a step takes 10 ms and 1 ms for each of its 4 or 60 samples."""
    batches = rng.choice([4, 60], size=(number, 4))
    seconds = (0.010 + 0.001 * batches) * rng.normal(1, 0.02, size=batches.shape)
    return list(zip(batches.sum(axis=1).tolist(), seconds.sum(axis=1).tolist(), strict=True))


class TestRatioOfTotals:
    PARTS = st.lists(
        st.tuples(st.floats(min_value=0, max_value=1e4), st.floats(min_value=0.01, max_value=100)), min_size=2
    )

    def test_the_ratio_estimator_by_hand(self) -> None:
        # 200 / 5 = 40; residuals 20 - 40 * 1 = -20, 180 - 40 * 4 = 20; over the mean weight 2.5: -8 and 8, whose
        # standard deviation is 8 * sqrt(2), so the half width is t(0.975, 1) * 8 = 12.7062 * 8 = 101.6496.
        found = stats.ratio_of_totals([(20, 1), (180, 4)], "samples/s")
        assert (found.value, found.n, found.unit, found.scope) == (40, 2, "samples/s", "run")
        assert (found.low, found.high) == pytest.approx((0, 40 + 101.6496), abs=1e-3)  # a rate is never below zero
        signed = stats.ratio_of_totals([(20, 1), (180, 4)], "s", signed=True)
        assert (signed.low, signed.high) == pytest.approx((40 - 101.6496, 40 + 101.6496), abs=1e-3)

    @given(PARTS)
    def test_it_is_the_sum_over_the_sum_whatever_the_windows(self, parts: list[tuple[float, float]]) -> None:
        found = stats.ratio_of_totals(parts, "x")
        amount = weight = 0.0
        for one, its_weight in parts:
            amount, weight = amount + one, weight + its_weight
        assert found.value == pytest.approx(amount / weight)
        halves = [(a / 2, w / 2) for a, w in parts for _ in range(2)]
        assert stats.ratio_of_totals(halves, "x").value == pytest.approx(found.value)

    @given(PARTS, st.floats(min_value=0.01, max_value=100))
    def test_windows_alike_in_length_give_the_mean_of_their_rates(
        self, parts: list[tuple[float, float]], weight: float
    ) -> None:
        alike = [(amount, weight) for amount, _ in parts]
        found, plain = stats.ratio_of_totals(alike, "x"), stats.mean_interval(rates(alike), "x")
        for one, other in ((found.value, plain.value), (found.low, max(0.0, plain.low)), (found.high, plain.high)):
            assert one == pytest.approx(other, rel=1e-6, abs=1e-6)

    @given(st.lists(st.floats(min_value=0.01, max_value=100), min_size=2))
    def test_a_steady_rate_has_no_width_however_the_windows_differ(self, weights: list[float]) -> None:
        found = stats.ratio_of_totals([(7 * weight, weight) for weight in weights], "x")
        assert (found.low, found.high) == pytest.approx((7, 7))

    @pytest.mark.parametrize("number", [10, 40])
    def test_the_interval_is_about_as_wide_as_the_jackknife_says(self, number: int) -> None:
        parts = varied_windows(np.random.default_rng(number), number)
        found = stats.ratio_of_totals(parts, "x")
        without = [stats.ratio_of_totals(parts[:i] + parts[i + 1 :], "x").value for i in range(number)]
        error = math.sqrt((number - 1) / number * sum((v - np.mean(without)) ** 2 for v in without))
        half = found.high - found.value
        assert half == pytest.approx(scipy.stats.t.ppf(0.975, number - 1) * error, rel=0.1)

    def test_it_covers_the_truth_where_the_mean_of_rates_strays(self) -> None:
        # A step of 4 samples takes 14 ms, one of 60 takes 70 ms: 64 samples in 84 ms.
        truth, rng = 64 / 0.084, np.random.default_rng(3)
        assert share_covered(truth, lambda: stats.ratio_of_totals(varied_windows(rng), "x")) >= 0.93
        many = [varied_windows(rng, 40) for _ in range(500)]
        by_totals, by_rates = iter(many), iter(many)
        assert share_covered(truth, lambda: stats.ratio_of_totals(next(by_totals), "x"), 500) >= 0.93
        assert share_covered(truth, lambda: stats.mean_interval(rates(next(by_rates)), "x"), 500) < 0.9

    def test_too_few_windows(self) -> None:
        assert stats.ratio_of_totals([(6, 2)], "x") == Figure(value=3, n=1, unit="x")
        assert stats.ratio_of_totals([], "x", reason="it crashed") == stats.unknown("x", "it crashed")
        assert stats.ratio_of_totals([(6, 0), (1, 0)], "x") == stats.unknown("x", "division by zero")


class TestMedian:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([5.0], (5.0, None, None)),
            ([9, 1, 5, 2, 7], (5, None, None)),
            ([6, 5, 4, 3, 2, 1], (3.5, 1, 6)),
            (list(range(1, 11)), (5.5, 2, 9)),
            (list(range(100)), (49.5, 39, 60)),
        ],
    )
    def test_order_statistics_by_hand(self, values: list[float], expected: tuple[float, ...]) -> None:
        found = stats.median_interval(values, "s")
        assert (found.value, found.low, found.high) == expected
        assert found.n == len(values)

    @pytest.mark.parametrize("n", range(6, 80))
    def test_the_narrowest_pair_that_covers_95_percent(self, n: int) -> None:
        found = stats.median_interval(range(n), "s")
        below, above = int(found.low), n - 1 - int(found.high)
        missed = sum(math.comb(n, k) for k in range(below + 1)) / 2**n
        missed_by_the_next = sum(math.comb(n, k) for k in range(below + 2)) / 2**n
        assert below == above
        assert missed <= 0.025 < missed_by_the_next

    def test_nothing_measured(self) -> None:
        assert stats.median_interval([], "s").reason == "nothing was measured"


class TestRatio:
    @pytest.mark.parametrize(("half", "is_known"), [(0.5, True), (1.5, False)])
    def test_a_factor_that_may_be_negative_is_none(self, half: float, is_known: bool) -> None:
        found = stats.ratio(
            Figure(value=1.0, low=1.0 - half, high=1.0 + half, n=2, unit="s"),
            Figure(value=2.0, n=2, unit="s", low=1.9, high=2.1),
            "x",
        )
        assert (found.value is not None) == is_known
        assert is_known or found.reason == stats.TOO_UNLIKE
        assert found.low is None or found.low > 0

    def test_fieller_by_hand(self) -> None:
        # a = 10 +- 1, b = 5 +- 1: g = 0.04, spread = sqrt(0.96 + 4) / 5 = 0.445421, limits (2 -+ 0.445421) / 0.96.
        found = stats.ratio(figure(10, 1), figure(5, 1), "x")
        assert found.value == 2
        assert (found.low, found.high) == pytest.approx((1.619353, 2.547313), abs=1e-6)

    @given(*(st.floats(min_value=0.01, max_value=100) for _ in range(4)), st.sampled_from([1, -1]))
    def test_the_limits_are_where_fieller_rejects(
        self, a: float, half_a: float, b: float, half_b: float, sign: int
    ) -> None:
        assume(half_b < 0.99 * b)
        found = stats.ratio(figure(a, half_a), figure(sign * b, half_b), "ratio")
        assert found.low < found.value < found.high
        for limit in (found.low, found.high):
            # a - limit * b lies exactly its own half width from zero.
            assert abs(a - limit * sign * b) == pytest.approx(math.hypot(half_a, limit * half_b), rel=1e-6)

    def test_each_bound_takes_the_half_widths_of_its_own_side(self) -> None:
        # What watching may take reaches up alone: 5,721 (5,212 to 7,071) over 4,397 (4,263 to 5,141).
        fast = Figure(value=5721, low=5212, high=7071, n=8, unit="samples/s")
        slow = Figure(value=4397, low=4263, high=5141, n=10, unit="samples/s")
        found = stats.ratio(fast, slow, "x")
        assert found.low == stats.ratio(figure(5721, 509), figure(4397, 744), "x").low > 1
        assert found.high == stats.ratio(figure(5721, 1350), figure(4397, 134), "x").high

    def test_a_loss_is_as_uncertain_as_the_same_gain(self) -> None:
        step = Figure(value=10, low=9, high=14, n=5, unit="s")
        gain, loss = (
            stats.ratio(Figure(value=sign * 2, low=low, high=high, n=5, unit="s"), step, "ratio")
            for sign, low, high in ((1, 1.5, 3), (-1, -3, -1.5))
        )
        assert (loss.low, loss.value, loss.high) == pytest.approx((-gain.high, -gain.value, -gain.low))

    @given(a=st.floats(1e-3, 1e3), above=st.floats(0, 1e3), b=st.floats(1e-3, 1e3), half=st.floats(0, 0.9))
    def test_what_was_cut_off_at_zero_stays_so(self, a: float, above: float, b: float, half: float) -> None:
        cut = Figure(value=a, low=0, high=a + above, n=2, unit="s")
        found, whole = (stats.ratio(part, figure(b, half * b), "ratio") for part in (cut, figure(a, above)))
        assert found.low == 0
        assert found.high == pytest.approx(whole.high)

    def test_a_certain_denominator_only_scales(self) -> None:
        found = stats.ratio(figure(10, 1), figure(5, 0), "x")
        assert (found.low, found.high) == pytest.approx((1.8, 2.2))

    def test_factor(self) -> None:
        whole, half = (stats.ratio(figure(10, 1), figure(5, 1), "x", factor=factor) for factor in (1, 0.5))
        assert (half.value, half.low, half.high) == (whole.value / 2, whole.low / 2, whole.high / 2)

    @pytest.mark.parametrize("n", [3, 10])
    def test_it_covers_the_truth_in_at_least_95_of_100(self, n: int) -> None:
        rng = np.random.default_rng(n)

        def experiment() -> Figure:
            parts = [stats.mean_interval(list(rng.normal(mean, 1, size=n)), "s") for mean in (40, 20)]
            return stats.ratio(*parts, "x")

        assert 0.94 <= share_covered(2, experiment) <= 0.99

    def test_no_interval_where_a_part_has_none(self) -> None:
        alone = Figure(value=10, n=1, unit="s")
        for parts in ((alone, figure(5, 1)), (figure(5, 1), alone)):
            found = stats.ratio(*parts, "x")
            assert (found.low, found.high, found.n) == (None, None, 1)

    def test_no_interval_where_the_denominator_may_be_zero(self) -> None:
        found = stats.ratio(figure(10, 1), figure(5, 5), "x")
        assert (found.value, found.low, found.high) == (2, None, None)

    def test_the_unknown_stays_unknown_with_its_reason(self) -> None:
        gone = stats.unknown("s", "rank 1 died")
        for parts in ((gone, figure(5, 1)), (figure(5, 1), gone)):
            assert stats.ratio(*parts, "x") == stats.unknown("x", "rank 1 died")

    def test_nothing_is_divided_by_zero(self) -> None:
        assert stats.ratio(figure(1, 0), figure(0, 0), "x") == stats.unknown("x", "division by zero")

    @pytest.mark.parametrize(
        ("scopes", "scope"), [(("run", "run"), "run"), (("launches", "run"), "run"), (("launches",) * 2, "launches")]
    )
    def test_it_speaks_of_launches_only_when_both_parts_do(self, scopes: tuple[str, str], scope: str) -> None:
        parts = (figure(10, 1, scope=name) for name in scopes)
        assert stats.ratio(*parts, "x").scope == scope


def test_a_figure_without_value_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Figure(value=None, unit="s")
    with pytest.raises(ValueError, match="known: run, launches"):
        Figure(value=1.0, unit="s", scope="machine")


class TestCombination:
    A = Figure(value=10.0, low=7.0, high=13.0, n=5, unit="s")
    B = Figure(value=4.0, low=0.0, high=8.0, n=3, unit="s")

    def test_half_widths_add_up_in_squares(self) -> None:
        found = stats.combination([(1, self.A), (-1, self.B)], "s")
        assert (found.value, found.low, found.high, found.n) == (6.0, 1.0, 11.0, 3)

    def test_each_bound_takes_the_half_widths_of_its_own_side(self) -> None:
        upward = Figure(value=10.0, low=7.0, high=18.0, n=5, unit="s")
        found = stats.combination([(1, upward), (-1, self.B)], "s")
        assert (found.low, found.high) == (1.0, 6.0 + math.hypot(8, 4))
        found = stats.combination([(1, self.A), (-0.5, upward)], "s")
        assert (found.low, found.high) == (5.0 - math.hypot(3, 4), 5.0 + math.hypot(3, 1.5))

    def test_factors_scale_value_and_interval(self) -> None:
        found = stats.combination([(0.5, self.A)], "s")
        assert (found.value, found.low, found.high) == (5.0, 3.5, 6.5)

    def test_a_part_without_an_interval_leaves_none(self) -> None:
        found = stats.combination([(1, self.A), (1, Figure(value=1.0, unit="s"))], "s")
        assert (found.value, found.low, found.high) == (11.0, None, None)

    def test_an_unknown_part_makes_it_unknown(self) -> None:
        found = stats.combination([(1, self.A), (1, stats.unknown("s", "skipped"))], "s")
        assert (found.value, found.reason) == (None, "skipped")


def test_half_an_interval_is_its_upper_half() -> None:
    assert stats.half_width(Figure(value=1.0, low=0.0, high=3.0, n=4, unit="s")) == 2
    assert stats.half_width(Figure(value=1.0, n=1, unit="s")) == 0


TRACE = Path(__file__).parents[3] / "data" / "traces" / "gloo_ddp_rank0.json.gz"
ANALYZED = """
import sys
from dpdoctor.cli import main
main(sys.argv[1:], standalone_mode=False)
print(*(name for name in sys.modules if name.partition(".")[0] == "scipy"), file=sys.stderr, end="")
"""


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_student_t(confidence: float) -> None:
    degrees = [*range(1, 300), 999, 1000, 20_001, 100_000]
    ours = [stats.student_quantile(confidence, number) for number in degrees]
    assert ours == pytest.approx(scipy.stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-9)


@pytest.mark.parametrize(("confidence", "degrees"), [(0.95, 0), (0.0, 3), (1.0, 3)])
def test_there_is_no_such_quantile(confidence: float, degrees: int) -> None:
    with pytest.raises(ValueError, match=f"for {degrees} degrees of freedom at {confidence}"):
        stats.student_quantile(confidence, degrees)


def test_so_many_successes_by_chance() -> None:
    for one_in in (1, 2, 3, 8, 1000):
        for trials in (1, 2, 7, 20, 1000):
            for successes in {0, 1, 2, trials // 2, trials - 1, trials, trials + 1}:
                expected = scipy.stats.binom.sf(successes - 1, trials, 1 / one_in)
                found = stats.at_least(successes, trials, one_in)
                assert found == pytest.approx(expected, rel=1e-9, abs=1e-300), (successes, trials, one_in)


def test_the_rank_that_bounds_the_median() -> None:
    numbers = [*range(1, 1500), 9_999, 10_000, 300_001]
    assert [stats.median_rank(n) for n in numbers] == scipy.stats.binom.ppf(0.025, numbers, 0.5).tolist()


@pytest.mark.parametrize("options", [("--format", "json"), ("--out", "run")])
def test_analyze_does_not_load_scipy(tmp_path: Path, options: tuple[str, str]) -> None:
    command = [sys.executable, "-c", ANALYZED, "analyze", str(TRACE), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
