from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpdoctor import heartbeat
from dpdoctor.heartbeat import FILE, STAGES, Beat, Heartbeat
from tests.builders.handclock import HandClock

counts = st.integers(0, 2**63 - 1)


def test_a_heart_beats_as_soon_as_it_is_there(tmp_path: Path) -> None:
    Heartbeat(tmp_path, 77, HandClock(5))
    assert heartbeat.read(tmp_path) == Beat(pid=77, stage="starting", step=0, samples=0, window=0, at_ns=5)


beats = st.builds(
    Beat,
    pid=st.integers(1, 2**22),
    stage=st.sampled_from(STAGES),
    step=counts,
    samples=counts,
    window=counts,
    at_ns=counts,
)


@given(beat=beats)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path: Path, beat: Beat) -> None:
    heart = Heartbeat(tmp_path, beat.pid, HandClock(0))
    heart.enter(beat.stage, beat.window)
    heart.beat(beat.step, beat.samples, beat.at_ns)
    assert heart.stage == beat.stage
    assert heartbeat.read(tmp_path) == beat


def test_a_new_stage_keeps_the_counts(tmp_path: Path) -> None:
    clock = HandClock(1)
    heart = Heartbeat(tmp_path, 1, clock)
    heart.beat(10, 40)
    clock.tick(1)
    heart.enter("measure", 3)
    assert heartbeat.read(tmp_path) == Beat(pid=1, stage="measure", step=10, samples=40, window=3, at_ns=2)


def test_a_backward_pass_is_counted_and_no_progress(tmp_path: Path) -> None:
    clock = HandClock(1)
    heart = Heartbeat(tmp_path, 1, clock)
    clock.tick(1)
    for _ in range(2):
        heart.backward_ended()
    assert heartbeat.read(tmp_path) == Beat(pid=1, stage="starting", step=0, samples=0, window=0, at_ns=1, passes=2)
    heart.enter("script")
    assert heartbeat.read(tmp_path) == Beat(pid=1, stage="script", step=0, samples=0, window=0, at_ns=2, passes=2)


def test_an_unknown_stage_is_refused(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, 1, HandClock())
    with pytest.raises(ValueError, match="not in tuple"):
        heart.enter("dreaming")


def test_without_a_file_there_is_no_beat(tmp_path: Path) -> None:
    assert heartbeat.read(tmp_path) is None
    assert heartbeat.read(tmp_path / "absent") is None


def test_a_file_that_was_cut_short_is_no_beat(tmp_path: Path) -> None:
    Heartbeat(tmp_path, 1, HandClock())
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:length])
        assert heartbeat.read(tmp_path) is None


@pytest.mark.parametrize("content", [bytes(48), b"\xff" * 48])
def test_nonsense_is_no_beat(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert heartbeat.read(tmp_path) is None
