from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.charts import neighbours, thin


def test_text_of_a_run_is_neither_markup_nor_tex_for_plotly() -> None:
    assert charts.plain("$HOME/$USER & <co>") == "&#36;HOME/&#36;USER &amp; &lt;co&gt;"


CURVES = st.lists(st.none() | st.integers(-50, 50).map(float), min_size=1, max_size=300)


def test_a_short_curve_keeps_every_point() -> None:
    assert thin([3.0, 1.0, 2.0], 3) == [0, 1, 2]


def test_of_each_run_of_neighbours_the_lowest_and_the_highest_stay() -> None:
    values = [5.0, 1.0, 9.0, 5.0, 5.0, 7.0, 2.0, 5.0]
    assert neighbours(len(values), 4) == 4
    assert thin(values, 4) == [0, 1, 2, 5, 6, 7]


def test_a_hole_stays_a_hole() -> None:
    assert thin([1.0, None, None, 2.0, 1.0, 1.0, 1.0, 1.0], 4) == [0, 1, 3, 4, 7]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=40), st.integers(1, 9))
def test_a_curve_is_interrupted_before_what_begins_late_and_nowhere_else(
    stretches: list[tuple[int, int]], longest: int
) -> None:
    begins, ends, now = [], [], 0
    for idle, busy in stretches:
        begins.append(float(now + idle))
        now += idle + busy
        ends.append(float(now))
    x, y = charts.with_holes(begins, ends, ends, float(longest))
    assert [value for value in y if value is not None] == ends
    assert x == sorted(x)
    assert y.count(None) == sum(idle > longest for idle, _ in stretches[1:])


def test_no_colour_is_named_that_is_nowhere() -> None:
    def part(*ratios: float) -> dict[str, Any]:
        words = [""] * len(ratios)
        return charts.stacked_part(name="h2d", colors=("", ""), y=[0, 1], x=ratios, ratios=ratios, words=words)

    assert not part(0.0, 0.0)["showlegend"]
    assert part(0.0, 0.2)["showlegend"]


@given(CURVES, st.integers(2, 40))
def test_extremes_survive_in_order_and_few(values: list[float | None], most: int) -> None:
    kept = thin(values, most)
    known = [value for value in values if value is not None]
    shown = [values[i] for i in kept if values[i] is not None]
    assert kept == sorted(set(kept))
    assert (max(shown, default=None), min(shown, default=None)) == (max(known, default=None), min(known, default=None))
    assert (None in values) == any(values[i] is None for i in kept)
    assert len(kept) <= 1.5 * most + 5
