from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from itertools import chain, count, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.spec import LoaderSetting, Recording
from dpdoctor.worker.base.director import (
    FULL,
    LEAST_ROUNDS,
    LEAST_STEPS,
    LEAST_WINDOW_S,
    MOST_SKIPPED,
    Director,
    Facts,
    Segment,
)

PROFILED_STEP_COST = 20
MOST_SEGMENTS = 100_000


def plan(
    recording: Recording,
    steps_s: Iterator[float],
    *,
    ablations: tuple[str, ...] = (FULL,),
    prefetch: int = 0,
    num_workers: int = 0,
    period: int = 1,
    num_kept: int = 0,
    changed: Callable[[int], bool] = lambda _: False,
    unfit: Callable[[int], tuple[str, ...]] = lambda _: (),
    factor: Callable[[str], float] = lambda _: 1.0,
    profiled: float = PROFILED_STEP_COST,
    lost_s: Callable[[int], float] = lambda _: 0.0,
) -> tuple[list[Segment], Director]:
    """Return every segment of a run whose steps last so long, in an ablation `factor` times as long.

    `changed` says in which segments the reference does, `unfit` which ablations cannot run after one, `lost_s` what was
    waited in vain in one.
    """
    director, elapsed_s, segments = Director(recording, ablations, seed=0, num_kept=num_kept), 0.0, []
    in_vain_s = 0.0
    segment = director.first()
    while segment.kind not in ("stop", "over"):
        segments.append(segment)
        cost = profiled if segment.kind in ("proof", "trace") else factor(segment.ablation)
        times = [cost * next(steps_s) for _ in range(segment.skip + segment.num_steps)]
        elapsed_s += sum(times[len(segments) == 1 :])  # the first step sets up much, and does not count
        in_vain_s += lost_s(len(segments))
        facts = Facts(
            step_s=statistics.median(times[segment.skip :]),
            prefetch=prefetch,
            elapsed_s=elapsed_s + in_vain_s,
            lost_s=in_vain_s,
            num_workers=num_workers,
            period=period,
            unfit=unfit(len(segments)),
            reference_changed=segment.kind == "warmup" and changed(len(segments)),
        )
        segment = director.after(segment, facts)
        assert len(segments) < MOST_SEGMENTS, "no end"
    return segments, director


def kinds(segments: list[Segment]) -> list[str]:
    return [kind for kind, before in zip(of(segments), ["", *of(segments)], strict=False) if kind != before]


def of(segments: list[Segment]) -> list[str]:
    return [segment.kind for segment in segments]


def measured(segments: list[Segment]) -> list[Segment]:
    return [segment for segment in segments if segment.kind == "measure"]


def test_fast_steps_give_windows_that_are_long_enough() -> None:
    segments, director = plan(Recording(), repeat(0.001))
    assert kinds(segments) == ["warmup", "proof", "measure", "trace"]
    assert director.steady is True
    assert [w.num_steps for w in measured(segments)] == [500] * 10
    assert [w.round for w in measured(segments)] == list(range(1, 11))
    assert segments[-1].num_steps == 12


@pytest.mark.parametrize(
    ("step_s", "steps", "trace", "way"),
    [
        (2.0, [4, 4, 4], 2, False),
        (3.0, [4, 4, 4], 2, False),
        (5.0, [3, 2], 2, True),
        (7.0, [3], 1, True),
        (12.0, [3], 0, True),
        (17.0, [1], 0, True),
    ],
)
def test_where_steps_are_slow_windows_give_way_to_the_trace(
    step_s: float, steps: list[int], trace: int, way: bool
) -> None:
    segments, director = plan(Recording(time_budget_s=60), repeat(step_s), profiled=1.5)
    assert [w.num_steps for w in measured(segments)] == steps
    assert sum(s.num_steps for s in segments if s.kind == "trace") == trace
    assert bool(director.given_way) == way
    if way:
        assert f"{len(steps)} window" in (director.given_way or "")


