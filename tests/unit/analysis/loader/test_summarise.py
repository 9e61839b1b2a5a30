"""ModeSummary.loader of a whole run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.base.summary import LoaderSummary
from dpdoctor.analysis.loader import trial as advice
from dpdoctor.analysis.loader.feed import feed
from dpdoctor.analysis.loader.predict import NO_SENDING, Block, Measured
from dpdoctor.analysis.loader.simulate import Cores, Setting
from dpdoctor.analysis.loader.summarise import Budget, budget, settings
from dpdoctor.loading import HandOff
from dpdoctor.records import Launch, Rank, Sample
from dpdoctor.spec import BESIDE, OTHER_SETTING, LoaderSetting
from tests.builders import records
from tests.builders.feeding import even_batches, launch, loader, rank
from tests.builders.specs import MS

HAND_OFFS = (HandOff(loader=0, n=16, num_bytes=1000, send_ns=1 * MS, receive_ns=3 * MS),)


def loaders(modes: dict[str, Sequence[Launch]], sizes: dict[str, int] | None = None) -> dict[str, LoaderSummary | None]:
    """Return the loader of each mode."""
    found = analyse(records.run(modes, sizes)).summary.modes
    return {name: mode.loader for name, mode in found.items()}


def single(**fields: object) -> Launch:
    """Return a launch of one rank that waits 70 of its 100 ms."""
    return launch(rank(even_batches(8, wait=70.0), **{"hand_offs": HAND_OFFS, **fields}))


def test_a_starved_script_is_told_the_number_to_set() -> None:
    found = loaders({"single": [single()]})["single"]
    assert found is not None
    assert (found.num_workers, found.fetch.value) == (0, pytest.approx(0.070))
    # 70 ms to fetch, 30 to compute and 3 to take over: two workers would give 35, but share two cores with training.
    assert found.advice is not None
    assert found.advice.num_workers == 2
    assert found.advice.step.value is not None
    assert 0.050 < found.advice.step.value < 0.060
    assert found.baseline_same_workers is None


@pytest.mark.parametrize(("tried_ms", "advised"), [(50.0, 1), (99.0, None)])
def test_what_a_trial_measured_stands_above_what_was_predicted(tried_ms: float, advised: int | None) -> None:
    setting = LoaderSetting(num_workers=1, prefetch_factor=2)
    steps, windows = [], []
    for number in range(8):
        ablation, ms = (OTHER_SETTING, tried_ms) if number % 2 else ("full", 100.0)
        steps += [records.step(ms + number % 3, step=4 * number + place, window=number) for place in range(4)]
        windows.append(records.window(4 * (ms + number % 3), window=number, ablation=ablation, round=number // 2))
    trial = records.launch(records.rank(steps, windows), loader_setting=setting)
    run = replace(records.run({"single": [single()]}), trials={"single": trial})
    found = analyse(run).summary.modes["single"].loader
    assert found is not None
    assert found.trial is not None
    assert found.trial.setting == setting
    assert (found.advice.num_workers if found.advice else None) == advised
    assert "was tried" in found.advice_reason


def test_ranks_that_fetch_for_themselves_have_no_more_loader_processes_than_one_device() -> None:
    ranks = [rank(even_batches(8, wait=70.0), index=index, world_size=2, hand_offs=HAND_OFFS) for index in range(2)]
    modes = {"single": [single()], "ddp": [launch(*ranks, mode="ddp")]}
    found = loaders(modes, {"ddp": 2})
    baseline, ddp = found["single"], found["ddp"]
    assert baseline is not None
    assert ddp is not None
    assert ddp.baseline_same_workers is None
    # Two ranks that compute have a core each: a worker would take it from them.
    assert max(prediction.num_workers for prediction in ddp.predictions) == 1


def test_the_control_is_the_baseline_with_as_many_processes() -> None:
    loaders_used = (loader(num_workers=1, prefetch_factor=2),)

    def fed(index: int, world_size: int) -> Rank:
        batches = even_batches(8, wait=70.0, worker=0)
        return rank(batches, index=index, world_size=world_size, loaders=loaders_used, hand_offs=HAND_OFFS)

    ranks = [fed(index, 2) for index in range(2)]
    found = loaders({"single": [launch(fed(0, 1))], "ddp": [launch(*ranks, mode="ddp")]}, {"ddp": 2})
    ddp = found["ddp"]
    assert ddp is not None
    assert ddp.baseline_same_workers is not None
    assert ddp.baseline_same_workers.num_workers == 2


def test_what_cannot_be_predicted_has_its_reason() -> None:
    found = loaders({"single": [single(hand_offs=())]})["single"]
    assert found is not None
    assert found.fetch.value == pytest.approx(0.070)
    assert (found.predictions, found.advice, found.advice_reason) == ((), None, NO_SENDING)


@pytest.mark.parametrize(("takes", "speedup"), [(0.5, "2.00x (2.00–2.00)"), (1.25, "0.800x (0.800–0.800)")])
def test_one_worker_that_was_measured_is_told_where_nothing_can_be_simulated(takes: float, speedup: str) -> None:
    made = rank(even_batches(16, wait=70.0), num_windows=4)
    windows = [
        replace(w, round=(w.window + 1) // 2)
        if w.window % 2
        else replace(
            w, round=w.window // 2, ablation=BESIDE, end_ns=w.begin_ns + round(takes * (w.end_ns - w.begin_ns))
        )
        for w in made.windows
    ]
    tried = replace(made, windows=tuple(windows))
    found = loaders({"single": [launch(tried)]})["single"]
    assert found is not None
    assert not found.predictions
    assert (found.advice is not None) is (takes < 1)
    assert found.advice is None or (found.advice.num_workers, found.advice.step.value) == (1, None)
    assert f"{speedup} as fast" in found.advice_reason
    assert found.advice_reason.endswith(f"; no other setting is predicted: {NO_SENDING}")


def test_an_iterable_dataset_gets_no_advice() -> None:
    found = loaders({"single": [single(loaders=(loader(sampler="_InfiniteConstantSampler"),))]})["single"]
    assert found is not None
    assert found.predictions
    assert (found.advice, found.advice_reason) == (None, advice.ITERABLE)


def test_a_failed_mode_and_one_without_a_loader_have_none() -> None:
    failed = replace(single(), record=replace(single().record, status="failed"))
    assert loaders({"single": [failed]}) == {"single": None}
    assert loaders({"single": [launch(rank([]))]}) == {"single": None}


GB = 1_000_000_000
PLENTY = Budget(ranks=1, memory=None, per_worker=1.0, shm=None, per_batch=1.0)


def of(num_cores: float, fetch: float = 1.0, present: int = 0) -> Measured:
    """Return a loader on so many cores, whose fetch takes a part of one."""
    block = Block(fetch=(0.1,), compute=(0.1,))
    cores = Cores(num=num_cores, fetch=fetch)
    return Measured(blocks=(block,), setting=Setting(num_workers=present), cores=cores, send=0.0, receive=0.0)


def workers(found: list[Setting]) -> list[int]:
    return sorted({setting.num_workers for setting in found})


def test_workers_that_compute_are_no_more_than_cores() -> None:
    assert workers(settings(of(2.0), PLENTY)) == [0, 1, 2]
    assert workers(settings(of(12.0), PLENTY)) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12]


def test_one_worker_is_always_looked_at() -> None:
    assert workers(settings(of(0.5), PLENTY)) == [0, 1]


def test_workers_that_wait_may_be_more() -> None:
    assert max(workers(settings(of(2.0, fetch=0.25), PLENTY))) == 8
    assert max(workers(settings(of(2.0, fetch=0.0), PLENTY))) == 40


def test_the_present_setting_is_always_among_them() -> None:
    assert Setting(num_workers=5) in settings(of(2.0, present=5), PLENTY)


def test_without_workers_there_is_nothing_to_prefetch() -> None:
    assert sum(setting.num_workers == 0 for setting in settings(of(2.0), PLENTY)) == 1


def test_memory_and_shared_memory_of_all_ranks_bound_the_workers() -> None:
    tight = replace(PLENTY, ranks=2, memory=4.0 * GB, per_worker=1.0 * GB)
    assert max(workers(settings(of(8.0), tight))) == 2
    narrow = replace(PLENTY, ranks=2, shm=0.1 * GB, per_batch=0.01 * GB)
    found = settings(of(8.0), narrow)
    # 3 workers x 2 ranks x 10 MB x 1.5 = 90 MB with one batch each; with two of them only one worker fits.
    assert {(s.num_workers, s.prefetch_factor) for s in found if s.num_workers} == {(1, 1), (2, 1), (3, 1), (1, 2)}


def sampled(**values: float) -> Launch:
    """Return a launch with two samples of its node, the second of them the given one."""
    rest = dict.fromkeys(values, 0.0)
    samples = (
        Sample(at_ns=0, source="host", values=rest),
        Sample(at_ns=1, source="host", values=values),
        Sample(at_ns=1, source="rank0", values={"memory_bytes": 2.0 * GB, "num_processes": 1.0}),
    )
    return replace(launch(rank(even_batches(8))), samples=samples)


def limits(made: Launch) -> Budget:
    found = feed(made)
    assert found is not None
    return budget(found, made, records.header({"single": 1}))


def test_the_budget_is_what_the_samplers_saw_free() -> None:
    found = limits(sampled(memory_used_bytes=6.0 * GB, shm_total_bytes=4.0 * GB, shm_used_bytes=1.0 * GB))
    assert found.memory == pytest.approx(10 * GB)
    assert found.shm == pytest.approx(3 * GB)
    # No worker was seen: one takes at most what the rank has.
    assert found.per_worker == pytest.approx(2 * GB)


def test_running_workers_say_what_one_takes_and_hold_some_of_what_is_used() -> None:
    made = sampled(memory_used_bytes=6.0 * GB)
    made = replace(
        made,
        ranks=(rank(even_batches(8), loaders=(loader(num_workers=2, prefetch_factor=2),)),),
        samples=(
            *made.samples,
            Sample(at_ns=1, source="rank0.workers", values={"memory_bytes": 1.0 * GB, "num_processes": 2.0}),
        ),
    )
    found = limits(made)
    assert found.per_worker == pytest.approx(0.5 * GB)
    assert found.memory == pytest.approx(11 * GB)


def test_what_nobody_sampled_is_no_limit() -> None:
    found = limits(launch(rank(even_batches(8))))
    assert (found.memory, found.shm) == (None, None)
    assert found.has_room(Setting(num_workers=64, prefetch_factor=8))


def handing_over(cpu_cores: float) -> Launch:
    """Return a launch of which each batch lies ready and is taken over in 60 ms, on two cores that are all in use."""
    batches = even_batches(24, wait=60.0, fetch=1.0)
    batches = [replace(b, worker=0, ready=2, fetch_begin_ns=b.asked_ns - 90 * MS) for b in batches]
    made = rank(batches, num_windows=6, loaders=(loader(num_workers=1, prefetch_factor=2),), hand_offs=HAND_OFFS)
    samples = (
        Sample(at_ns=0, source="host", values={"cpu_ratio": 1.0, "num_cpus": 2.0}),
        Sample(at_ns=1, source="rank0", values={"cpu_cores": cpu_cores, "memory_bytes": 1e9}),
    )
    return replace(launch(made), samples=samples)


@pytest.mark.parametrize(("cpu_cores", "transfer", "advised"), [(1.9, 0.060, 0), (0.5, 0.003, None)])
def test_waits_for_cores_that_others_took_are_no_reason_for_other_settings(
    cpu_cores: float, transfer: float, advised: int | None
) -> None:
    found = loaders({"single": [handing_over(cpu_cores)]})["single"]
    assert found is not None
    assert found.transfer.value == pytest.approx(transfer)
    assert (found.advice.num_workers if found.advice else None) == advised
