from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis
from dpdoctor.digest import NO_CALLS, Digest
from dpdoctor.errors import TraceError
from dpdoctor.report.traces import timeline
from dpdoctor.report.traces.timeline import Event
from dpdoctor.trace.files import TIMELINE, locate
from tests.builders import runs, traced_runs
from tests.builders.specs import MS

EVERY = [
    traced_runs.late_run,
    traced_runs.cpu_trace,
    traced_runs.hostile_traces,
    traced_runs.traced_profile,
]


def written(analysis: Analysis) -> list[Event]:
    """Return the timeline as a reader of the file gets it."""
    events: list[Event] = json.loads(json.dumps(timeline.timeline(analysis), allow_nan=False))
    return events


def tracks(events: list[Event]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def slices(events: list[Event], process: int, track: str) -> list[Event]:
    names = tracks(events)
    return [e for e in events if e["ph"] == "X" and e["pid"] == process and names[e["pid"], e["tid"]] == track]


def processes(events: list[Event]) -> list[str]:
    return [event["args"]["name"] for event in events if event["name"] == "process_name"]


@pytest.mark.parametrize("run", EVERY)
class TestWhatPerfettoNeeds:
    def test_every_event_has_its_fields(self, run: Callable[[], Analysis]) -> None:
        fields: dict[str, set[str]] = {
            "M": {"name", "pid", "args"},
            "X": {"name", "pid", "tid", "ts", "dur", "args"},
            "C": {"name", "pid", "ts", "args"},
        }
        for event in written(run()):
            assert fields[event["ph"]] <= set(event)

    def test_times_begin_at_zero_and_are_in_order(self, run: Callable[[], Analysis]) -> None:
        timed = [event for event in written(run()) if event["ph"] != "M"]
        times = [event["ts"] for event in timed]
        assert times == sorted(times)
        assert times[0] == 0
        assert all(event.get("dur", 0) >= 0 for event in timed)

    def test_slices_of_a_track_do_not_overlap(self, run: Callable[[], Analysis]) -> None:
        events = written(run())
        for process, track in tracks(events):
            lane = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (process, track)]
            assert all(one["ts"] + one["dur"] <= other["ts"] + 1e-6 for one, other in pairwise(lane))

    def test_every_slice_is_on_a_track_with_a_name(self, run: Callable[[], Analysis]) -> None:
        events = written(run())
        assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= set(tracks(events))


