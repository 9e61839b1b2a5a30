from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import CrossCheck, Figure, Finding, LoaderSummary, ModeFacts, SlowFetches
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.summary import AblationSummary, LoaderTrial, TransformSummary
from dpdoctor.analysis.loader.trial import after_trial
from dpdoctor.loading import FRESH_WORKERS, PAST_ITER
from dpdoctor.records import CpuUse, Rank
from dpdoctor.rules import CannotTell
from dpdoctor.rules.data_starved import RULE
from dpdoctor.spec import ONE_WORKER, LoaderSetting
from tests.builders import cases, feeding, records, traced_cases
from tests.builders.cases import Case

AFFINE = TransformSummary(name="RandomAffine", per_batch=cases.figure(0.02), share=0.49)
BUSY = CpuUse(cpu_s=1.0, workers_cpu_s=1.0, wall_s=1.0, involuntary_switches=5, num_threads=4)


def waiting(
    share: float, ablation: float | None = None, loader: LoaderSummary | None = None, of: Sequence[Rank] | None = None
) -> Case:
    """Return a step of 100 ms that waits for data for this share of it; the ablation gains that share."""
    ablations = {} if ablation is None else {"cached_batches": cases.ablation(ablation, 0.001)}
    return cases.case(phases_s={"data_wait": share * cases.STEP_S}, ablations=ablations, loader=loader, of=of)


def with_workers(**fields: object) -> LoaderSummary:
    """Return a loader of two workers with two batches ahead each."""
    return cases.loader(num_workers=2, prefetch_factor=2, **fields)


