"""Steps that stand out, and those that do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.slow_steps import LEAST_STEPS, slow_steps
from dpdoctor.records import EventRecord, Rank, StepRecord
from tests.builders import records
from tests.builders.specs import MS


def steps(durations_ms: Sequence[float], *, first: int = 1, window: int = 1) -> list[StepRecord]:
    """Return steps back to back from 0 ms on, spent in forward."""
    found, at = [], 0.0
    for number, ms in enumerate(durations_ms, first):
        found.append(records.step(ms, step=number, window=window, begin_ns=round(at * MS)))
        at += ms
    return found


def rank(
    *groups: Sequence[StepRecord], ablations: Sequence[str] = ("full",), events: Sequence[EventRecord] = ()
) -> Rank:
    """Return a rank with one window of each ablation."""
    windows = [records.window(1000, window=number, ablation=ablation) for number, ablation in enumerate(ablations, 1)]
    made = records.rank([step for group in groups for step in group], windows, index=3)
    return replace(made, events=tuple(events))


def numbers(of: Rank) -> list[int]:
    return [slow.step.step for slow in slow_steps(of)]


def test_a_step_far_from_the_others_stands_out_with_its_phase_and_what_is_usual() -> None:
    made = steps([100, 101, 99, 100, 400, 100])
    made[4] = records.step(400, step=5, begin_ns=made[4].begin_ns, phases_ms={"forward": 90, "data_wait": 310})
    (found,) = slow_steps(rank(made))
    assert (found.rank, found.step.step, found.usual_ns) == (3, 5, 100 * MS)
    assert (found.phase, found.longer_ns) == ("data_wait", 310 * MS)


def test_even_steps_and_small_differences_do_not_stand_out() -> None:
    assert numbers(rank(steps([100] * 20))) == []
    assert numbers(rank(steps([100] * 19 + [124]))) == []
    assert numbers(rank(steps([100] * 19 + [126]))) == [20]


def test_what_varies_anyway_does_not_stand_out() -> None:
    assert numbers(rank(steps([60, 140] * 10))) == []


def test_of_few_steps_none_is_called_unusual() -> None:
    assert numbers(rank(steps([100] * (LEAST_STEPS - 2) + [900]))) == []
    assert numbers(rank(steps([100] * (LEAST_STEPS - 1) + [900]))) == [LEAST_STEPS]


def test_windows_of_ablations_and_what_is_known_to_take_long_are_left_out() -> None:
    full, without = steps([100] * 10), steps([50] * 9 + [100], first=11, window=2)
    assert numbers(rank(full, without, ablations=("full", "cached_batches"))) == []
    epochs = steps([100] * 9 + [400])
    epochs[9] = records.step(400, step=10, begin_ns=epochs[9].begin_ns, epoch_edge=True)
    assert numbers(rank(epochs)) == []
    saved = steps([100] * 9 + [400])
    events = {
        kind: EventRecord(kind=kind, at_ns=saved[9].begin_ns, duration_ns=MS, step=10) for kind in ("gc", "checkpoint")
    }
    assert numbers(rank(saved, events=[events["checkpoint"]])) == []
    assert numbers(rank(saved, events=[events["gc"]])) == [10]


def test_only_counted_steps_of_measured_windows_are_judged() -> None:
    made = steps([100] * 10 + [900, 900])
    uncounted = records.step(900, step=11, begin_ns=made[10].begin_ns, counted=False)
    unmeasured = records.step(900, step=12, window=7, begin_ns=made[11].begin_ns)
    assert numbers(rank([*made[:10], uncounted, unmeasured])) == []


def test_events_that_reach_into_the_step_are_told_with_it() -> None:
    made = steps([100] * 9 + [400])
    began = made[9].begin_ns
    inside = EventRecord(kind="gc", at_ns=began + 10 * MS, duration_ns=290 * MS, step=9)
    into = EventRecord(kind="compile", at_ns=began - 10 * MS, duration_ns=20 * MS, step=8)
    moment = EventRecord(kind="mark", at_ns=began, step=9)
    before = EventRecord(kind="gc", at_ns=began - 10 * MS, duration_ns=10 * MS, step=8)
    after = EventRecord(kind="gc", at_ns=began + 400 * MS, duration_ns=MS, step=10)
    (found,) = slow_steps(rank(made, events=(inside, into, moment, before, after)))
    assert found.events == (inside, into, moment)


def on_a_gpu(durations_ms: Sequence[float], wall_ms: float) -> Rank:
    """Return a rank whose host takes so long for each step, in one window."""
    made = steps(durations_ms)
    window = records.window(0, begin_ns=0, end_ns=round(wall_ms * MS))
    return records.rank(made, [window], device="cuda:0")


def test_a_host_that_runs_ahead_of_a_gpu_and_then_waits_for_it_has_no_slow_step() -> None:
    # Steps of 20 ms; the host asks for a value every ten, and is 2 ms in each of the others.
    assert numbers(on_a_gpu(([2] * 9 + [182]) * 5, 1000)) == []
    # It may be full ahead, and go on as the device does.
    assert numbers(on_a_gpu([2] * 10 + [20] * 40, 1000)) == []


def test_a_host_that_comes_too_late_for_its_gpu_has_one() -> None:
    # It is ahead by 9 * 18 ms when something takes it 800 ms, of which the device stands still for the rest.
    (found,) = slow_steps(on_a_gpu([2] * 9 + [800] + [2] * 40, 18 + 800 + 40 * 20))
    assert (found.step.step, found.usual_ns) == (10, 20 * MS)


def in_step(*windows_ms: Sequence[float]) -> Rank:
    """Return a rank whose host waits for its GPU in each step, which take so long in each window."""
    made, windows, at = [], [], 0
    for number, durations_ms in enumerate(windows_ms, 1):
        ends_ns = at + round(sum(durations_ms) * MS)
        windows.append(records.window(0, window=number, begin_ns=at, end_ns=ends_ns))
        for place, ms in enumerate(durations_ms, len(made) + 1):
            made.append(records.step(ms, step=place, window=number, begin_ns=at))
            at += round(ms * MS)
    return records.rank(made, windows, device="cuda:0")


PLAIN = [10.0] * 20


@pytest.mark.parametrize("places", [(0,), (7,), (15,), (18,), (3, 15)])
def test_what_makes_a_window_of_a_gpu_slow_is_its_slow_steps_alone(places: tuple[int, ...]) -> None:
    slow = [100.0 if place in places else 10.0 for place in range(20)]
    for windows in ([slow], [slow, slow], [slow, PLAIN, PLAIN]):
        found = slow_steps(in_step(*windows))
        first = windows.count(slow)
        assert [one.step.step for one in found] == [20 * n + place + 1 for n in range(first) for place in places]
        assert {one.usual_ns for one in found} == {10 * MS}


def test_the_last_step_of_a_window_is_told_where_others_show_what_is_usual() -> None:
    (found,) = slow_steps(in_step(PLAIN, PLAIN, [*PLAIN[1:], 100.0]))
    assert (found.step.step, found.usual_ns) == (60, 10 * MS)
    # The host may have waited for the device's other steps.
    assert numbers(in_step([*PLAIN[1:], 100.0])) == []
