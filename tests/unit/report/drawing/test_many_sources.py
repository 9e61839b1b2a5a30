"""More sources than a picture can show."""

from __future__ import annotations

import pytest

from dpdoctor.report.drawing.many_sources import grouped
from dpdoctor.report.drawing.series import Curve, Panel


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