def beginning(
    every: int, seconds: float, of_epoch: int | None = None, elsewhere_s: float = 0.0, loader: int = 0
) -> list[Rank]:
    """Return steps of 100 ms; every so many-th begins to iterate a loader, waits for it and evaluates before."""
    steps = [
        records.step(
            1000 * (0.1 + (number % every == 0) * (seconds + elsewhere_s)),
            window=1 + number // 8,
            epoch_edge=number % every == 0,
            phases_ms={"data_wait": 1000 * (number % every == 0) * (seconds + elsewhere_s), "forward": 100},
        )
        for number in range(16)
    ]
    windows = [
        records.window(0, window=w, begin_ns=0, end_ns=sum(s.duration_ns for s in steps if s.window == w))
        for w in (1, 2)
    ]
    rank = cases.laid_out(records.rank(steps, windows, steps_per_epoch=of_epoch, conversion=cases.conversion()))
    edges = [step for step in rank.steps if step.epoch_edge]
    one = cases.eventful(rank, "iterator", 16, seconds, str(loader)).events[0]
    events = [replace(one, at_ns=step.begin_ns, step=step.step) for step in edges]
    batches = [
        feeding.batch(step.step, asked=0, wait=0, iteration=step.step // every, batch=step.step % every)
        for step in rank.steps
    ]
    rank = replace(rank, events=tuple(events), batches=tuple(batches))
    if not elsewhere_s:
        return [rank]
    one = cases.eventful(rank, "evaluation", 16, elsewhere_s).events[-1]
    evaluations = [replace(one, at_ns=step.begin_ns, step=step.step) for step in edges]
    return [replace(rank, events=(*rank.events, *evaluations))]


def reading(num_batches: int, of: Sequence[Rank], loader: LoaderSummary | None = None) -> Case:
    """Return steps that wait for nothing but beginnings of a loader, which has so many batches."""
    conversion = cases.conversion(num_batches=num_batches)
    return cases.case(phases_s={"data_wait": 0.0}, loader=loader or cases.loader(), of=of, conversion=conversion)


FETCH = cases.figure(0.001, 0.0001)
FIRES = {
    "by the clock": waiting(0.4),
    "by the ablation": waiting(0.4, 0.38),
    "only by the clock": waiting(0.4, 0.0),
    "not by the clock, but the ablation": waiting(0.01, 0.2, loader=with_workers()),
    "processes started anew": waiting(0.0, loader=with_workers(), of=beginning(4, 0.3)),
    "at the end of each epoch": waiting(0.0, loader=cases.loader(), of=beginning(16, 3.0, of_epoch=50)),
}
SILENT = {
    "a healthy one": waiting(0.02, 0.01),
    "no wait": waiting(0.0),
    "a gain that no wait explains, where nothing runs beside": waiting(0.01, 0.5, loader=cases.loader(fetch=FETCH)),
    "short beginnings": waiting(0.0, loader=cases.loader(), of=beginning(4, 0.01)),
    "an epoch of unknown length": waiting(0.0, loader=cases.loader(), of=beginning(16, 3.0)),
    "an evaluation's own wait": waiting(0.0, loader=cases.loader(), of=beginning(4, 0.0, elsewhere_s=0.3)),
    "another loader's beginnings": waiting(0.0, loader=cases.loader(), of=beginning(4, 0.3, loader=1)),
}


def test_the_ablations_share_is_the_cost() -> None:
    found = RULE.check(FIRES["by the ablation"])
    assert (found.status, found.cost.value, found.severity) == ("confirmed", 0.38, "critical")
    assert found.speedup.value == pytest.approx(1 / 0.62)
    assert RULE.check(FIRES["by the clock"]).status == "inferred"


@pytest.mark.parametrize(
    ("loader", "cost", "most"),
    [
        (cases.loader(), 0.2, 1 / 0.8),  # the training thread waits for all of it
        (cases.loader(fetch=cases.figure(0.3, 0.001)), 0.5, 1 / 0.45),  # a thread of the script's fetches
        (with_workers(), 0.5, 1 / 0.45),
        (None, 0.5, 1 / 0.45),
    ],
)
def test_what_is_gained_beside_the_wait_is_the_loaders_only_where_it_runs_beside_training(
    loader: LoaderSummary | None, cost: float, most: float
) -> None:
    found = RULE.check(waiting(0.2, 0.5, loader=loader))
    assert (found.status, found.cost.value) == ("confirmed", pytest.approx(cost))
    assert found.speedup is None or found.speedup.high <= most * 1.01
    told = " ".join(found.evidence)
    assert "a step takes 50.0 ms (50%) less" in told


@pytest.mark.parametrize(
    ("clock", "of_ablation", "cost"),
    [
        (0.002, 0.05, 0.40),  # the clock knows it better
        (0.05, 0.002, 0.42),  # the ablation does
        (None, 0.05, 0.42),  # the clock has no interval
    ],
)
def test_where_clock_and_ablation_agree_the_more_exact_is_the_cost(
    clock: float | None, of_ablation: float, cost: float
) -> None:
    seen, ablation = cases.figure(0.40, clock or 0.0, "ratio"), cases.ablation(0.42, of_ablation)
    seen = seen if clock is not None else replace(seen, low=None, high=None)
    check = CrossCheck(
        what="waiting", ablation="cached_batches", observed=seen, gain=ablation.share, agrees=True, tolerance=0.05
    )
    found = RULE.check(cases.case(ablations={"cached_batches": ablation}, cross_checks=(check,)))
    assert (found.status, found.cost.value) == ("confirmed", pytest.approx(cost))


def test_where_they_disagree_the_gain_is_the_cost() -> None:
    seen, ablation = cases.figure(0.20, 0.002, "ratio"), cases.ablation(0.42, 0.05)
    check = CrossCheck(
        what="waiting", ablation="cached_batches", observed=seen, gain=ablation.share, agrees=False, tolerance=0.05
    )
    assert RULE.check(cases.case(ablations={"cached_batches": ablation}, cross_checks=(check,))).cost.value == 0.42


def test_what_gains_nothing_is_not_recommended() -> None:
    found = RULE.check(FIRES["only by the clock"])
    assert (found.status, found.remedy, found.severity) == ("refuted", None, "info")


def test_the_number_to_set_is_named_with_what_it_gives() -> None:
    predictions = (cases.prediction(1, 0.07, 0.01), cases.prediction(3, 0.061, 0.001, 4))
    loader = cases.loader(predictions=predictions, advice=predictions[1], transforms=(AFFINE,))
    found = RULE.check(waiting(0.4, 0.39, loader))
    assert found.code == "DataLoader(..., num_workers=3, prefetch_factor=4, persistent_workers=True)"
    assert found.speedup.value == pytest.approx(0.1 / 0.061)
    assert "num_workers=0" in found.cause
    assert found.line == "train.py:30"
    assert found.short_remedy == "set num_workers=3, prefetch_factor=4, persistent_workers=True"
    assert any("RandomAffine" in line and "49%" in line for line in found.evidence)


@pytest.mark.parametrize(("best_s", "is_measured"), [(0.070, True), (0.068, True), (0.060, False)])
def test_the_gain_of_one_worker_is_the_measured_one(best_s: float, is_measured: bool) -> None:
    predictions = (cases.prediction(1, 0.0705, 0.01), cases.prediction(1, best_s, 0.01, 4))
    loader = cases.loader(predictions=predictions, advice=predictions[1])
    ablations = {"cached_batches": cases.ablation(0.39, 0.001), "one_worker": cases.ablation(0.295, 0.001)}
    found = RULE.check(cases.case(phases_s={"data_wait": 0.4 * cases.STEP_S}, ablations=ablations, loader=loader))
    assert found.speedup_basis == ("measured" if is_measured else "predicted")
    assert found.speedup.value == pytest.approx(1 / 0.705 if is_measured else 0.1 / best_s)
    assert ("prefetch_factor" in found.code) is not is_measured


def test_the_gain_of_a_setting_that_was_tried_is_the_measured_one() -> None:
    prediction = cases.prediction(2, 0.05, 0.01, 4)
    speedup = cases.figure(1.4, 0.1, unit="x")
    trial = LoaderTrial(setting=LoaderSetting(num_workers=2, prefetch_factor=4), speedup=speedup)
    found = RULE.check(waiting(0.4, 0.39, cases.loader(predictions=(prediction,), advice=prediction, trial=trial)))
    assert (found.speedup.value, found.speedup_basis) == (speedup.value, "measured")
    # In another launch they may compare otherwise by more than this one's windows say.
    assert (found.speedup.low, found.speedup.high) == pytest.approx((1.278, 1.522), abs=1e-3)
    assert any("was tried" in text and "1.40x (1.30–1.50)" in text for text in found.evidence)
    assert found.code == "DataLoader(..., num_workers=2, prefetch_factor=4, persistent_workers=True)"


def test_a_setting_that_was_tried_and_not_simulated_has_its_measured_gain() -> None:
    trial = LoaderTrial(setting=ONE_WORKER, speedup=cases.figure(1.4, 0.1, unit="x"))
    advice, reason = after_trial(None, trial, ())
    loader = cases.loader(advice=advice, advice_reason=reason, trial=trial)
    found = RULE.check(waiting(0.4, 0.39, loader))
    assert (found.speedup.value, found.speedup_basis) == (1.4, "measured")
    assert found.code == "DataLoader(..., num_workers=1, persistent_workers=True)"
    assert sum("was tried" in text for text in found.evidence) == 1


@pytest.mark.parametrize(
    ("interval", "told"),
    [
        ((0.89, 1.49), "num_workers=1 is not measurably faster: measured 1.19x (0.890–1.49)"),
        ((0.89, None), "num_workers=1 is not measurably faster: measured 1.19x (at least 0.890x)"),
        ((None, None), "whether num_workers=1 helps could not be told: measured 1.19x, without an interval"),
    ],
)
def test_what_is_not_measurably_faster_is_told_with_its_interval(interval: tuple, told: str) -> None:
    speedup = Figure(value=1.19, low=interval[0], high=interval[1], n=3, unit="x")
    loader = cases.loader(transforms=(AFFINE,), trial=LoaderTrial(setting=ONE_WORKER, speedup=speedup))
    short = RULE.check(waiting(0.4, 0.39, loader)).short_remedy
    assert short.endswith(f"; {told}")


def test_of_a_worker_that_had_no_core_to_itself_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModeFacts, "taken_from_a_worker", "other processes used 0.90 of 2 cores")
    speedup = Figure(value=0.89, low=0.82, high=0.95, n=3, unit="x")
    loader = cases.loader(transforms=(AFFINE,), trial=LoaderTrial(setting=ONE_WORKER, speedup=speedup))
    short = RULE.check(waiting(0.4, 0.39, loader)).short_remedy
    told = "while other processes used 0.90 of 2 cores, which its worker would have had"
    assert short.endswith(f"; num_workers=1 is slower: measured 0.890x (0.820–0.950) {told}")