@pytest.mark.parametrize("ablations", [(FULL,), (FULL, "first", "second")])
@pytest.mark.parametrize("budget_s", [12.0, 60.0])
@pytest.mark.parametrize("profiled", [1.0, 2.0])
@pytest.mark.parametrize(
    "steps",
    [
        (2.0, 0.0, 1),
        (0.001, 5.0, 3),
        (0.05, 5.0, 3),
        (0.0, 3.0, 1),
        (0.001, 2.0, 20),
        (0.01, 4.0, 50),
        (0.3, 2.0, 10),
        (0.5, 0.0, 1),
    ],
)
def test_the_budget_is_kept_whatever_the_script_does_between_its_steps(
    steps: tuple[float, float, int], profiled: float, budget_s: float, ablations: tuple[str, ...]
) -> None:
    (usual_s, lump_s, every), taken = steps, []

    def lasting() -> Iterator[float]:
        for number in count(1):
            taken.append(usual_s + (lump_s if number % every == 0 else 0.0))
            yield taken[-1]

    _, director = plan(Recording(time_budget_s=budget_s), lasting(), ablations=ablations, profiled=profiled)
    assert sum(taken[1:]) <= 1.5 * budget_s
    assert director.num_windows >= 1


@pytest.mark.parametrize("lost_s", [0.0, 5.0, 40.0])
def test_what_an_ablation_waits_in_vain_costs_no_trace_and_is_no_time_of_a_step(lost_s: float) -> None:
    lost: dict[int, float] = {}

    def in_the_fourth_window(number: int) -> float:
        return lost.setdefault(number, lost_s if len(lost) == 8 else 0.0)

    segments, director = plan(
        Recording(time_budget_s=60), repeat(0.016), ablations=(FULL, "waits"), profiled=1.0, lost_s=in_the_fourth_window
    )
    assert sum(lost.values()) == lost_s
    assert segments[-1].kind == "trace"
    assert director.given_way is None
    assert director._pace_s() == pytest.approx(0.016)


def test_where_not_even_one_window_fits_there_is_none() -> None:
    segments, director = plan(Recording(time_budget_s=12), repeat(15.0))
    assert [s.skip + s.num_steps for s in segments] == [2], "not even the proof"
    assert director.num_windows == 0
    segments, director = plan(Recording(time_budget_s=12), chain([1, 1, 1, 1], repeat(15.0)))
    assert kinds(segments) == ["warmup", "proof"]
    assert director.num_windows == 0


def test_a_budget_that_is_enough_is_what_is_advised() -> None:
    _, director = plan(Recording(time_budget_s=12), repeat(2.0), profiled=2.0)
    advised = float((director.given_way or "").rpartition(" ")[2])
    segments, director = plan(Recording(time_budget_s=advised), repeat(2.0), profiled=2.0)
    assert director.given_way is None
    assert [w.num_steps for w in measured(segments)][:3] == [LEAST_STEPS] * 3


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_window_of_as_many_steps_as_were_asked_for_is_measured_whatever_it_takes(rounds: int) -> None:
    segments, _ = plan(Recording(time_budget_s=12, steps=30, rounds=rounds), repeat(1.0))
    assert [w.num_steps for w in measured(segments)] == [30]


def test_one_look_at_very_slow_steps_says_nothing_of_steadiness() -> None:
    _, director = plan(Recording(time_budget_s=60), repeat(60.0))
    assert director.steady is None


def test_steps_that_never_become_steady_are_measured_all_the_same() -> None:
    segments, director = plan(Recording(time_budget_s=60), (0.01 * 1.02**i for i in count()))
    assert director.steady is False
    assert kinds(segments) == ["warmup", "proof", "measure", "trace"]


def test_warm_up_waits_for_steps_to_become_alike() -> None:
    falling = (0.1 / (i + 1) for i in range(40))
    segments, director = plan(Recording(), chain(falling, repeat(0.002)))
    assert director.steady is True
    assert sum(s.num_steps for s in segments if s.kind == "warmup") > 40


def test_a_warm_up_of_so_many_steps_is_taken_at_its_word() -> None:
    segments, director = plan(Recording(warmup=7), repeat(0.1))
    assert [s.num_steps for s in segments if s.kind == "warmup"] == [7]
    assert director.steady is None


def test_explain_takes_two_steps_and_stops() -> None:
    segments, _ = plan(Recording(explain=True), repeat(0.1))
    assert [(s.kind, s.num_steps) for s in segments] == [("warmup", 1), ("proof", 1)]


def test_for_the_trace_alone_nothing_is_measured() -> None:
    segments, _ = plan(Recording(trace_only=True, warmup=5, trace_steps=7), repeat(0.01))
    assert [(s.kind, s.num_steps) for s in segments] == [("warmup", 5), ("proof", 1), ("trace", 7)]


def test_no_trace_when_none_is_wanted() -> None:
    segments, _ = plan(Recording(trace_steps=0), repeat(0.1))
    assert kinds(segments) == ["warmup", "proof", "measure"]


