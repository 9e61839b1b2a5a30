"""ModeSummary.loader of a whole run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.loader import advice
from dpdoctor.analysis.loader.measured import NO_SENDING
from dpdoctor.analysis.loader.model import LoaderSummary
from dpdoctor.loading import HandOff
from dpdoctor.records import Launch, Rank
from dpdoctor.spec import OTHER_SETTING, LoaderSetting
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
    run = dataclasses.replace(records.run({"single": [single()]}), trials={"single": trial})
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


def test_an_iterable_dataset_gets_no_advice() -> None:
    found = loaders({"single": [single(loaders=(loader(sampler="_InfiniteConstantSampler"),))]})["single"]
    assert found is not None
    assert found.predictions
    assert (found.advice, found.advice_reason) == (None, advice.ITERABLE)


def test_a_failed_mode_and_one_without_a_loader_have_none() -> None:
    failed = dataclasses.replace(single(), record=dataclasses.replace(single().record, status="failed"))
    assert loaders({"single": [failed]}) == {"single": None}
    assert loaders({"single": [launch(rank([]))]}) == {"single": None}