def test_what_a_cheaper_transform_gives_is_an_upper_bound() -> None:
    assert RULE.check(waiting(0.4, 0.39, cases.loader(transforms=(AFFINE,)))).speedup_basis == "at most"


def test_of_clock_and_ablation_the_one_that_leaves_more_room_is_the_bound() -> None:
    seen, ablation = cases.figure(0.40, 0.002, "ratio"), cases.ablation(0.42, 0.05)
    check = CrossCheck(
        what="waiting", ablation="cached_batches", observed=seen, gain=ablation.share, agrees=True, tolerance=0.05
    )
    loader = cases.loader(transforms=(AFFINE,))
    found = RULE.check(cases.case(ablations={"cached_batches": ablation}, cross_checks=(check,), loader=loader))
    assert (found.cost.value, found.speedup_basis) == (0.40, "at most")
    assert found.speedup.value == pytest.approx(1 / (1 - 0.49 * 0.42))
    # What is left of a fetch may be faster without the transform, too: by a half at most.
    assert found.speedup.high == pytest.approx(1 / (1 - (0.49 + 0.51 / 2) * 0.47))


@pytest.mark.parametrize(
    ("clock", "ablation", "most"),
    [
        (0.28, cases.ablation(0.39, 0.37), 0.39 + 0.05),  # it is something, but hardly known how much
        (0.13, cases.ablation(0.19, 0.60), 0.13 + 0.002),  # it may be nothing
    ],
)
def test_an_ablation_that_is_hardly_known_makes_no_bound_that_nothing_measured(
    clock: float, ablation: AblationSummary, most: float
) -> None:
    seen = cases.figure(clock, 0.002, "ratio")
    check = CrossCheck(
        what="waiting", ablation="cached_batches", observed=seen, gain=ablation.share, agrees=True, tolerance=0.05
    )
    found = RULE.check(cases.case(ablations={"cached_batches": ablation}, cross_checks=(check,)))
    assert (found.cost, found.speedup_basis) == (seen, "at most")
    assert found.speedup.high == pytest.approx(1 / (1 - most))


