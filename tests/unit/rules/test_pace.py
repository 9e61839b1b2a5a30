from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.rules._pace import beyond_others


@given(st.lists(st.one_of(st.sampled_from([1.0, 2.0, 3.0]), st.floats(0, 10)), min_size=2, max_size=9))
def test_each_value_is_set_against_the_median_of_the_others(values: list[float]) -> None:
    dumb = [value - median([*values[:place], *values[place + 1 :]]) for place, value in enumerate(values)]
    assert beyond_others(values) == pytest.approx(dumb)
