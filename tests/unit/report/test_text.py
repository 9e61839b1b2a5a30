from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Figure
from dpdoctor.report import text
from dpdoctor.report.blocks import Absent, Cell
from dpdoctor.report.traces import words
from tests.builders import runs

RATE = Figure(value=317.2, low=314.6, high=320.1, n=9, unit="samples/s")


@pytest.mark.parametrize(
    ("figure", "whole", "interval", "short"),
    [
        (RATE, "317 samples/s", "315–320 samples/s", "315–320"),
        (Figure(value=0.1, low=0.09, high=0.11, unit="s"), "100 ms", "90.0–110 ms", "90.0–110"),
        (Figure(value=1.1, low=0.9, high=1.3, unit="s"), "1.10 s", "900 ms to 1.30 s", "900 ms to 1.30 s"),
        (Figure(value=1.31, low=1.27, high=1.35, unit="x"), "1.31x", "1.27–1.35x", "1.27–1.35"),
        (Figure(value=0.654, low=0.6, high=0.7, unit="ratio"), "65%", "60–70%", "60–70"),
        (Figure(value=1.92, low=1.2, unit="x"), "1.92x", "at least 1.20x", "at least 1.20x"),
        (Figure(value=0.0, low=0.0, high=0.0, unit="s"), "0 s", "", ""),
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
    assert text.figure_cell(figure) == Cell(text="unknown", footnote="no trace was recorded")


def test_a_figure_with_a_reservation_shows_both() -> None:
    cell = text.figure_cell(replace(RATE, reason="the edge is left out"))
    assert cell == Cell(text="317 samples/s", note="315–320", footnote="the edge is left out")


def test_a_reason_names_what_it_holds_for_once() -> None:
    assert text.by_reason([("dp", "a"), ("dp", "a"), ("ddp", "a"), ("dp", "b")]) == {"a": "dp and ddp", "b": "dp"}


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (["3 steps took 999 ms", "3 steps took 1.00 s"], "3 steps took 999 ms to 1.00 s"),
        (["3 steps took 20.0 s", "3 steps took 3.00 s", "3 steps took 12.0 s"], "3 steps took 3.00\N{EN DASH}20.0 s"),
        (["it took 1,240 h of 2.00 s", "it took 96.0 h of 2.00 s"], "it took 96.0\N{EN DASH}1,240 h of 2.00 s"),
        (
            ["1 s, 5 s: give --time-budget 9 or so", "1 s, 4 s: give --time-budget 12 or so"],
            "1 s, 4\N{EN DASH}5 s: give --time-budget 12 or so",
        ),
        (["3 steps took 2.00 s", "4 steps took 2.00 s"], ""),
        (["lr 0.1 s", "lr 0.2 m"], ""),
    ],
)
def test_reasons_that_differ_in_times_alone_are_one(reasons: list[str], told: str) -> None:
    found = text.by_reason((str(number), reason) for number, reason in enumerate(reasons))
    assert list(found) == ([told] if told else reasons)


@pytest.mark.parametrize(("size", "words"), [(None, "unknown"), (32.0, "32"), (1024.0, "1,024"), (31.25, "31.2")])
def test_batches(size: float | None, words: str) -> None:
    assert text.batch_text(size) == words


def test_intervals_of_one_launch_are_within_this_run() -> None:
    assert text.interval_words(runs.gpu_run().summary.modes) == ("95% intervals within this run, over 3 windows each.")


def test_intervals_over_unlike_numbers_of_windows_are_told_apart() -> None:
    modes = runs.gpu_run().summary.modes
    alone = replace(modes["ddp"], throughput=replace(RATE, low=None, high=None, n=1))
    assert text.interval_words({**modes, "fsdp": alone}) == (
        "95% intervals within this run, over 3 windows: single and ddp. No interval from 1 window: fsdp."
    )


def test_intervals_of_repeated_launches() -> None:
    assert text.interval_words(runs.repeated_run().summary.modes) == ("95% intervals between 2 launches each.")