def test_an_argument_is_changed_where_the_loader_is_built_and_a_loop_where_it_is_iterated() -> None:
    loader = with_workers(built_at="train.py:12")
    assert RULE.check(waiting(0.4, 0.39, loader)).line == "train.py:12"
    every_step = waiting(0.4, 0.39, loader, beginning(1, 0.04))
    assert RULE.check(every_step).line == "train.py:30"


def test_a_fetch_that_does_not_compute_waits_for_something() -> None:
    predictions = (cases.prediction(4, 0.061, 0.001),)
    loader = cases.loader(predictions=predictions, cpu_ratio=cases.figure(0.05, 0.01, "ratio"))
    found = RULE.check(waiting(0.4, 0.39, loader))
    assert "disk" in found.cause
    assert "95%" in found.cause
    assert "in memory" in found.remedy


def test_single_slow_batches_hold_up_the_others() -> None:
    predictions = (cases.prediction(2, 0.063, 0.003, 8), cases.prediction(4, 0.061, 0.001, 2))
    loader = with_workers(predictions=predictions, advice=predictions[0], fetch_cv=2.0)
    found = RULE.check(waiting(0.4, 0.39, loader))
    assert "slow batches" in found.cause
    assert "prefetch_factor=8" in found.code
    assert "num_workers" not in found.code


def stalling(step_s: float, **fields: object) -> LoaderSummary:
    """Return a loader of which 9 of 144 fetches are slow, and without them a step takes so long."""
    slow = SlowFetches(
        count=9, total=144, seconds=0.4, usual_seconds=0.04, cpu_ratio=0.05, step=cases.figure(step_s, step_s / 50)
    )
    return with_workers(slow_fetches=slow, transforms=(AFFINE,), advice_reason="no setting is faster", **fields)


def test_slow_batches_that_no_setting_hides_are_the_cause_and_what_to_look_at() -> None:
    found = RULE.check(waiting(0.4, 0.39, stalling(0.063)))
    assert "9 of 144" in found.cause
    assert re.findall(r"[\d.]+(?: ms|%)", found.cause) == ["400 ms", "95%", "40.0 ms"]
    assert any(found.cause in line for line in found.evidence)
    assert found.short_remedy == "find why single fetches are slow"
    assert found.speedup.value == pytest.approx(0.1 / 0.063)


