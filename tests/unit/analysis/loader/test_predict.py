"""Predictions, their intervals, and the setting to choose."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.loader import predict as predictions
from dpdoctor.analysis.loader.advice import advise
from dpdoctor.analysis.loader.control import as_many_processes
from dpdoctor.analysis.loader.measured import Block, Measured
from dpdoctor.analysis.loader.model import LoaderPrediction
from dpdoctor.analysis.loader.predict import MODEL_ERROR, Basis, Predictor
from dpdoctor.analysis.loader.sharing import Cores
from dpdoctor.analysis.loader.simulate import Setting, simulate

PRESENT = Setting(num_workers=0)
STEP = Figure(value=0.040, low=0.039, high=0.041, n=5, unit="s")


def of(*blocks: Block, setting: Setting = PRESENT, cores: float = 8.0) -> Measured:
    return Measured(blocks=blocks, setting=setting, cores=Cores(num=cores), send=0.0, receive=0.001)


# 30 ms of fetching, 10 ms of computing.
EVEN = Block(fetch=(0.030,) * 20, compute=(0.010,) * 20)


def predict(measured: Measured, *settings: Setting, step: Figure = STEP) -> tuple[LoaderPrediction, ...]:
    return Predictor(Basis(measured, step)).predictions(settings)


def test_the_present_setting_comes_out_as_it_was_measured() -> None:
    (now,) = predict(of(EVEN, EVEN), PRESENT)
    assert now.step.value == pytest.approx(0.040)
    assert (now.step.low, now.step.high) == (pytest.approx(0.039), pytest.approx(0.041))
    assert now.wait.value == pytest.approx(0.030)
    assert now.prefetch_factor is None


def test_others_are_as_much_faster_as_the_simulation_says() -> None:
    # The step takes 50 ms, 10 of them something that nobody timed: it is there with workers, too.
    slow = Figure(value=0.050, low=0.049, high=0.051, n=5, unit="s")
    one, two, three = predict(of(EVEN, EVEN), *(Setting(num_workers=n) for n in (1, 2, 3)), step=slow)
    assert one.step.value == pytest.approx(0.050 * 30 / 40)
    assert two.step.value == pytest.approx(0.050 * 15 / 40)
    assert three.step.value == pytest.approx(0.050 * 11 / 40, rel=0.02)
    assert one.wait.value == pytest.approx(0.050 * 20 / 40)


def test_settings_with_workers_are_predicted_from_what_one_worker_did() -> None:
    # Beside a process that fetches in 40 ms training takes 20 instead of 10, and 1 to take a batch over.
    beside = of(*[Block(fetch=(0.040,) * 20, compute=(0.020,) * 20)] * 2, setting=Setting(num_workers=1))
    tried = Basis(beside, Figure(value=0.042, low=0.041, high=0.043, n=5, unit="s"))
    predictor = Predictor(Basis(of(EVEN, EVEN), STEP), tried)
    none, one, two = predictor.predictions([PRESENT, *(Setting(num_workers=n) for n in (1, 2))])
    assert none.step.value == pytest.approx(0.040)
    assert one.step.value == pytest.approx(0.042)
    assert two.step.value == pytest.approx(0.042 * 21 / 40, rel=0.02)
    assert one.step.high is not None
    assert one.step.high / 0.042 - 1 < MODEL_ERROR, "it was measured"
    assert two.step.value is not None
    assert two.step.high is not None
    assert two.step.high / two.step.value - 1 >= MODEL_ERROR


def test_the_interval_holds_the_model_and_how_windows_vary() -> None:
    (same,) = predict(of(EVEN, EVEN), Setting(num_workers=1))
    assert same.step.value is not None
    assert same.step.high is not None
    narrow = same.step.high / same.step.value - 1
    assert narrow == pytest.approx((0.025**2 + MODEL_ERROR**2) ** 0.5)
    slow = Block(fetch=(0.045,) * 20, compute=(0.010,) * 20)
    (varied,) = predict(of(EVEN, slow, EVEN, slow), Setting(num_workers=1))
    assert varied.step.value is not None
    assert varied.step.high is not None
    # What is left without the model is more than twice the interval of the step, 2.5 %.
    assert ((varied.step.high / varied.step.value - 1) ** 2 - MODEL_ERROR**2) ** 0.5 > 2 * 0.025


def test_a_step_without_an_interval_gives_none() -> None:
    (now,) = predict(of(EVEN), Setting(num_workers=1), step=Figure(value=0.040, n=1, unit="s"))
    assert now.step.value == pytest.approx(0.030)
    assert (now.step.low, now.wait.high) == (None, None)


def test_predictions_repeat() -> None:
    blocks = [Block(fetch=(0.030 + 0.001 * n,) * 9, compute=(0.010,) * 9) for n in range(5)]
    assert predict(of(*blocks), Setting(num_workers=2)) == predict(of(*blocks), Setting(num_workers=2))


def test_replicates_that_are_the_same_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [Block(fetch=(0.030 + 0.001 * n,) * 9, compute=(0.010,) * 9) for n in range(2)]
    simulated = Mock(wraps=simulate)
    monkeypatch.setattr(predictions, "simulate", simulated)
    basis = Basis(of(*blocks), STEP)
    assert len(basis.runs) > 4
    # Of two blocks two are drawn in four ways, each for the present setting and for another.
    Predictor(basis).predictions([Setting(num_workers=1)])
    assert simulated.call_count <= 2 * 4


def test_of_very_many_blocks_some_are_simulated_and_give_the_same() -> None:
    # The fetches of a thousand ranks: 29 or 31 ms.
    blocks = [Block(fetch=(0.029 + 0.002 * (n % 2),) * 5, compute=(0.010,) * 5) for n in range(5_000)]
    (one,) = predict(of(*blocks), Setting(num_workers=1))
    assert one.step.value == pytest.approx(0.030, rel=0.01)
    assert one == predict(of(*blocks), Setting(num_workers=1))[0]


def prediction(num_workers: int, prefetch_factor: int | None, ms: float, error: float = 0.1) -> LoaderPrediction:
    step = Figure(value=ms / 1e3, low=ms / 1e3 * (1 - error), high=ms / 1e3 * (1 + error), n=5, unit="s")
    return LoaderPrediction(num_workers=num_workers, prefetch_factor=prefetch_factor, step=step, wait=step)


def test_the_fewest_workers_that_are_as_good_as_the_best_are_advised() -> None:
    predictions = [
        prediction(0, None, 100),
        prediction(1, 2, 60),
        prediction(2, 1, 42),
        prediction(2, 2, 40.5),
        prediction(2, 4, 40.1),
        prediction(4, 2, 40.0),
    ]
    chosen, reason = advise(predictions, PRESENT)
    assert chosen == predictions[3]
    assert reason.startswith("num_workers=2, prefetch_factor=2:")


@pytest.mark.parametrize("present", [Setting(num_workers=2), Setting(num_workers=4)])
def test_what_is_as_good_within_the_interval_is_left_as_it_is(present: Setting) -> None:
    predictions = [prediction(0, None, 100), prediction(2, 2, 40), prediction(4, 2, 42)]
    chosen, reason = advise(predictions, present)
    assert chosen is None
    assert f"with num_workers={present.num_workers}, prefetch_factor=2 a step takes" in reason


def test_fewer_workers_are_advised_where_too_many_slow_training_down() -> None:
    predictions = [prediction(2, 2, 40), prediction(8, 2, 60)]
    chosen, _ = advise(predictions, Setting(num_workers=8))
    assert chosen == predictions[0]


@pytest.mark.parametrize(("num_workers", "processes"), [(1, 4), (3, 12)])
def test_the_control_has_as_many_processes_as_all_ranks(num_workers: int, processes: int) -> None:
    baseline = of(EVEN, setting=Setting(num_workers=num_workers, prefetch_factor=3))
    wanted = Setting(num_workers=processes, prefetch_factor=3)
    assert as_many_processes(baseline, num_workers, world_size=4) == wanted
