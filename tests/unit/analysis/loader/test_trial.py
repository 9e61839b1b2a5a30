"""Which setting of the loader is tried in a launch of its own, and what is made of what that gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.summary import AblationSummary, LoaderPrediction, LoaderTrial, ModeSummary
from dpdoctor.analysis.loader.trial import (
    TRIED,
    after_ablation,
    after_trial,
    better,
    decides,
    is_faster,
    one_worker,
    to_try,
    trial,
    without_gain,
    words,
)
from dpdoctor.records import AblationRecord, Launch
from dpdoctor.spec import OTHER_SETTING, SEVERAL_LOADERS, LoaderSetting
from tests.builders import cases, records
from tests.builders.cases import figure

SETTING = LoaderSetting(num_workers=2, prefetch_factor=2)
NOW = cases.prediction(0, cases.STEP_S, 0.06)
TWO = cases.prediction(2, 0.06, 0.01, 2)
MORE = cases.prediction(4, 0.0595, 0.01, 2)
UNKNOWN_S = stats.unknown("s", SEVERAL_LOADERS)
SEVERAL = AblationSummary(gain=UNKNOWN_S, share=stats.unknown("ratio", SEVERAL_LOADERS), step=UNKNOWN_S)


def mode(status: str = "ok", ablations: dict[str, Any] | None = None, **loader: Any) -> ModeSummary:
    """Return a mode whose step takes cases.STEP_S."""
    found = cases.case(
        loader=cases.loader(**{"predictions": (NOW, TWO, MORE), **loader}), ablations=ablations or {}
    ).mode
    return replace(found, status=status)


def test_the_fewest_processes_of_the_best_predicted_settings_are_tried() -> None:
    assert to_try({"ddp": mode()}) == {"ddp": SETTING}


@pytest.mark.parametrize(
    "of",
    [
        mode("failed"),
        mode("inactive"),
        mode(predictions=()),
        mode(predictions=(NOW, cases.prediction(1, 0.097, 0.05, 2))),
        mode(
            predictions=(NOW, cases.prediction(1, 0.06, 0.01, 1)), ablations={"one_worker": cases.ablation(0.4, 0.001)}
        ),
        mode(ablations={"one_worker": SEVERAL}),
    ],
    ids=["failed", "inactive", "nothing predicted", "hardly faster", "measured already", "several"],
)
def test_what_promises_nothing_new_is_not_tried(of: ModeSummary) -> None:
    assert to_try({"ddp": of}) == {}


def test_no_workers_are_tried_where_they_are_predicted_best() -> None:
    of = mode(predictions=(cases.prediction(2, 0.09, 0.05, 2), cases.prediction(0, 0.05, 0.01)))
    assert to_try({"ddp": of}) == {"ddp": LoaderSetting(num_workers=0, prefetch_factor=0)}


def test_no_workers_that_were_measured_to_be_faster_are_advised() -> None:
    none = cases.prediction(0, 0.08, 0.01)
    found = LoaderTrial(setting=LoaderSetting(num_workers=0, prefetch_factor=0), speedup=figure(1.4, 0.1, unit="x"))
    chosen, reason = after_trial(None, found, (TWO, none))
    assert chosen is none
    assert reason.startswith("num_workers=0 was tried")
    chosen, _ = after_trial(None, found, (TWO,))
    assert chosen is not None
    assert (chosen.num_workers, chosen.prefetch_factor) == (0, None)


def test_what_the_ablation_with_one_worker_could_not_tell_is_tried() -> None:
    of = mode(
        predictions=(NOW, cases.prediction(1, 0.087, 0.05, 2)), ablations={"one_worker": cases.ablation(0.13, 0.2)}
    )
    assert to_try({"ddp": of}) == {"ddp": LoaderSetting(num_workers=1, prefetch_factor=2)}


def test_what_is_predicted_to_be_better_than_the_ablation_with_one_worker_is_tried() -> None:
    of = mode(
        predictions=(NOW, cases.prediction(1, 0.06, 0.01, 4)), ablations={"one_worker": cases.ablation(0.2, 0.001)}
    )
    assert to_try({"ddp": of}) == {"ddp": LoaderSetting(num_workers=1, prefetch_factor=4)}


def launched(tried_ms: float, *, status: str = "ok", skipped: str | None = None) -> Launch:
    """Return four rounds of full windows with steps of about 100 ms, and of windows with another setting."""
    steps, windows = [], []
    for number in range(8):
        ablation = OTHER_SETTING if number % 2 else "full"
        ms = (tried_ms if number % 2 else 100.0) + 0.1 * (number // 2)
        if ablation == OTHER_SETTING and skipped:
            continue
        steps += [records.step(ms, step=5 * number + place, window=number) for place in range(5)]
        windows.append(records.window(5 * ms, window=number, ablation=ablation, round=number // 2))
    rank = records.rank(steps, windows, ablations=(AblationRecord(name=OTHER_SETTING, skipped=skipped),))
    found = records.launch(rank, status=status, reason="it raised" if status == "failed" else None)
    return replace(found, record=replace(found.record, loader_setting=SETTING))


def test_the_step_is_as_many_times_as_fast_as_the_two_windows_say() -> None:
    found = trial(launched(50.0))
    assert found is not None
    assert found.setting == SETTING
    assert found.speedup.value == pytest.approx(2.0, rel=0.01)
    assert found.speedup.low is not None
    assert found.speedup.high is not None
    assert 1.9 < found.speedup.low < found.speedup.high < 2.1
    assert is_faster(found)


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (launched(50.0, status="failed"), "it raised"),
        (launched(50.0, skipped="the dataset cannot be fetched from"), "the dataset cannot be fetched from"),
    ],
)
def test_a_trial_that_did_not_work_says_why(of: Launch, reason: str) -> None:
    found = trial(of)
    assert found is not None
    assert found.speedup.reason == reason
    assert not is_faster(found)
    assert words(found).endswith(f"could not be tried: {reason}")
    assert after_trial(TWO, found, (NOW, TWO)) == (TWO, words(found))


def test_other_launches_tried_nothing() -> None:
    assert trial(None) is None
    assert trial(records.launch(records.even_rank(100))) is None


def tried(speedup: float, half: float) -> LoaderTrial:
    return LoaderTrial(setting=SETTING, speedup=figure(speedup, half, unit="x"))


def test_what_was_measured_to_be_faster_is_advised_whatever_was_predicted() -> None:
    chosen, reason = after_trial(None, tried(1.4, 0.1), (NOW, TWO, MORE))
    assert chosen is TWO
    assert "1.40x (1.30–1.50)" in reason


@pytest.mark.parametrize(("chosen", "predictions"), [(None, ()), (MORE, (NOW, MORE))])
def test_what_was_tried_and_not_simulated_is_advised_and_nothing_in_its_place(
    chosen: LoaderPrediction | None, predictions: Sequence[LoaderPrediction]
) -> None:
    advised, reason = after_trial(chosen, tried(1.4, 0.1), predictions)
    assert advised is not None
    assert (advised.num_workers, advised.prefetch_factor) == (2, 2)
    assert (advised.step.value, advised.wait.reason) == (None, TRIED)
    assert "1.40x (1.30–1.50)" in reason


@pytest.mark.parametrize("found", [tried(1.4, 0.5), tried(0.9, 0.05), tried(1.0, 0.0)])
def test_what_was_not_measured_to_be_faster_is_not_advised(found: LoaderTrial) -> None:
    chosen, reason = after_trial(TWO, found, (NOW, TWO, MORE))
    assert chosen is None
    assert "not measurably faster" in reason


def test_what_was_tried_in_one_round_is_not_told_to_be_no_faster() -> None:
    once = LoaderTrial(setting=SETTING, speedup=stats.mean_interval([2.4], "x"))
    chosen, reason = after_trial(TWO, once, (NOW, TWO, MORE))
    assert chosen is None
    assert reason.endswith(": 2.40x as fast, without an interval, so that it could not be told whether it helps")


@pytest.mark.parametrize(("half", "is_advised"), [(0.45, True), (0.8, False)])
def test_a_gain_without_an_upper_end_is_judged_by_the_lower_one(half: float, is_advised: bool) -> None:
    found = of_ablation(0.75, half)
    assert (found.speedup.low, found.speedup.high) == (pytest.approx(1 / (0.25 + half)), None)
    chosen, reason = after_trial(TWO, found, (NOW, TWO, MORE))
    assert (chosen is not None, "without an interval" in reason) == (is_advised, False)


def of_ablation(share: float, half: float = 0.001) -> LoaderTrial:
    found = one_worker({"one_worker": cases.ablation(share, half)})
    assert found is not None
    return found


def test_what_the_ablation_with_one_worker_gave_is_a_trial_of_it() -> None:
    found = of_ablation(0.2)
    assert (found.setting.num_workers, found.speedup.value) == (1, pytest.approx(1.25))
    assert one_worker({"one_worker": cases.skipped()}) is None
    assert one_worker({}) is None


@pytest.mark.parametrize(
    ("launched_gave", "ablation_gave", "num_workers"),
    [(tried(1.4, 0.1), 0.2, 2), (tried(1.1, 0.05), 0.2, 1), (tried(0.9, 0.05), 0.2, 1), (tried(1.4, 0.1), 0.0, 2)],
)
def test_of_settings_that_were_measured_the_faster_one_is_advised(
    launched_gave: LoaderTrial, ablation_gave: float, num_workers: int
) -> None:
    found = better(launched_gave, of_ablation(ablation_gave))
    assert found is not None
    assert found.setting.num_workers == num_workers


def test_without_a_launch_that_tried_one_the_ablation_speaks_for_itself() -> None:
    assert better(None, of_ablation(0.2)) is None
    assert better(tried(1.4, 0.1), None) == tried(1.4, 0.1)


def test_one_worker_that_was_measured_to_be_faster_is_advised_though_nothing_was_predicted_to_be() -> None:
    faster, slower = of_ablation(0.2), of_ablation(-0.25)
    assert decides(None, None, faster) is faster
    assert decides(None, None, slower) is None
    assert decides(TWO, None, faster) is None
    assert decides(None, tried(0.9, 0.05), faster) == tried(0.9, 0.05)
    assert decides(None, None, None) is None


def test_where_nothing_is_advised_what_was_measured_comes_before_what_was_predicted() -> None:
    slower = of_ablation(-0.25)
    assert after_ablation(None, "none is predicted to be faster", slower) == (
        f"{words(slower)}; none is predicted to be faster"
    )
    assert after_ablation(TWO, "two are", slower) == "two are"


@pytest.mark.parametrize(("share", "is_told"), [(-0.25, True), (0.0, True), (0.2, False)])
def test_a_worker_that_was_measured_not_to_help_is_known(share: float, is_told: bool) -> None:
    found = without_gain(mode(ablations={"one_worker": cases.ablation(share, 0.001)}))
    assert (found is not None) == is_told


def test_without_a_measurement_no_number_of_workers_is_ruled_out() -> None:
    assert without_gain(mode()) is None
    assert without_gain(mode(ablations={"one_worker": cases.skipped()})) is None
