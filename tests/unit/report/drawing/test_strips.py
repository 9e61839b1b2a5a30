"""Strips above each other on one time axis, and the readings that they are of."""

from __future__ import annotations

import pytest

from dpdoctor.analysis import Sample
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.strips import (
    LINE_CHARACTERS,
    Curve,
    Panel,
    Strip,
    gained,
    grouped,
    kind_of,
    panels,
    strip_chart,
    throttle_strip,
    unit_of,
    unknowns,
    words_of,
)
from tests.builders.figures import figures

S = 1_000_000_000


@pytest.mark.parametrize(
    ("key", "unit", "words"),
    [
        ("cpu_ratio", "ratio", "cpu"),
        ("kernel_running_ratio", "ratio", "kernel running"),
        ("memory_used_bytes", "bytes", "memory used"),
        ("power_w", "W", "power"),
        ("sm_clock_mhz", "MHz", "sm clock"),
        ("temperature_c", "°C", "temperature"),
        ("pcie_gb_s", "GB/s", "pcie"),
        ("throttled_s", "s", "throttled"),
        ("num_processes", "", "processes"),
        ("anything", "", "anything"),
    ],
)
def test_a_name_ends_in_its_unit(key: str, unit: str, words: str) -> None:
    assert (unit_of(key), words_of(key)) == (unit, words)


@pytest.mark.parametrize(
    ("source", "kind"), [("host", "host"), ("rank12", "rank"), ("rank0.workers", "rank"), ("gpu3", "gpu"), ("7", "7")]
)
def test_kinds_of_sources(source: str, kind: str) -> None:
    assert kind_of(source) == kind


def test_a_panel_per_kind_and_unit_with_a_gap_where_a_reading_is_missing() -> None:
    samples = [
        Sample(at_ns=2 * S, source="gpu0", values={"power_w": 300.0, "sm_clock_mhz": 1700.0}),
        Sample(at_ns=2 * S, source="host", values={"cpu_ratio": 0.5}),
        Sample(at_ns=3 * S, source="gpu0", values={"sm_clock_mhz": 1650.0}),
        Sample(at_ns=2 * S, source="gpu1", values={"power_w": 310.0}),
    ]
    clock = Curve(source="gpu0", key="sm_clock_mhz", x=(1.0, 2.0), y=(1700.0, 1650.0))
    power = (
        Curve(source="gpu0", key="power_w", x=(1.0, 2.0), y=(300.0, None)),
        Curve(source="gpu1", key="power_w", x=(1.0,), y=(310.0,)),
    )
    cpu = Curve(source="host", key="cpu_ratio", x=(1.0,), y=(0.5,))
    assert panels(samples, S) == (
        Panel(kind="gpu", unit="W", curves=power),
        Panel(kind="gpu", unit="MHz", curves=(clock,)),
        Panel(kind="host", unit="ratio", curves=(cpu,)),
    )


def test_where_a_source_was_not_there_its_curve_has_a_hole() -> None:
    samples = [Sample(at_ns=at * S, source="rank0.workers", values={"memory_bytes": 5.0}) for at in (1, 2, 3, 20, 21)]
    ((curve,),) = (panel.curves for panel in panels(samples, 0))
    assert curve.y == (5.0, 5.0, 5.0, None, 5.0, 5.0)


def test_each_unknown_is_told_once() -> None:
    sample = Sample(at_ns=0, source="gpu0", values={}, unknown={"power_w": "not supported"})
    assert unknowns([sample, sample]) == (("gpu0", "power_w", "not supported"),)


def test_counters_are_not_drawn_and_what_they_gained_is_added_up_by_kind() -> None:
    samples = [
        Sample(at_ns=at * S, source=f"gpu{gpu}", values={"energy_j": 100.0 * gpu + 10 * at, "power_w": 5.0})
        for at in (1, 2, 3)
        for gpu in (0, 1)
    ]
    assert [panel.unit for panel in panels(samples, 0)] == ["W"]
    assert gained(samples) == {("gpu", "energy_j"): (40.0, 2)}


def test_reasons_of_lowered_clocks_are_bits_and_no_curve() -> None:
    assert panels([Sample(at_ns=0, source="gpu0", values={"throttle_reasons": 4.0})], 0) == ()


def panel(*levels: float, suffix: str = "") -> Panel:
    """Return a reading of so many ranks every second, each somewhat after the other; each constant."""
    return Panel(
        kind="rank",
        unit="cores",
        curves=tuple(
            Curve(source=f"rank{i}{suffix}", key="cpu_cores", x=(1 + i / 100, 2 + i / 100), y=(level, level))
            for i, level in enumerate(levels)
        ),
    )


def test_few_sources_stay_as_they_are() -> None:
    few = panel(1, 2, 3)
    assert grouped(few) == (few, "")


def test_of_many_the_lowest_the_middle_and_the_highest_of_each_moment_are_left() -> None:
    shown, words = grouped(panel(1, 2, 3, 4, 5, 6, 7, 8, 99))
    assert {curve.source: curve.y for curve in shown.curves} == {
        "lowest of 9 ranks": (1, 1),
        "middle of 9 ranks": (5, 5),
        "highest of 9 ranks": (99, 99),
    }
    assert shown.curves[0].x == pytest.approx((1.04, 2.04))
    assert words == (
        "Of 9 ranks, cpu: the lowest mean is that of rank0, 1.00 cores; the highest that of rank8, 99.0 cores."
    )


def test_workers_are_not_mixed_with_their_ranks() -> None:
    ranks, workers = panel(1, 1, 1, 1), panel(3, 3, 3, 3, suffix=".workers")
    shown, _ = grouped(Panel(kind="rank", unit="cores", curves=(*ranks.curves, *workers.curves)))
    assert {curve.source for curve in shown.curves} == {
        f"{level} of 4 ranks{part}" for level in ("lowest", "middle", "highest") for part in ("", " (workers)")
    }


def test_a_reading_that_lacks_is_left_out_of_its_moment() -> None:
    many = panel(*range(1, 9))
    gap = Curve(source="rank8", key="cpu_cores", x=(1.0, 2.0), y=(None, 50.0))
    shown, _ = grouped(Panel(kind="rank", unit="cores", curves=(*many.curves, gap)))
    assert max(shown.curves, key=lambda curve: max(curve.known)).y == (8, 50.0)


def test_of_more_readings_than_fit_those_that_reach_highest_are_drawn() -> None:
    curves = tuple(Curve(source="host", key=f"reading{i}_cores", x=(1.0,), y=(float(i),)) for i in range(9))
    shown, words = grouped(Panel(kind="host", unit="cores", curves=curves))
    assert [curve.key for curve in shown.curves] == [f"reading{i}_cores" for i in range(8, 1, -1)]
    assert words == "Drawn: the 7 that reach highest, of 9."


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
