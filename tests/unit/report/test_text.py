from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis import Figure
from dpdoctor.report import text
from dpdoctor.report.blocks import Cell
from tests.unit.report import runs

RATE = Figure(value=317.2, low=314.6, high=320.1, n=9, unit="samples/s")


@pytest.mark.parametrize(
    ("figure", "whole", "interval", "short"),
    [
        (RATE, "317 samples/s", "315 to 320 samples/s", "315 to 320"),
        (Figure(value=0.1, low=0.09, high=0.11, unit="s"), "100 ms", "90.0 to 110 ms", "90.0 to 110"),
        (Figure(value=1.1, low=0.9, high=1.3, unit="s"), "1.10 s", "900 ms to 1.30 s", "900 ms to 1.30"),
        (Figure(value=1.31, low=1.27, high=1.35, unit="x"), "1.31x", "1.27x to 1.35x", "1.27x to 1.35x"),
        (Figure(value=0.654, low=0.6, high=0.7, unit="ratio"), "65.4 %", "60.0 to 70.0 %", "60.0 to 70.0"),
        (Figure(value=2.0, unit="furlongs"), "2.00 furlongs", "", ""),
        (Figure(value=None, unit="s", reason="no trace"), "unknown", "", ""),
    ],
)
def test_figures_in_words(figure: Figure, whole: str, interval: str, short: str) -> None:
    assert text.figure_text(figure) == whole
    assert text.interval_text(figure) == interval
    assert text.short_interval(figure) == short


def test_an_unknown_figure_shows_its_reason() -> None:
    figure = Figure(value=None, unit="s", reason="no trace was recorded")
    assert text.figure_cell(figure) == Cell(text="unknown", note="no trace was recorded")


def test_a_figure_with_a_reservation_shows_both() -> None:
    cell = text.figure_cell(dataclasses.replace(RATE, reason="the edge is left out"))
    assert cell == Cell(text="317 samples/s", note="315 to 320; the edge is left out")


@pytest.mark.parametrize(("size", "words"), [(None, "unknown"), (32.0, "32"), (1024.0, "1,024"), (31.25, "31.2")])
def test_batches(size: float | None, words: str) -> None:
    assert text.batch_text(size) == words


def test_intervals_of_one_launch_are_within_this_run() -> None:
    assert text.interval_words(runs.gpu_run().summary.modes) == (
        "95 % intervals within this run: One device (3 windows), DDP (3 windows). Speedups rest on one launch each."
    )


def test_intervals_of_repeated_launches() -> None:
    assert text.interval_words(runs.repeated_run().summary.modes) == (
        "95 % intervals between launches: One device (2 launches), DDP (2 launches)."
    )


def test_a_mode_unknown_here_keeps_its_name() -> None:
    assert text.mode_label("zero3") == "zero3"