def test_the_budget_limits_the_rounds() -> None:
    segments, _ = plan(Recording(rounds=1000, time_budget_s=20), repeat(0.01))
    seconds = sum((w.skip + w.num_steps) * 0.01 for w in measured(segments))
    assert 10 < seconds < 20


def test_windows_are_sized_by_ordinary_steps_and_not_by_the_profiled_one() -> None:
    segments, _ = plan(Recording(), repeat(0.01))
    sizes = [w.num_steps for w in measured(segments)]
    assert sizes[0] == 50
    assert len(set(sizes)) == 1


def test_a_new_reference_begins_warm_up_anew() -> None:
    plain, _ = plan(Recording(), repeat(0.01))
    changed, director = plan(Recording(), repeat(0.01), changed=lambda number: number == 2)
    assert director.steady is True
    assert of(changed).count("warmup") >= of(plain).count("warmup")


def test_a_reference_that_changes_all_the_time_does_not_keep_the_script_in_warm_up() -> None:
    segments, director = plan(Recording(time_budget_s=10), repeat(0.05), changed=lambda _: True)
    assert kinds(segments) == ["warmup", "proof", "measure", "trace"]
    assert director.steady is None


def test_after_the_proof_the_full_queue_of_the_loader_is_trained_away() -> None:
    segments, _ = plan(Recording(), repeat(0.1), prefetch=8)
    assert [w.skip for w in measured(segments)] == [17] + [1] * (len(measured(segments)) - 1)
    segments, _ = plan(Recording(), repeat(0.1), prefetch=1000)
    assert measured(segments)[0].skip == MOST_SKIPPED


@pytest.mark.parametrize("num_ablations", [1, 3])
def test_every_round_has_each_ablation_once_in_changing_order(num_ablations: int) -> None:
    ablations = (FULL, "cached_batches", "no_comm")[:num_ablations]
    segments, _ = plan(Recording(rounds=20), repeat(0.01), ablations=ablations)
    rounds = [[w.ablation for w in measured(segments) if w.round == number] for number in range(1, 21)]
    assert all(sorted(found) == sorted(ablations) for found in rounds)
    assert len({tuple(found) for found in rounds}) > (1 if num_ablations > 1 else 0)


ALL = (FULL, "first", "second", "third")


def test_the_first_window_is_a_full_one_because_batches_are_kept_before_it() -> None:
    for num_kept, skip in ((0, 1), (8, 9)):
        segments, _ = plan(Recording(), repeat(0.01), ablations=ALL, num_kept=num_kept)
        assert (measured(segments)[0].ablation, measured(segments)[0].skip) == (FULL, skip)
        assert {w.skip for w in measured(segments)[1:]} == {1}


def test_the_queue_of_a_setting_that_is_tried_fills_before_its_steps_count() -> None:
    ablations = (FULL, "tried")
    for workers, skip in ((3, 1 + 3 * 2), (1000, MOST_SKIPPED)):
        setting = LoaderSetting(num_workers=workers, prefetch_factor=2)
        segments, _ = plan(Recording(loader_setting=setting), repeat(0.01), ablations=ablations)
        assert {(w.ablation, w.skip) for w in measured(segments)} == {(FULL, 1), ("tried", skip)}


def test_where_steps_are_slow_fewer_batches_are_kept() -> None:
    segments, _ = plan(Recording(time_budget_s=600), repeat(5.0), ablations=ALL, num_kept=8)
    assert measured(segments)[0].skip == 1 + 3
    segments, _ = plan(Recording(), repeat(0.5), ablations=(FULL,), num_kept=8)
    assert measured(segments)[0].skip == 1, "nothing is replayed"


@pytest.mark.parametrize(("budget_s", "kept"), [(74, 0), (75, 1), (90, 2), (105, 3), (600, 3)])
def test_ablations_that_do_not_fit_the_budget_are_dropped_from_the_last_on(budget_s: float, kept: int) -> None:
    segments, director = plan(Recording(time_budget_s=budget_s, trace_steps=5), repeat(1.0), ablations=ALL)
    ablations = [w.ablation for w in measured(segments)]
    assert set(ablations) == set(ALL[: 1 + kept])
    assert director.dropped == ALL[1 + kept :]
    assert all(ablations.count(ablation) >= LEAST_ROUNDS for ablation in ablations)


