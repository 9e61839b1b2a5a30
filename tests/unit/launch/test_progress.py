from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dpdoctor import rundir
from dpdoctor.heartbeat import EXPERIMENT, STAGES, Beat
from dpdoctor.launch.progress import (
    PLAIN_PERIOD_S,
    RATE_OVER_S,
    LiveProgress,
    PlainProgress,
    RateMeter,
    Silence,
    describe,
)
from dpdoctor.records import LaunchRecord
from tests.builders.handclock import HandClock

WINDOW = 0


def beat(step: int = 0, samples: int = 0, stage: str = "measure", window: int = WINDOW) -> Beat:
    return Beat(pid=1, stage=stage, step=step, samples=samples, window=window, at_ns=0)


def test_a_rate_needs_two_readings_that_lie_apart() -> None:
    meter = RateMeter()
    assert meter.rate(0.0, 0, WINDOW) is None
    assert meter.rate(0.0, 100, WINDOW) is None
    assert meter.rate(1.0, 200, WINDOW) == pytest.approx(200.0)


@given(st.lists(st.tuples(st.floats(0.01, 2), st.integers(0, 1000)), min_size=1, max_size=40))
def test_the_rate_is_that_of_the_last_seconds(readings: list[tuple[float, int]]) -> None:
    meter, now, samples = RateMeter(), 0.0, 0
    seen = [(now, samples)]
    meter.rate(now, samples, WINDOW)
    for wait, more in readings:
        now, samples = now + wait, samples + more
        seen.append((now, samples))
        recent = [reading for reading in seen if now - reading[0] <= RATE_OVER_S]
        then, before = recent[0] if len(recent) > 1 else seen[-2]
        assert meter.rate(now, samples, WINDOW) == pytest.approx((samples - before) / (now - then))


def test_for_how_long_no_step_came_is_told_in_place_of_a_rate_once_one_did() -> None:
    console, clock = Console(file=io.StringIO(), width=200), HandClock(0)
    progress = PlainProgress(console, clock=lambda: clock() * 1.0)
    progress.began("ddp", Path("nowhere"))
    for at, step in ((11, 0), (22, 5), (33, 5), (44, 5), (55, 6)):
        clock.tick(at - clock())
        progress.moved([beat(step)])
    _, *lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert ["no step for" in line for line in lines] == [False, False, False, True, False]
    assert "step 5, no step for 22.0 s" in lines[3]


def test_a_script_that_runs_on_after_its_recording_takes_no_step_that_could_be_missed() -> None:
    assert describe("native", [beat(31, stage="done")], None, 61, since_step_s=43) == (
        "native: recorded; the script runs on, 61.0 s"
    )


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_its_line(stage: str) -> None:
    line = describe("ddp", [beat(1234, stage=stage)], 5678.9, 61.4)
    assert line == f"ddp: {stage}, step 1,234, 5,679 samples/s, 61.0 s"


def test_the_rate_of_several_ranks_is_that_of_each_as_they_may_train_on_the_same_samples() -> None:
    assert describe("ddp", [beat(12), beat(12)], 5000.0, 5) == "ddp: measure, step 12, 2,500 samples/s per rank, 5.00 s"


def test_the_rank_furthest_back_speaks_for_all() -> None:
    line = describe("ddp", [beat(12), beat(10, stage="warmup")], None, 5)
    assert line == describe("ddp", [beat(10, stage="warmup")], None, 5)


@pytest.mark.parametrize("beats", [[], [None], [beat(3), None]])
def test_until_all_ranks_live_the_launch_is_starting(beats: list[Beat | None]) -> None:
    assert describe("ddp", beats, 100.0, 5) == "ddp: starting, 5.00 s"


def test_a_rate_of_nothing_is_not_shown() -> None:
    for rate in (0.0, None):
        assert describe("ddp", [beat(3)], rate, 5).split(", ") == ["ddp: measure", "step 3", "5.00 s"]


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def outcome(status: str, reason: str | None = None) -> LaunchRecord:
    return LaunchRecord(mode="ddp", launch=1, status=status, reason=reason)