def test_intervals_by_calibrated_noise() -> None:
    rate = replace(RATE, scope="calibrated")
    calibrated = replace(runs.gpu_run().summary.modes["ddp"], throughput=rate)
    assert text.interval_words({"ddp": calibrated}) == (
        "95% intervals between launches, by how far those of this script differ here, and 9 windows."
    )


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1, "1 file that the script would have written or removed was left alone"),
        (2, "2 files that the script would have written or removed were left alone"),
    ],
)
def test_files_of_the_script_were_left_alone(number: int, said: str) -> None:
    assert text.left_alone(number) == said


def test_a_mode_unknown_here_keeps_its_name() -> None:
    assert text.mode_label("zero3") == "zero3"


@pytest.mark.parametrize(
    ("words", "expected"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_enumerations(words: list[str], expected: str) -> None:
    assert text.listed(words) == expected


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ((317.2, 400.0), "samples/s", "317 and 400 samples/s"),
        ((0.9, 1.2), "s", "900 ms and 1.20 s"),
        ((1.1, 1.2, 1.3), "x", "1.10x, 1.20x and 1.30x"),
        ((0.5, 0.6), "ratio", "50% and 60%"),
    ],
)
def test_figures_share_their_unit(values: tuple[float, ...], unit: str, expected: str) -> None:
    assert text.listed_figures([Figure(value=value, unit=unit) for value in values]) == expected


def test_a_reason_is_given_once_for_all_that_it_holds_for() -> None:
    found = text.absent([("ddp", "it failed"), ("fsdp", "no window"), ("dp", "it failed")])
    assert found == [Absent(what="ddp and dp", reason="it failed"), Absent(what="fsdp", reason="no window")]


def test_an_iterable_dataset_has_no_sampler() -> None:
    data = pytest.importorskip("torch.utils.data")
    sampler = data.DataLoader(type("Records", (data.IterableDataset,), {"__iter__": None})()).sampler
    assert text.sampler_text(type(sampler).__name__) == "none (iterable)"
    assert text.sampler_text("RandomSampler") == "RandomSampler"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("the loader", "The loader"),
        ("ddp", "ddp"),
        ("", ""),
        ("samples/train.py:20 has most", "samples/train.py:20 has most"),
        ("no_overlap names it", "no_overlap names it"),
        ("gc.collect() is called", "gc.collect() is called"),
    ],
)
def test_capitals(given: str, shown: str) -> None:
    assert text.capital(given) == shown


def test_a_run_is_called_after_its_script_or_module() -> None:
    found = runs.cpu_run()
    assert text.run_title(found) == "train.py"
    spec = replace(found.run.header.spec, is_module=True)
    header = replace(found.run.header, spec=spec)
    summary = replace(found.summary, script=replace(found.summary.script, path="package.train"))
    module = replace(found, summary=summary, run=replace(found.run, header=header))
    assert text.run_title(module) == "package.train"


class TestCellsToSortBy:
    def test_a_figure_sorts_by_its_value(self) -> None:
        assert text.figure_cell(RATE).sort == 317.2
        assert text.figure_cell(Figure(value=None, unit="s", reason="no trace")).sort is None

    @pytest.mark.parametrize(
        ("cell", "shown", "number"),
        [
            (text.amount_cell(0.25, "s"), "250 ms", 0.25),
            (text.amount_cell(0, "bytes"), "0 B", 0),
            (text.amount_cell(None, "bytes"), "unknown", None),
            (text.amount_cell(None, "ratio", missing=text.NOTHING), text.NOTHING, None),
            (text.whole_cell(11_689_512), "11,689,512", 11_689_512),
            (text.whole_cell(None), "unknown", None),
            (words.time_cell(2.5e6), "2.50 ms", 0.0025),
            (words.time_cell(-2.5e6), "-2.50 ms", -0.0025),
        ],
    )
    def test_text_and_number(self, cell: Cell, shown: str, number: float | None) -> None:
        assert (cell.text, cell.sort) == (shown, number)

    def test_cells_that_show_the_same_are_equal(self) -> None:
        assert text.amount_cell(0.25, "s", note="mean") == Cell(text="250 ms", note="mean")


@pytest.mark.parametrize(
    ("line", "shown"), [("/a/b/train.py:9", "b/train.py:9"), ("/a/other.py:9", "/a/other.py:9"), ("?", "?")]
)
def test_a_path_is_shown_as_it_was_typed(line: str, shown: str) -> None:
    assert text.as_typed(line, ("dpdoctor", "profile", "b/train.py")) == shown
