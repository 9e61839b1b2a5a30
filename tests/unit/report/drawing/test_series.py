from __future__ import annotations

import pytest

from dpdoctor.records import Sample
from dpdoctor.report.drawing.series import Curve, Panel, gained, grouped, kind_of, panels, unit_of, unknowns, words_of

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
