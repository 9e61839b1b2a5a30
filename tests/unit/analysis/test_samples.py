from __future__ import annotations

import msgspec
import pytest

from dpdoctor.analysis.samples import CHECK, DRAWN, ENTERED, GIVEN, UNCOUNTED, Counting, counting
from dpdoctor.analysis.windows import RankWindow, Window
from dpdoctor.records import StepRecord
from tests.builders import records

STEP = StepRecord(
    step=1,
    window=1,
    begin_ns=0,
    duration_ns=1,
    phases_ns=(0,) * 6,
    samples_drawn=32,
    samples_entered=32,
    micro_batches=1,
    epoch_edge=False,
    counted=True,
    samples_handed=32,
)


def count(*steps: StepRecord, num_windows: int = 2, given: int | None = None) -> Counting:
    rank = RankWindow(window=records.window(100), counted=steps, steady=steps)
    return counting([[Window(ranks=(rank, rank))] * num_windows], given)


def step(**changes: object) -> StepRecord:
    return msgspec.structs.replace(STEP, **changes)


def text(found: Counting) -> str:
    assert found.check is not None
    assert found.check.name == CHECK
    return found.check.text


def test_what_was_drawn_entered_and_was_stepped_on_is_proved() -> None:
    found = count(*[STEP] * 4)
    assert (found.source, found.unknown, found.check.ok if found.check else None) == (DRAWN, None, True)
    assert text(found).startswith("512 samples of 16 measured steps entered the model with gradients on")
    assert text(found).endswith("the loaders handed out as many")


@pytest.mark.parametrize(
    ("handed", "told"),
    [
        (64, "handed out 64.0 per step, 32.0 were trained on: the script passes batches over"),
        (36, "as many, but for what lies ahead"),
        (0, "handed out 0 per step, 32.0 were trained on: batches that were fetched long before"),
        (None, "they were stepped on"),
    ],
)
def test_what_was_handed_out_and_not_trained_on_is_explained(handed: int | None, told: str) -> None:
    found = count(*[step(samples_handed=handed)] * 8)
    assert told in text(found)
    assert found.samples(STEP) == 32


def test_rows_that_hold_samples_otherwise_are_told() -> None:
    assert "64.0 rows of its first tensor hold those of a step" in text(count(*[step(samples_entered=64)] * 4))


def test_what_does_not_reconcile_is_unknown() -> None:
    found = count(*[step(samples_entered=rows, reconciled=False) for rows in (20, 25, 25, 20)])
    assert found.unknown is not None
    assert "trained on 20 to 25 rows where the loader's batches have 32 samples" in found.unknown
    assert found.check is not None
    assert (found.check.ok, found.check.text) == (None, found.unknown)


def test_one_odd_step_of_many_changes_nothing() -> None:
    assert count(*[STEP] * 19, step(reconciled=False)).unknown is None
    assert count(*[STEP] * 18, step(reconciled=False)).unknown is not None


def test_a_step_on_nothing_is_not_counted() -> None:
    assert count(STEP, step(samples_drawn=0, samples_entered=0)).unknown == UNCOUNTED
    assert count(step(samples_entered=20), step(samples_drawn=0, samples_entered=20)).unknown == UNCOUNTED


@pytest.mark.parametrize("rows", [32, 8])
def test_several_steps_on_each_batch_count_the_rows_that_entered(rows: int) -> None:
    older = step(samples_drawn=0, samples_entered=rows)
    found = count(step(samples_entered=rows), older, older, step(samples_entered=rows))
    assert (found.source, found.unknown, found.samples(older)) == (ENTERED, None, rows)
    assert "several steps on each batch" in text(found)


def test_without_a_loader_there_is_nothing_to_compare_with() -> None:
    found = count(*[step(samples_drawn=0)] * 4)
    assert (found.source, found.unknown, found.check.ok if found.check else True) == (ENTERED, None, None)
    assert count(step(samples_drawn=0, samples_entered=0)).unknown == UNCOUNTED


def test_the_users_word_counts_and_is_not_proved() -> None:
    found = count(step(reconciled=False), given=7)
    assert (found.source, found.unknown, found.samples(STEP)) == (GIVEN, None, 7)
    assert found.check is not None
    assert found.check.ok is None


def test_where_nothing_was_measured_nothing_is_said() -> None:
    assert counting([[]], None).check is None
    assert counting([], 3).check is None
