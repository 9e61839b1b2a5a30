"""Strips above each other on one time axis."""

from __future__ import annotations

import pytest

from dpdoctor.analysis import Sample
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.strips import LINE_CHARACTERS, Strip, strip_chart, throttle_strip
from tests.builders.figures import figures


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
    assert few.layout["annotations"][0]["text"].count("<br>") == 0
    assert many.layout["annotations"][0]["text"].count("<br>") == 2
    assert many.height > few.height


def test_names_from_a_run_are_shown_not_read() -> None:
    chart = strip_chart(
        title="t", strips=[strip("<b>", "<img src=x>", "n" * 999)], shapes=[], how_to_read="h.", alternative="a."
    )
    text = chart.layout["annotations"][0]["text"]
    assert text.startswith("<b>&lt;b&gt;</b> ")
    assert "<img" not in text
    assert "n" * LINE_CHARACTERS not in text


S = 1_000_000_000


def samples(*bits: int, source: str = "gpu0") -> list[Sample]:
    return [
        Sample(at_ns=(i + 1) * S, source=source, values={"throttle_reasons": float(found)})
        for i, found in enumerate(bits)
    ]


def test_a_row_per_reason_with_a_mark_for_each_reading_that_names_it_faults_first() -> None:
    strip, words = throttle_strip(samples(0x4, 0x24, 0x0, 0x20), S)
    assert strip is not None
    assert [(trace["name"], trace["x"], trace["marker"]["color"]) for trace in strip.traces] == [
        ("thermal slowdown by the driver", [1, 3], charts.VERMILION),
        ("power cap", [0, 1], charts.GREY),
    ]
    assert words == (
        "thermal slowdown by the driver: 50% of the readings, on gpu0. power cap: 50% of the readings, on gpu0."
    )


def test_a_bit_that_nobody_knows_is_a_reason_all_the_same() -> None:
    strip, _ = throttle_strip(samples(0x800), 0)
    assert strip is not None
    assert strip.traces[0]["y"] == ["another reason (bit 11)"]


def test_many_sources_are_counted() -> None:
    many = [sample for i in range(9) for sample in samples(0x4, source=f"gpu{i}")]
    said = throttle_strip(many, 0)[1]
    assert said.startswith("power cap: ")
    assert figures(said) == ["100%", "9"]


def test_without_a_reason_that_is_said_and_without_a_reading_nothing_is() -> None:
    assert throttle_strip(samples(0, 0), 0) == (None, "None of 2 readings names a reason for lowered clocks.")
    assert throttle_strip([Sample(at_ns=0, source="gpu0", values={"power_w": 1.0})], 0) == (None, "")
