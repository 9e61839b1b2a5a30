"""Each rank against the median of the others."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.analysis import Figure
from dpdoctor.analysis.rank_imbalance import SlowRank, beyond_others


@given(st.lists(st.one_of(st.sampled_from([1.0, 2.0, 3.0]), st.floats(0, 10)), min_size=2, max_size=9))
def test_each_value_is_set_against_the_median_of_the_others(values: list[float]) -> None:
    dumb = [value - median([*values[:place], *values[place + 1 :]]) for place, value in enumerate(values)]
    assert beyond_others(values) == pytest.approx(dumb)


@pytest.mark.parametrize(("ms", "proved"), [(1.0, 0.1), (-1.0, 0.0)])
def test_a_phase_that_is_certain_counts_where_the_whole_step_is_longer_too(ms: float, proved: float) -> None:
    found = SlowRank(
        rank=1,
        excess=Figure(value=ms / 100, low=-0.2, high=0.2, n=4, unit="ratio"),
        excess_s=ms / 1000,
        parts={"gc": Figure(value=0.0, n=4, unit="ratio")},
        running={},
        certain=Figure(value=0.1, low=0.08, high=0.12, n=4, unit="ratio"),
    )
    assert found.proved.value == pytest.approx(proved)