def test_plain_progress_is_a_line_now_and_then(console: Console, tmp_path: Path, clock: HandClock) -> None:
    progress = PlainProgress(console, clock=clock)
    progress.began("ddp", tmp_path)
    clock.tick(1)
    progress.moved([beat(10, 100)])
    clock.tick(round(PLAIN_PERIOD_S))
    progress.moved([beat(20, 1100)])
    # After a long silence one line is enough.
    clock.tick(round(10 * PLAIN_PERIOD_S))
    for samples in (2100, 2200, 2300):
        progress.moved([beat(30, samples)])
    progress.ended(outcome("failed", "planted [red]reason[/red]"))
    *shown, last = text(console).splitlines()
    rates = [describe("ddp", [beat(20)], 100.0, 11), describe("ddp", [beat(30)], 10.0, 111)]
    assert shown == ["ddp: starting", *rates]
    assert last.startswith("ddp: failed ")
    assert last.endswith(" 111 s: planted [red]reason[/red]")


def test_the_rate_begins_anew_with_each_launch(console: Console, tmp_path: Path, clock: HandClock) -> None:
    progress = PlainProgress(console, clock=clock)
    for _ in range(2):
        progress.began("ddp", tmp_path)
        progress.moved([beat(0, 0)])
        clock.tick(round(PLAIN_PERIOD_S))
        progress.moved([beat(5, 100)])
        progress.ended(outcome("ok"))
    lines = text(console).splitlines()
    assert lines[:3] == ["ddp: starting", describe("ddp", [beat(5)], 10.0, 10), "ddp: ok after 10.0 s"]
    assert lines[3:] == lines[:3]


def test_the_rate_is_that_of_measured_windows_and_not_of_what_lies_between(
    console: Console, tmp_path: Path, clock: HandClock
) -> None:
    progress = PlainProgress(console, clock=clock)
    progress.began("ddp", tmp_path)
    measured = [beat(1, 100, window=1), beat(1, 101, window=1)]
    tried = [
        beat(1, 900, EXPERIMENT, 2),
        beat(1, 990, EXPERIMENT, 2),
        beat(1, 990, "trace", 3),
        beat(1, 999, "trace", 3),
    ]
    for one in [*measured, *tried, beat(1, 1000, window=4), beat(1, 1002, window=4)]:
        clock.tick(round(PLAIN_PERIOD_S))
        progress.moved([one])
    shown = [line.split(", ")[2:-1] for line in text(console).splitlines()[1:]]
    assert shown == [[], ["0.100 samples/s"], [], [], [], [], ["0.100 samples/s"], ["0.200 samples/s"]]


def test_what_rank_0_prints_can_be_shown_as_it_comes(console: Console, tmp_path: Path, clock: HandClock) -> None:
    progress = PlainProgress(console, echo=True, clock=clock)
    log = rundir.rank_dir(tmp_path, 0) / rundir.STDOUT
    progress.began("ddp", tmp_path)
    progress.moved([None])
    log.parent.mkdir()
    log.write_bytes(b"one\ntwo [b]\nthr")
    progress.moved([None])
    with log.open("ab") as file:
        file.write(b"ee \xff\n")
    progress.ended(outcome("ok"))
    assert text(console).splitlines() == [
        "ddp: starting",
        "  | one",
        "  | two [b]",
        "  | three �",
        "ddp: ok after 0 s",
    ]


@pytest.mark.parametrize("kind", [PlainProgress, LiveProgress])
def test_what_a_script_says_does_not_command_the_terminal(
    kind: type[PlainProgress | LiveProgress], console: Console, tmp_path: Path
) -> None:
    progress = kind(console)
    progress.began("ddp", tmp_path)
    progress.ended(outcome("failed", "it raised \x1b]0;title\x07"))
    assert "it raised \N{REPLACEMENT CHARACTER}]0;title" in text(console)


def test_live_progress_rewrites_its_line_and_leaves_the_outcome(tmp_path: Path, clock: HandClock) -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    progress = LiveProgress(console, clock=clock)
    progress.began("ddp", tmp_path)
    clock.tick(7)
    progress.moved([beat(10, 100)])
    progress.ended(outcome("ok"))
    shown = text(console)
    assert describe("ddp", [beat(10)], None, 7) in shown
    assert shown.rstrip().endswith("ddp: ok after 7.00 s")


def test_silence_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Silence()
    progress.began("ddp", tmp_path)
    progress.moved([beat(1)])
    progress.ended(outcome("ok"))
    assert capsys.readouterr() == ("", "")