def test_an_ablation_that_turns_out_slow_is_dropped_before_it_costs_the_budget() -> None:
    segments, director = plan(
        Recording(time_budget_s=60),
        repeat(0.1),
        ablations=ALL,
        factor=lambda ablation: {"first": 50.0, "third": 0.5}.get(ablation, 1.0),
    )
    ablations = [w.ablation for w in measured(segments)]
    assert director.dropped == ("first",)
    assert ablations.count("first") == 1
    assert min(ablations.count(ablation) for ablation in (FULL, "second", "third")) >= LEAST_ROUNDS


def test_an_ablation_that_cannot_run_is_not_planned_and_one_that_fails_is_planned_no_more() -> None:
    segments, director = plan(
        Recording(rounds=5),
        repeat(0.01),
        ablations=ALL,
        unfit=lambda done: ("first", "second") if done > 12 else ("first",),
    )
    ablations = [w.ablation for w in measured(segments)]
    assert "first" not in ablations
    assert 0 < ablations.count("second") < ablations.count("third") == ablations.count(FULL) == 5
    assert director.dropped == ()


def test_each_ablation_has_windows_as_long_as_its_own_steps_need() -> None:
    segments, _ = plan(
        Recording(rounds=3), repeat(0.01), ablations=ALL, factor=lambda ablation: {"first": 0.1}.get(ablation, 1.0)
    )
    lengths = [[w.num_steps for w in measured(segments) if w.ablation == ablation] for ablation in (FULL, "first")]
    assert lengths == [[50, 50, 50], [50, 500, 500]]


@pytest.mark.parametrize(("num_workers", "num_steps"), [(0, 5), (1, 5), (2, 6), (3, 6), (4, 8), (5, 5), (6, 5)])
def test_a_window_holds_whole_turns_of_the_workers(num_workers: int, num_steps: int) -> None:
    segments, _ = plan(Recording(), repeat(0.1), num_workers=num_workers)
    assert {w.num_steps for w in measured(segments)} == {num_steps}


@pytest.mark.parametrize(
    ("step_s", "period", "lengths"), [(0.1, 8, [8, 8, 8]), (0.2, 16, [16]), (0.3, 8, [8]), (0.5, 20, [2])]
)
def test_windows_for_which_time_runs_out_hold_whole_turns_of_what_ranks_exchange(
    step_s: float, period: int, lengths: list[int]
) -> None:
    segments, _ = plan(Recording(time_budget_s=10, rounds=3), repeat(step_s), period=period)
    assert [w.num_steps for w in measured(segments)] == lengths


recordings = st.builds(
    Recording,
    warmup=st.none() | st.integers(1, 50),
    steps=st.none() | st.integers(1, 50),
    rounds=st.integers(1, 30),
    time_budget_s=st.floats(0.01, 100),
    trace_steps=st.integers(0, 9),
    explain=st.booleans(),
)


@given(recordings, st.lists(st.floats(1e-3, 10), min_size=1, max_size=30), st.integers(0, 40), st.booleans())
def test_every_plan_ends_and_keeps_its_order(
    recording: Recording, times: list[float], prefetch: int, reference_changes: bool
) -> None:
    forever = (times[i % len(times)] for i in count())
    segments, director = plan(recording, forever, prefetch=prefetch, changed=lambda n: reference_changes and n % 2 == 0)
    order, windows = kinds(segments), measured(segments)
    assert of(segments).count("proof") == (len(order) > 1)
    if recording.explain:
        assert order == ["warmup", "proof"]
        return
    assert ["warmup", "proof", "measure", "trace"][: len(order)] == order
    assert (len(order) <= 2) <= (recording.steps is None), "a window of so many steps is the word of the user"
    assert ("trace" in order) <= bool(recording.trace_steps)
    assert len(windows) <= recording.rounds
    gives_way = min(recording.rounds, LEAST_ROUNDS) > len(windows) or ("trace" in order) < bool(recording.trace_steps)
    assert bool(director.given_way) == (gives_way and bool(windows))
    if director.given_way:
        assert float(director.given_way.rpartition(" ")[2]) > recording.time_budget_s
    assert all(window.skip >= 1 for window in windows)
    if recording.steps:
        assert {window.num_steps for window in windows} == {recording.steps}
    elif sum(times) < 0.01 * recording.time_budget_s:
        assert all(w.num_steps >= max(LEAST_STEPS, LEAST_WINDOW_S / max(times)) for w in windows)
    if "trace" in order:
        assert segments[-1].skip == 1
        assert 1 <= segments[-1].num_steps <= recording.trace_steps
