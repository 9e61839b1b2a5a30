"""Predictions, their intervals, and the setting to choose; what the simulation is fed with, worked out on paper."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.base.ablation import ablations
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import LoaderPrediction
from dpdoctor.analysis.loader import predict as predictions
from dpdoctor.analysis.loader.feed import NO_FETCH, Feed, feed
from dpdoctor.analysis.loader.predict import (
    ABLATION,
    ALL_QUEUED,
    MODEL_ERROR,
    NO_SENDING,
    NO_SEQUENCE,
    NOT_SIMULATED,
    Basis,
    Block,
    Measured,
    Predictor,
    UnknownError,
    measured,
    slow_fetches,
    tried,
)
from dpdoctor.analysis.loader.simulate import Cores, Setting, simulate
from dpdoctor.analysis.loader.summarise import as_many_processes
from dpdoctor.analysis.loader.trial import advise
from dpdoctor.loading import HandOff
from dpdoctor.records import CpuUse, Launch, Rank
from tests.builders import records
from tests.builders.feeding import STEPS_PER_WINDOW, batch, even_batches, launch, loader, rank
from tests.builders.specs import MS

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
    # What is left without the model is more than twice the interval of the step, 2.5%.
    assert ((varied.step.high / varied.step.value - 1) ** 2 - MODEL_ERROR**2) ** 0.5 > 2 * 0.025


def test_a_step_without_an_interval_gives_none() -> None:
    (now,) = predict(of(EVEN), Setting(num_workers=1), step=Figure(value=0.040, n=1, unit="s"))
    assert now.step.value == pytest.approx(0.030)
    assert (now.step.low, now.wait.high) == (None, None)


def test_a_calibrated_step_of_one_window_tells_nothing_of_how_windows_vary() -> None:
    calibrated = Figure(value=0.040, low=0.036, high=0.044, n=1, unit="s", scope="calibrated")
    (one,) = predict(of(EVEN, EVEN), Setting(num_workers=1), step=calibrated)
    assert (one.step.value, one.step.high) == (pytest.approx(0.030), None)


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


def fed(fetches: list[float], *, cpu: float = 1.0) -> Feed:
    """Return the feed of one rank whose batches take so many ms, computing for a share of it."""
    batches = [batch(n, asked=(n - 1) * 100, wait=ms, cpu=cpu * ms) for n, ms in enumerate(fetches, 1)]
    found = feed(launch(rank(batches, num_windows=len(fetches) // STEPS_PER_WINDOW)))
    assert found is not None
    return found


# Of 16 batches every fourth takes 60 ms instead of 10.
STALLING = [10.0, 10.5, 9.5, 60.0] * 4


def test_they_are_counted_and_compared_with_the_usual() -> None:
    found = slow_fetches(fed(STALLING, cpu=0.2), None)
    assert found is not None
    assert (found.count, found.total) == (4, 16)
    assert (found.seconds, found.usual_seconds) == (pytest.approx(0.060), pytest.approx(0.01025))
    assert found.cpu_ratio == pytest.approx(0.2)
    assert (found.step.value, found.step.reason) == (None, NOT_SIMULATED)


@pytest.mark.parametrize(
    "fetches",
    [
        pytest.param([10.0] * 16, id="all alike"),
        pytest.param([*[10.0] * 14, 60.0, 60.0], id="two are an accident"),
        pytest.param([10.0, 60.0] * 8, id="half of them are no exception"),
        pytest.param([10.0, 10.0, 10.0, 19.0] * 4, id="not twice the usual"),
        pytest.param([5.0, 10.0, 15.0, 22.0] * 4, id="all differ much"),
    ],
)
def test_other_loaders_have_none(fetches: list[float]) -> None:
    assert slow_fetches(fed(fetches), None) is None


def test_the_time_in_which_a_fetch_wanted_a_core_is_not_the_loaders() -> None:
    queued = [
        batch(n, asked=(n - 1) * 100, wait=ms, queued_ns=round((ms - 10) * 1e6))
        for n, ms in enumerate(STALLING, 1)
        if ms >= 10
    ]
    found = feed(launch(rank(queued, num_windows=4)))
    assert found is not None
    assert slow_fetches(found, None) is None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_step_without_them_is_that_of_a_loader_that_has_none(num_workers: int) -> None:
    # 10 ms of computing; a fetch of 10 ms, every tenth of 110: on average 20.
    blocks = (Block(fetch=(*(0.010,) * 9, 0.110) * 20, compute=(0.010,) * 200),) * 2
    measured = Measured(
        blocks=blocks, setting=Setting(num_workers=num_workers), cores=Cores(num=8), send=0.0, receive=0.0
    )
    step_s = 0.030 if num_workers == 0 else 0.020
    step = Basis(measured, Figure(value=step_s, low=step_s * 0.99, high=step_s * 1.01, n=5, unit="s"))
    without = step.without_fetches_above(0.020, 0.010)
    assert without.value == pytest.approx(0.020 if num_workers == 0 else 0.010, rel=0.02)
    assert without.high is not None
    assert step.without_fetches_above(0.2, 0.010).value == pytest.approx(step_s)


HAND_OFFS = (HandOff(loader=0, n=16, num_bytes=1000, send_ns=1 * MS, receive_ns=3 * MS),)
CPU = CpuUse(cpu_s=0.72, workers_cpu_s=0.0, wall_s=0.8, involuntary_switches=None, num_threads=4)


def turns(ablation: str = ABLATION, **fields: object) -> Rank:
    """Return two rounds of a full window and one of the ablation. A step takes 100 ms.

    Full, 70 of them are the fetch; in the ablation a process fetches in 80, half of that computing, and 45 are waited.
    """
    made = rank(even_batches(16, wait=70.0), num_windows=4, **{"hand_offs": HAND_OFFS, "cpu": CPU, **fields})
    beside = [replace(b, worker=0, iteration=1) for b in even_batches(16, wait=45.0, fetch=80.0, cpu=40.0)]
    batches = [full if _window(full.step) % 2 else other for full, other in zip(made.batches, beside, strict=True)]
    windows = [
        replace(w, ablation="full" if w.window % 2 else ablation, round=(w.window + 1) // 2) for w in made.windows
    ]
    return replace(made, batches=tuple(batches), windows=tuple(windows))


def _window(step: int) -> int:
    return (step - 1) // STEPS_PER_WINDOW + 1


def launch_of(made: Launch) -> Basis | None:
    found, header = feed(made), records.header({"single": 1})
    assert found is not None
    return tried(measured(found, made, header), made, ablations([made]), header)


def test_its_windows_are_read_as_those_of_a_loader_with_a_worker() -> None:
    found = launch_of(launch(turns()))
    assert found is not None
    assert [len(block.fetch) for block in found.measured.blocks] == [4, 4]
    assert found.measured.blocks[0].fetch == pytest.approx([0.080] * 4)
    assert found.measured.blocks[0].compute == pytest.approx([0.055] * 3)
    assert found.measured.setting == Setting(num_workers=1, prefetch_factor=2)
    assert found.step.value == pytest.approx(0.100)


def test_a_fetch_takes_the_cores_that_it_took_there_and_training_those_of_the_full_windows() -> None:
    found = launch_of(launch(turns()))
    assert found is not None
    cores = found.measured.cores
    # Per 100 ms: 90 ms of CPU, 70 of them the fetch's own; the other 20 lie in 30.
    assert (cores.fetch, cores.compute) == (pytest.approx(0.5), pytest.approx(2 / 3))


def untimed() -> Rank:
    """Return the rank of which nobody timed what the process fetched."""
    made = turns()
    batches = [replace(batch, fetch_ns=0) if batch.iteration else batch for batch in made.batches]
    return replace(made, batches=tuple(batches))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(turns("cached_batches"), id="another ablation"),
        pytest.param(replace(turns(), batches=turns().batches[:4]), id="nothing recorded in it"),
        pytest.param(untimed(), id="fetches that nobody timed"),
    ],
)
def test_without_its_windows_nothing_is_known(made: Rank) -> None:
    assert launch_of(launch(made)) is None


def test_a_rank_that_skipped_it_has_tried_nothing() -> None:
    windows = [replace(w, complete=w.ablation == "full") for w in turns().windows]
    assert launch_of(launch(replace(turns(), windows=tuple(windows)))) is None


WORKERS = loader(num_workers=2, prefetch_factor=4)


def measured_in(made: Launch) -> Measured:
    """Return what is measured in a launch, on a node of two cores."""
    found = feed(made)
    assert found is not None
    return measured(found, made, records.header({"single": 1}))


def one(made: Rank) -> Measured:
    return measured_in(launch(made))


def test_without_workers_all_but_the_fetch_is_the_training_threads_work() -> None:
    # Of 100 ms from ask to ask 40 ms are the wait, 38 of them the fetch: 62 ms are not loading.
    found = one(rank(even_batches(8, fetch=38.0), hand_offs=HAND_OFFS))
    assert [len(block.fetch) for block in found.blocks] == [4, 4]
    assert found.blocks[0].fetch == pytest.approx([0.038] * 4)
    assert found.blocks[0].compute == pytest.approx([0.062] * 3)
    assert found.setting == Setting(num_workers=0, prefetch_factor=2)
    assert (found.send, found.receive) == (pytest.approx(0.001), pytest.approx(0.003))


def test_with_workers_the_wait_is_not_the_training_threads_work() -> None:
    batches = even_batches(8, wait=10.0, fetch=70.0, fetch_begin=5.0)
    batches = [replace(b, worker=b.batch % 2, fetch_begin_ns=b.asked_ns) for b in batches]
    found = one(rank(batches, loaders=(WORKERS,), hand_offs=HAND_OFFS))
    assert found.blocks[1].fetch == pytest.approx([0.070] * 4)
    assert found.blocks[1].compute == pytest.approx([0.090] * 3)
    assert found.setting == Setting(num_workers=2, prefetch_factor=4)


def test_waits_for_a_core_are_left_out() -> None:
    batches = [replace(b, queued_ns=10 * MS, gap_queued_ns=20 * MS) for b in even_batches(8, cpu=15.0)]
    found = one(rank(batches, hand_offs=HAND_OFFS))
    assert found.blocks[0].fetch == pytest.approx([0.030] * 4)
    assert found.blocks[0].compute == pytest.approx([0.040] * 3)
    assert found.cores.fetch == pytest.approx(0.5)


def test_over_the_edge_of_an_iteration_nothing_is_computed() -> None:
    batches = even_batches(8)
    batches[6:] = [replace(b, iteration=1, batch=b.batch - 7) for b in batches[6:]]
    found = one(rank(batches, hand_offs=HAND_OFFS))
    assert [len(block.compute) for block in found.blocks] == [3, 2]


def test_cores_are_what_the_process_used_beyond_its_fetches() -> None:
    # Per 100 ms: 90 ms of CPU, 30 of them the fetch's own; the other 60 lie in 60 ms.
    cpu = CpuUse(cpu_s=0.72, workers_cpu_s=0.0, wall_s=0.8, involuntary_switches=None, num_threads=4)
    cores = one(rank(even_batches(8, cpu=30.0), hand_offs=HAND_OFFS, cpu=cpu)).cores
    assert (cores.num, cores.threads) == (2.0, 1)
    assert (cores.fetch, cores.compute) == (pytest.approx(0.75), pytest.approx(1.0))


def test_threads_are_of_those_who_train_on_the_cpu() -> None:
    made = rank(even_batches(8), hand_offs=HAND_OFFS)
    assert made.record is not None
    conversion = replace(made.record.conversion, num_threads=2)
    for device, threads in (("cpu", 2), ("cuda", 1)):
        record = replace(made.record, conversion=conversion, device_type=device)
        cores = one(replace(made, record=record)).cores
        assert (cores.threads, cores.compute) == (threads, threads)


def test_ranks_of_one_node_share_its_cores() -> None:
    ranks = [rank(even_batches(8), index=index, world_size=2, hand_offs=HAND_OFFS) for index in range(2)]
    assert measured_in(launch(*ranks)).cores.num == 1.0
    assert ranks[1].record is not None
    far = replace(ranks[1], record=replace(ranks[1].record, host="other"))
    assert measured_in(launch(ranks[0], far)).cores.num == 2.0


def test_a_dataset_that_fails_in_a_worker_has_no_settings_to_predict() -> None:
    failed = replace(HAND_OFFS[0], failure="RuntimeError: Cannot re-initialize CUDA in forked subprocess")
    with pytest.raises(UnknownError, match=r"no loader process.*re-initialize CUDA"):
        one(rank(even_batches(8), hand_offs=(failed,)))


def test_what_is_missing_is_said() -> None:
    queued = [replace(one, queued_ns=one.fetch_ns, gap_queued_ns=100 * MS) for one in even_batches(8)]
    for made, reason in (
        (rank(even_batches(8)), NO_SENDING),
        (rank(even_batches(8, fetch=0.0), hand_offs=HAND_OFFS), NO_FETCH),
        (rank([batch(3, asked=200, wait=40.0)], hand_offs=HAND_OFFS), NO_SEQUENCE),
        (rank(queued, hand_offs=HAND_OFFS), ALL_QUEUED),
    ):
        with pytest.raises(UnknownError, match=reason):
            one(made)
