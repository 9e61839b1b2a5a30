from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor.analysis import Figure
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.comparison.model import compared, fact


def figure(value: float, half: float | None = None, *, scope: str = "run", unit: str = "s") -> Figure:
    low, high = (None, None) if half is None else (value - half, value + half)
    return Figure(value=value, low=low, high=high, n=9, unit=unit, scope=scope)


def test_each_run_is_held_against_the_first() -> None:
    found = compared([figure(10, 1), figure(20, 1), figure(5, 1), figure(10.5, 1)])
    assert [change.ratio.value for change in found.changes] == [2.0, 0.5, 1.05]
    assert [change.difference.value for change in found.changes] == [10, -5, 0.5]
    assert [change.verdict for change in found.changes] == ["more", "less", "alike"]


@pytest.mark.parametrize(("one", "other"), [(figure(10), figure(20, 1)), (figure(10, 1), figure(20))])
def test_without_an_interval_nothing_is_called_a_change(one: Figure, other: Figure) -> None:
    (change,) = compared([one, other]).changes
    assert (change.ratio.value, change.verdict) == (2.0, "unclear")


def test_what_is_unknown_in_one_run_stays_unknown() -> None:
    unknown = stats.unknown("s", "nothing was measured")
    for pair in ((unknown, figure(1, 0.1)), (figure(1, 0.1), unknown)):
        (change,) = compared(pair).changes
        assert change.verdict == "unknown"
        assert change.ratio.reason == change.difference.reason == "nothing was measured"


def test_what_takes_no_time_in_the_base_has_a_difference_and_no_ratio() -> None:
    (change,) = compared([figure(0, 0), figure(5, 1)]).changes
    assert change.ratio.value is None
    assert (change.difference.value, change.verdict) == (5, "more")


def test_a_base_that_reaches_zero_has_a_difference_with_an_interval() -> None:
    (change,) = compared([figure(0.1, 0.2), figure(40, 1)]).changes
    assert change.ratio.low is None
    assert change.verdict == "more"


def test_nothing_is_not_other_than_nothing() -> None:
    (change,) = compared([figure(0, 0), figure(0, 0)]).changes
    assert change.verdict == "alike"


@pytest.mark.parametrize(("scopes", "expected"), [(("launches", "launches"), "launches"), (("launches", "run"), "run")])
def test_a_change_holds_between_launches_only_where_both_figures_do(scopes: tuple[str, str], expected: str) -> None:
    (change,) = compared([figure(10, 1, scope=scopes[0]), figure(20, 1, scope=scopes[1])]).changes
    assert change.ratio.scope == change.difference.scope == expected


values, halves = st.floats(0.1, 100), st.floats(0, 20)
figures = st.builds(lambda of, below, above: replace(figure(of, above), low=of - below), values, halves, halves)


@given(figures, figures)
@example(replace(figure(1.00, 0.12), low=0.90), replace(figure(1.17, 0.15), low=1.05))
def test_the_verdict_is_that_of_the_ratio_where_it_has_an_interval(one: Figure, other: Figure) -> None:
    (change,) = compared([one, other]).changes
    low, high = change.ratio.low, change.ratio.high
    assume(low is not None and high is not None)
    assert low is not None
    assert high is not None
    assume(min(abs(low - 1), abs(high - 1)) > 1e-6)
    expected = "more" if low > 1 else "less" if high < 1 else "alike"
    assert change.verdict == expected


def test_a_fact_differs_or_not_or_cannot_be_told() -> None:
    assert fact("cores", [2, 2, 4, None]).differs == (False, True, None)
    assert fact("driver", [None, None]).differs == (None,)