@pytest.mark.parametrize(("half_s", "by_cost"), [(0.031, False), (0.055, True)])
def test_what_slow_batches_may_gain_or_not_is_bound_by_the_simulation_or_by_the_cost(
    half_s: float, *, by_cost: bool
) -> None:
    slow = stalling(0.07)
    assert slow.slow_fetches is not None
    without = cases.figure(0.07, half_s)
    found = RULE.check(waiting(0.65, 0.65, replace(slow, slow_fetches=replace(slow.slow_fetches, step=without))))
    assert (found.short_remedy, found.speedup_basis) == ("find why single fetches are slow", "at most")
    simulated = stats.ratio(cases.figure(0.1), without, "x").high
    assert found.speedup.high == pytest.approx(1 / 0.35 if by_cost else simulated, rel=0.02)
    assert (simulated < 1 / 0.35) is not by_cost


def test_slow_batches_are_no_cause_where_others_took_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModeFacts, "others", "other processes used 1.6 of 2 cores")
    found = RULE.check(waiting(0.4, 0.39, stalling(0.063)))
    assert "9 of 144" not in (found.cause or "")
    assert "RandomAffine" in found.short_remedy


def test_slow_batches_that_cost_little_are_no_advice() -> None:
    found = RULE.check(waiting(0.4, 0.39, stalling(0.095)))
    assert "9 of 144" not in (found.cause or "")
    assert "RandomAffine" in found.short_remedy


def test_a_setting_that_hides_slow_batches_comes_first() -> None:
    predictions = (cases.prediction(2, 0.063, 0.003, 8),)
    found = RULE.check(waiting(0.4, 0.39, stalling(0.063, predictions=predictions, advice=predictions[0])))
    assert "prefetch_factor=8" in found.code


@pytest.mark.parametrize(
    ("is_kept", "arguments"),
    [
        (False, "num_workers=0, prefetch_factor=None"),
        (True, "num_workers=0, prefetch_factor=None, persistent_workers=False"),
    ],
)
def test_no_workers_are_advised_without_the_arguments_of_workers(is_kept: bool, arguments: str) -> None:
    none = cases.prediction(0, 0.063, 0.003)
    found = RULE.check(waiting(0.4, 0.39, with_workers(persistent_workers=is_kept, predictions=(none,), advice=none)))
    assert found.code == f"DataLoader(..., {arguments})"
    handed_over = with_workers(persistent_workers=is_kept, transfer=cases.figure(0.036, 0.001), batch_tensors=2)
    assert f"; then set {arguments}: fetching" in RULE.check(waiting(0.4, 0.39, handed_over)).remedy


def test_taking_over_a_batch_can_be_the_cause() -> None:
    found = RULE.check(waiting(0.4, 0.39, with_workers(transfer=cases.figure(0.036, 0.001))))
    assert re.findall(r"[\d.]+ ms", found.cause) == ["36.0 ms"]
    assert "few tensors" in found.remedy
    assert "fetch" not in found.remedy
    # 36 ms of the 40 ms that training waits.
    assert found.speedup.value == pytest.approx(1 / (1 - 0.9 * 0.4))


def test_what_ends_a_hand_off_is_bound_by_the_wait() -> None:
    # The ablation also shows what the workers slow beside training, which they do as before.
    found = RULE.check(waiting(0.4, 0.64, with_workers(transfer=cases.figure(0.036, 0.001))))
    assert found.speedup_basis == "at most"
    assert found.speedup.value == pytest.approx(1 / (1 - 0.9 * 0.4))


def test_a_batch_of_a_few_tensors_is_not_to_be_fewer() -> None:
    handed_over = {"transfer": cases.figure(0.036, 0.001), "batch_tensors": 2}
    found = RULE.check(waiting(0.4, 0.39, with_workers(**handed_over)))
    # An item takes 38 of the 40 ms of a fetch; without it, fetching takes less than handing over.
    assert found.short_remedy == "make loading an item of Digits cheaper"
    assert "then set num_workers=0" in found.remedy
    assert "36.0 ms" in found.cause
    # In the place of 36 ms for a hand-off, training waits for the 2 ms of the rest.
    assert found.speedup.value == pytest.approx(1 / (1 - 0.9 * 34 / 36 * 0.4))
    # Whatever is cheaper, batches lie ready as before.
    slow = with_workers(**handed_over, fetch=cases.figure(0.4), collate=cases.figure(0.1))
    assert RULE.check(waiting(0.4, 0.39, slow)).remedy is None
    many = RULE.check(waiting(0.4, 0.39, with_workers(**{**handed_over, "batch_tensors": 9})))
    assert many.short_remedy == "let a batch be fewer tensors"


