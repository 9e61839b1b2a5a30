"""Strips above each other on one time axis."""

from __future__ import annotations

import pytest

from dpdoctor.report.drawing.strips import LINE_CHARACTERS, Strip, strip_chart


def strip(title: str = "Load", *names: str) -> Strip:
    keys = tuple(("#0072B2", name) for name in names or ("host",))
    return Strip(title=title, traces=({"type": "scatter", "x": [0], "y": [1]},), keys=keys, axis={"type": "log"})


def test_the_first_strip_is_on_top_and_all_share_the_axis_below_the_last() -> None:
    chart = strip_chart(title="t", strips=[strip("a"), strip("b")], shapes=[], how_to_read="h.", alternative="a.")
    first, second = chart.layout["yaxis"]["domain"], chart.layout["yaxis2"]["domain"]
    assert second[0] == 0 < second[1] < first[0] < first[1] < 1
    assert first[1] - first[0] == pytest.approx(second[1] - second[0], abs=1e-4)
    assert [trace["yaxis"] for trace in chart.traces] == ["y", "y2"]
    assert chart.layout["xaxis"]["anchor"] == "y2"
    assert chart.layout["yaxis"]["type"] == "log"


def test_names_stand_above_their_strip_in_as_many_lines_as_they_need() -> None:
    names = [f"a source with a long name {i}" for i in range(3)]
    few, many = (
        strip_chart(title="t", strips=[one], shapes=[], how_to_read="h.", alternative="a.")
        for one in (strip("Load", "cpu", "memory"), strip("Load", *names))
    )
    assert few.layout["annotations"][0]["text"].count("<br>") == 1
    assert many.layout["annotations"][0]["text"].count("<br>") == 3
    assert many.height > few.height


def test_names_from_a_run_are_shown_not_read() -> None:
    chart = strip_chart(
        title="t", strips=[strip("<b>", "<img src=x>", "n" * 999)], shapes=[], how_to_read="h.", alternative="a."
    )
    text = chart.layout["annotations"][0]["text"]
    assert text.startswith("<b>&lt;b&gt;</b><br>")
    assert "<img" not in text
    assert "n" * LINE_CHARACTERS not in text
