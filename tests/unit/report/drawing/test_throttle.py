"""The bits of NVML's clocks event reasons as rows."""

from __future__ import annotations

from dpdoctor.analysis import Sample
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.throttle import throttle_strip
from tests.builders.figures import figures

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
        "thermal slowdown by the driver: 50.0 % of the readings, on gpu0. power cap: 50.0 % of the readings, on gpu0."
    )


def test_a_bit_that_nobody_knows_is_a_reason_all_the_same() -> None:
    strip, _ = throttle_strip(samples(0x800), 0)
    assert strip is not None
    assert strip.traces[0]["y"] == ["another reason (bit 11)"]


def test_many_sources_are_counted() -> None:
    many = [sample for i in range(9) for sample in samples(0x4, source=f"gpu{i}")]
    said = throttle_strip(many, 0)[1]
    assert said.startswith("power cap: ")
    assert figures(said) == ["100 %", "9"]


def test_without_a_reason_that_is_said_and_without_a_reading_nothing_is() -> None:
    assert throttle_strip(samples(0, 0), 0) == (None, "None of 2 readings names a reason for lowered clocks.")
    assert throttle_strip([Sample(at_ns=0, source="gpu0", values={"power_w": 1.0})], 0) == (None, "")