@pytest.mark.parametrize(
    ("cpu", "batch_tensors", "agrees", "cause", "remedy", "gain"),
    [
        # Without its work a step is 64% shorter, of which an item's part goes: what waits for a core goes with it.
        (BUSY, 2, False, "the cores are exhausted", "make loading an item", 1 / (1 - 0.95 * 0.64)),
        (BUSY, 9, False, "taking over a batch", "let a batch be fewer tensors", 1 / (1 - 0.9 * 0.4)),
        (BUSY, 2, True, "taking over a batch", "make loading an item", 1 / (1 - 0.9 * 34 / 36 * 0.4)),
        (None, 2, False, "taking over a batch", "make loading an item", 1 / (1 - 0.9 * 34 / 36 * 0.4)),
    ],
)
def test_a_few_tensors_are_handed_over_late_where_the_loader_takes_the_cores(
    cpu: CpuUse | None, batch_tensors: int, *, agrees: bool, cause: str, remedy: str, gain: float
) -> None:
    loader = with_workers(transfer=cases.figure(0.036, 0.001), batch_tensors=batch_tensors)
    seen, ablation = cases.figure(0.4, 0.02, "ratio"), cases.ablation(0.64, 0.001)
    check = CrossCheck(
        what="waiting", ablation="cached_batches", observed=seen, gain=ablation.share, agrees=agrees, tolerance=0.05
    )
    found = RULE.check(
        cases.case(
            phases_s={"data_wait": 0.4 * cases.STEP_S},
            ablations={"cached_batches": ablation},
            cross_checks=(check,),
            loader=loader,
            of=cases.ranks(cpu=cpu),
        )
    )
    assert found.cause.startswith(cause)
    assert found.short_remedy.startswith(remedy)
    assert found.speedup.value == pytest.approx(gain)


def test_what_is_handed_over_may_be_waited_for_in_no_step() -> None:
    loader = with_workers(transfer=cases.figure(0.036, 0.001), wait=cases.figure(0.0))
    assert RULE.check(waiting(0.4, 0.39, loader)).short_remedy == "make loading an item of Digits cheaper"


def test_fetches_that_mostly_wait_while_others_take_cores_are_not_to_be_cheaper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = cases.loader(cpu_ratio=cases.figure(0.26, 0.01, "ratio"))
    monkeypatch.setattr(ModeFacts, "is_busy", True)
    assert "loading an item" in RULE.check(waiting(0.4, 0.39, loader)).remedy
    monkeypatch.setattr(ModeFacts, "others", "other processes used 1.7 of 2 cores")
    found = RULE.check(waiting(0.4, 0.39, loader))
    assert found.remedy is None
    assert "mostly waits" in found.no_remedy


@pytest.mark.parametrize(("fetch_s", "queued_s", "is_told"), [(0.04, 0.03, True), (0.04, 0.001, False)])
def test_what_waits_to_take_over_while_others_take_cores_is_not_to_fetch_faster(
    fetch_s: float, queued_s: float, *, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModeFacts, "others", "other processes used 1.7 of 2 cores")
    ready = with_workers(ready_batches={0: 0.1, 4: 0.9}, fetch=cases.figure(fetch_s), queued=cases.figure(queued_s))
    found = RULE.check(waiting(0.4, 0.39, ready))
    assert (found.remedy is None) == is_told
    assert ("lie ready" in (found.no_remedy or "")) == is_told
    unseen = replace(ready, fetch=cases.unknown(reason=FRESH_WORKERS), collate=cases.unknown())
    assert RULE.check(waiting(0.4, 0.39, unseen)).no_remedy == FRESH_WORKERS


@pytest.mark.parametrize(
    ("queued_s", "said"),
    [
        (0.03, "40.0 ms each, 30.0 ms of it waiting for a core, 99% of the rest CPU time."),
        (0.001, "40.0 ms each, 99% of it CPU time."),
        (None, "40.0 ms each, 99% of it CPU time."),
    ],
)
def test_cpu_time_is_told_of_what_a_fetch_had_a_core_for(queued_s: float | None, said: str) -> None:
    loader = cases.loader(queued=None if queued_s is None else cases.figure(queued_s))
    assert f"Batches are loaded in the main process: {said}" in RULE.check(waiting(0.4, 0.39, loader)).evidence


