"""What one worker did where the script has none, on paper."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.ablation import ablations
from dpdoctor.analysis.loader.feed import feed
from dpdoctor.analysis.loader.measured import measured
from dpdoctor.analysis.loader.predict import Basis
from dpdoctor.analysis.loader.simulate import Setting
from dpdoctor.analysis.loader.tried import ABLATION, tried
from dpdoctor.loading import HandOff
from dpdoctor.records import CpuUse, Launch, Rank
from tests.builders import records
from tests.builders.feeding import STEPS_PER_WINDOW, even_batches, launch, rank
from tests.builders.specs import MS

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
        dataclasses.replace(w, ablation="full" if w.window % 2 else ablation, round=(w.window + 1) // 2)
        for w in made.windows
    ]
    return dataclasses.replace(made, batches=tuple(batches), windows=tuple(windows))


def _window(step: int) -> int:
    return (step - 1) // STEPS_PER_WINDOW + 1


def of(made: Launch) -> Basis | None:
    found, header = feed(made), records.header({"single": 1})
    assert found is not None
    return tried(measured(found, made, header), made, ablations([made]), header)


def test_its_windows_are_read_as_those_of_a_loader_with_a_worker() -> None:
    found = of(launch(turns()))
    assert found is not None
    assert [len(block.fetch) for block in found.measured.blocks] == [4, 4]
    assert found.measured.blocks[0].fetch == pytest.approx([0.080] * 4)
    assert found.measured.blocks[0].compute == pytest.approx([0.055] * 3)
    assert found.measured.setting == Setting(num_workers=1, prefetch_factor=2)
    assert found.step.value == pytest.approx(0.100)


def test_a_fetch_takes_the_cores_that_it_took_there_and_training_those_of_the_full_windows() -> None:
    found = of(launch(turns()))
    assert found is not None
    cores = found.measured.cores
    # Per 100 ms: 90 ms of CPU, 70 of them the fetch's own; the other 20 lie in 30.
    assert (cores.fetch, cores.compute) == (pytest.approx(0.5), pytest.approx(2 / 3))


def untimed() -> Rank:
    """Return the rank of which nobody timed what the process fetched."""
    made = turns()
    batches = [replace(batch, fetch_ns=0) if batch.iteration else batch for batch in made.batches]
    return dataclasses.replace(made, batches=tuple(batches))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(turns("cached_batches"), id="another ablation"),
        pytest.param(dataclasses.replace(turns(), batches=turns().batches[:4]), id="nothing recorded in it"),
        pytest.param(untimed(), id="fetches that nobody timed"),
    ],
)
def test_without_its_windows_nothing_is_known(made: Rank) -> None:
    assert of(launch(made)) is None


def test_a_rank_that_skipped_it_has_tried_nothing() -> None:
    windows = [dataclasses.replace(w, complete=w.ablation == "full") for w in turns().windows]
    assert of(launch(dataclasses.replace(turns(), windows=tuple(windows)))) is None