class TestTracks:
    def test_steps_with_their_budget(self) -> None:
        steps = slices(written(traced_runs.late_run()), 1, "steps, GPU 0")
        assert [(step["name"], step["ts"], step["dur"]) for step in steps] == [
            ("step 0", 0, 100_000),
            ("step 1", 100_000, 100_000),
            ("step 2", 200_000, 100_000),
        ]
        assert steps[0]["args"]["exposed communication"] == "31.0 ms"

    def test_without_steps_the_whole_trace_is_one_slice(self) -> None:
        (whole,) = slices(written(traced_runs.cpu_trace()), 1, "steps, CPU")
        assert (whole["name"], whole["ts"], whole["dur"]) == ("whole trace", 0, 100_000)

    def test_collectives_of_a_rank(self) -> None:
        first = slices(written(traced_runs.late_run()), 3, "collectives")[0]
        assert (first["name"], first["ts"], first["dur"]) == ("all_reduce", 90_000, 10_000)
        assert first["args"] == {"exposed": "10.0 ms", "bytes": 4096, "group": "0", "sequence number": 0}

    def test_waits_name_their_culprit(self) -> None:
        events = written(traced_runs.late_run())
        waits = slices(events, 1, "waits")
        # The first call is not judged: what came before it is not in the trace.
        assert [wait["ts"] for wait in waits] == [160_000 + 100_000 * step for step in range(19)]
        assert {(wait["name"], wait["dur"]) for wait in waits} == {("waits for rank 2", 30_000)}
        assert waits[0]["args"]["culprit"] == "rank 2"
        assert slices(events, 3, "waits") == []

    def test_of_two_traces_of_a_rank_one_waits(self) -> None:
        first, second = traced_runs.late_rank(2, 1)
        shorter = replace(second, source="again.json", calls=NO_CALLS)
        again = [replace(first, source="again0.json", calls=NO_CALLS), shorter]
        found = written(traced_runs.trace_run(first, second, *again))
        waits = [event for event in found if event["name"].startswith("waits for")]
        assert (
            len(waits)
            == len([e for e in written(traced_runs.trace_run(first, second)) if e["name"].startswith("waits for")])
            > 0
        )

    def test_idle_by_cause_as_a_counter_that_ends_at_zero(self) -> None:
        events = written(traced_runs.late_run())
        idle = [event for event in events if event["ph"] == "C" and event["pid"] == 1]
        assert [event["ts"] for event in idle] == [0, 100_000, 200_000, 300_000]
        assert idle[0]["args"] == {"waiting for data": 13.5, "launching operators": 4.5}
        assert set(idle[-1]["args"].values()) == {0}

    def test_calls_that_overlap_get_tracks_of_their_own(self) -> None:
        (digest,) = traced_runs.late_rank(1, 0, num_steps=2)
        calls = replace(digest.calls, begin_ns=(0, 5 * MS), end_ns=(10 * MS, 15 * MS))
        events = written(traced_runs.trace_run(replace(digest, calls=calls)))
        assert [len(slices(events, 1, name)) for name in ("collectives", "collectives 2")] == [1, 1]

    def test_of_too_many_calls_the_longest_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "MOST_SLICES", 4)
        (digest,) = traced_runs.late_rank(1, 0, num_steps=3)
        calls = replace(digest.calls, begin_ns=(0, 20 * MS, 40 * MS), end_ns=(9 * MS, 21 * MS, 47 * MS))
        events = written(traced_runs.trace_run(replace(digest, calls=calls)))
        shown = slices(events, 1, "collectives, the longest 2 of 3")
        assert [one["ts"] for one in shown] == [0, 40_000]


def ahead(digest: Digest, by_ns: int) -> Digest:
    """Return what a rank whose clock is ahead would have written."""
    return replace(digest, base_ns=digest.base_ns + by_ns)


class TestClocks:
    def test_ranks_are_put_onto_the_first_ones_axis(self) -> None:
        found = traced_runs.late_rank(2, 1)
        events = written(traced_runs.trace_run(found[0], ahead(found[1], 5_000_000_000)))
        ends = [[e["ts"] + e["dur"] for e in slices(events, process, "collectives")] for process in (1, 2)]
        assert ends[0] == pytest.approx(ends[1])
        assert processes(events) == ["traces, rank 0 (its clock is the axis)", "traces, rank 1 (clock to 0 s)"]

    def test_a_rank_that_shares_no_call_begins_at_zero_and_says_so(self) -> None:
        found = traced_runs.late_rank(2, 1)
        stranger = ahead(replace(found[1], rank=None, source="other.json"), 10**18)
        events = written(traced_runs.trace_run(found[0], stranger))
        assert processes(events)[1] == "traces, other.json (begins at 0)"
        assert slices(events, 2, "steps, GPU 0")[0]["ts"] == 0


def test_a_profile_run_shows_the_modes_that_have_traces() -> None:
    names = processes(written(traced_runs.traced_profile()))
    assert [name.partition(" (")[0] for name in names] == ["ddp, rank 0", "ddp, rank 1"]


def test_a_run_without_traces_has_no_events() -> None:
    assert timeline.timeline(runs.cpu_run()) == []


def test_hostile_names_survive() -> None:
    names = {event["name"] for event in written(traced_runs.hostile_traces())}
    found = json.dumps(sorted(names | set(processes(written(traced_runs.hostile_traces())))))
    assert "all_reduce" in names
    assert "</script>" in found


def test_our_own_reader_does_not_take_it_for_a_trace(tmp_path: Path) -> None:
    data: Any = timeline.timeline(traced_runs.late_run())
    (tmp_path / TIMELINE).write_bytes(gzip.compress(json.dumps(data).encode()))
    with pytest.raises(TraceError, match="no trace in this folder"):
        locate([tmp_path])