def test_where_no_core_is_idle_the_transform_is_to_be_cheaper() -> None:
    reason = "all cores are in use"
    loader = with_workers(transforms=(AFFINE,), advice_reason=reason)
    found = RULE.check(waiting(0.4, 0.39, loader, cases.ranks(cpu=BUSY)))
    assert "cores" in found.cause
    assert re.findall(r"\d+", found.cause) == ["2"]
    assert "RandomAffine" in found.remedy
    assert "RandomAffine" in found.short_remedy
    # Of the 39% that loading costs, RandomAffine is 49%.
    assert found.speedup.value == pytest.approx(1 / (1 - 0.49 * 0.39))
    assert "num_workers" not in found.remedy
    assert any(reason in line for line in found.evidence)


def test_what_a_dataset_does_for_an_item_is_to_be_cheaper_where_neither_transforms_nor_collate_take_as_long() -> None:
    found = RULE.check(waiting(0.4, 0.39, cases.loader()))
    # Of 40 ms collate takes 2.
    assert "loading an item of Digits cheaper, which is 95% of a fetch" in found.remedy
    collate = RULE.check(waiting(0.4, 0.39, cases.loader(collate=cases.figure(0.03))))
    assert "collate" in collate.remedy
    assert collate.short_remedy == "make collate cheaper", "or something that gives less is to be done first"


@pytest.mark.parametrize(
    ("shares", "named", "remedy"),
    [
        ((0.31, 0.29, 0.24), 0.84, "make RandomAffine, ToTensor and Normalize cheaper, which are 84% of a fetch"),
        ((0.2, 0.3, 0.14), 0.5, "make RandomAffine and ToTensor cheaper, which are 50% of a fetch"),
        ((0.7, 0.2, 0.05), 0.7, "make RandomAffine cheaper, which is 70% of a fetch"),
        # What the dataset does beside them takes longer than all.
        ((0.2, 0.15, 0.1), 0.5, "make loading an item of Digits cheaper, which is 50% of a fetch"),
    ],
)
def test_transforms_that_take_about_as_much_are_to_be_cheaper_together(
    shares: tuple[float, ...], named: float, remedy: str
) -> None:
    names = "RandomAffine", "ToTensor", "Normalize"
    chain = tuple(replace(AFFINE, name=name, share=share) for name, share in zip(names, shares, strict=True))
    found = RULE.check(waiting(0.4, 0.39, cases.loader(transforms=chain)))
    assert found.remedy.startswith(remedy)
    assert found.remedy.startswith(found.short_remedy)
    assert found.speedup.value == pytest.approx(1 / (1 - named * 0.39))


def test_why_there_is_no_remedy_is_told_where_a_loader_was_not_seen_from_inside() -> None:
    skipped = {"cached_batches": cases.skipped(PAST_ITER)}
    past = RULE.check(cases.case(phases_s={"data_wait": 0.4 * cases.STEP_S}, ablations=skipped))
    assert (past.remedy, past.no_remedy) == (None, f"{PAST_ITER}: what they do is not seen from inside")
    unknown = cases.unknown(reason=FRESH_WORKERS)
    fresh = with_workers(fetch=unknown, collate=unknown, cpu_ratio=unknown)
    found = RULE.check(waiting(0.4, 0.39, fresh))
    assert (found.remedy, found.no_remedy) == (None, FRESH_WORKERS)
    assert RULE.check(waiting(0.4, 0.39, cases.loader())).no_remedy is None


def test_no_cause_where_none_explains_enough() -> None:
    loader = with_workers(predictions=(cases.prediction(4, 0.08, 0.02, 2),))
    assert RULE.check(waiting(0.4, 0.39, loader)).cause is None


def test_clock_and_ablation_that_disagree_are_both_told() -> None:
    told = {"beside": waiting(0.1, 0.3), "faster": waiting(0.1, 0.3, cases.loader()), "disagree": waiting(0.4, 0.2)}
    for word, case in told.items():
        said = " ".join(RULE.check(case).evidence)
        assert [other for other in told if other in said] == [word]


def test_processes_that_begin_anew_are_to_stay() -> None:
    found = RULE.check(FIRES["processes started anew"])
    assert (found.share_of, found.code) == ("epoch", "DataLoader(..., persistent_workers=True)")
    assert found.cost.value == pytest.approx(0.3 / (0.3 + 4 * 0.1))
    assert RULE.check(FIRES["at the end of each epoch"]).cost.value == pytest.approx(3 / (3 + 50 * 0.1))


def test_a_loader_that_is_built_anew_keeps_no_processes_by_an_option_alone() -> None:
    for persistent in (False, True):
        loader = with_workers(rebuilt=True, persistent_workers=persistent)
        found = RULE.check(waiting(0.06, 0.055, loader, beginning(4, 0.3)))
        assert found.short_remedy == "build the DataLoader once, with persistent_workers=True"
        assert found.remedy.startswith("build the DataLoader once, before the loop over epochs, and keep")
    setting = cases.prediction(3, 0.061, 0.001, 4)
    predicted = with_workers(rebuilt=True, predictions=(setting,), advice=setting)
    assert RULE.check(waiting(0.4, 0.39, predicted)).remedy.startswith("build the DataLoader once")


def test_an_iterator_for_each_step_is_named() -> None:
    (rank,) = beginning(1, 0.04)
    found = RULE.check(waiting(0.4, 0.39, with_workers(), [rank]))
    assert "iterator" in found.cause
    assert found.code == "for batch in loader:"


def test_an_epoch_of_one_batch_is_read_as_it_should_be() -> None:
    short = cases.case(
        phases_s={"data_wait": 0.04},
        loader=cases.loader(fetch=cases.figure(0.004)),
        of=beginning(1, 0.04),
        conversion=cases.conversion(num_batches=1),
    )
    found = RULE.check(short)
    assert "no more batches" in found.cause
    assert found.code is None
    assert "for batch in" not in found.remedy


def test_a_new_iterator_is_no_cause_where_fetching_takes_the_time() -> None:
    found = RULE.check(waiting(0.4, 0.39, cases.loader(transforms=(AFFINE,)), beginning(1, 0.04)))
    assert "RandomAffine" in found.remedy
    assert "begins anew" not in (found.cause or "")


def test_evaluations_in_every_step_begin_no_loader() -> None:
    found = RULE.check(waiting(0.4, 0.39, cases.loader(), beginning(1, 0.04, loader=1)))
    assert "begin" not in (found.cause or "")


def test_a_loader_is_to_be_read_to_its_end_only_where_it_is_not() -> None:
    early, whole = RULE.check(reading(9, beginning(4, 0.3))), RULE.check(reading(4, beginning(4, 0.3)))
    assert "every 4 steps" in whole.title
    assert "to its end" in early.remedy
    assert (whole.remedy, whole.short_remedy, whole.speedup) == (None, None, None)


def test_what_a_beginning_takes_is_the_loaders_own_where_another_begins_too() -> None:
    (rank,) = beginning(4, 0.3)
    other = [replace(event, detail="1") for event in rank.events]
    both = replace(rank, events=(*rank.events, *other))
    assert RULE.check(reading(4, [both])) is None


@pytest.mark.parametrize(("every", "of_epoch", "said"), [(8, 6, 6), (4, 50, 4), (4, None, 4)])
def test_beginnings_are_as_far_apart_as_an_epoch_is_long_or_nearer(every: int, of_epoch: int | None, said: int) -> None:
    found = RULE.check(reading(6, beginning(every, 0.6, of_epoch)))
    assert f"every {said} steps" in found.title


def test_without_clock_and_ablation_it_cannot_tell() -> None:
    case = cases.case(phases={"data_wait": cases.unknown()})
    assert isinstance(RULE.check(case), CannotTell)


def test_a_step_that_no_rank_recorded_is_no_beginning() -> None:
    rank = cases.ranks()[0]
    steps = [replace(step, epoch_edge=False) for step in rank.steps]
    assert RULE.check(waiting(0.0, of=[replace(rank, steps=tuple(steps))])) is None


def test_ranks_that_communicate_lose_what_the_one_that_waits_longest_loses() -> None:
    uneven = (traced_cases.digest(0, compute=60, exposed=40), traced_cases.digest(1, compute=60, idle_by={"data": 40}))
    found = RULE.check(traced_cases.case("ddp", *uneven))
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.4)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1 / 0.6)
