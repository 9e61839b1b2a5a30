from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import ModeSummary, analyse
from dpdoctor.analysis.base.launches import RankWindow, Window
from dpdoctor.analysis.samples import CHECK, DRAWN, ENTERED, GIVEN, NONE_COUNTED, UNCOUNTED, Counting, counting
from dpdoctor.records import Conversion, InputTensor, Loader, StepRecord
from dpdoctor.report.words import standing
from tests.builders import records, specs
from tests.builders.counted_modes import COUNTERS
from tests.builders.records import launch, rank, step, window

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


def count(
    *steps: StepRecord,
    num_windows: int = 2,
    given: int | None = None,
    inputs: tuple[InputTensor, ...] = (),
    loaders: tuple[Loader, ...] = (),
    uncounted: str = "",
) -> Counting:
    rank = RankWindow(window=records.window(100), counted=steps, steady=steps)
    says = records.rank(
        [], [], counters=replace(COUNTERS, inputs=inputs), conversion=Conversion(uncounted=uncounted, loaders=loaders)
    ).record
    return counting([[Window(ranks=(rank, rank))] * num_windows], given, says)


def taken(**changes: object) -> StepRecord:
    return replace(STEP, **changes)


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
        (64, "64.0 per step, 32.0 were trained on: the script passes batches over, or parts of them, or evaluates"),
        (36, "as many, but for what lies ahead"),
        (0, "handed out 0 per step, 32.0 were trained on: batches that were fetched long before"),
        (None, "they were stepped on"),
    ],
)
def test_what_was_handed_out_and_not_trained_on_is_explained(handed: int | None, told: str) -> None:
    found = count(*[taken(samples_handed=handed)] * 8)
    assert told in text(found)
    assert found.samples(STEP) == 32


def test_rows_that_hold_samples_otherwise_are_told() -> None:
    assert "64.0 rows of its first tensor hold those of a step" in text(count(*[taken(samples_entered=64)] * 4))
    assert "rows of its first tensor" not in text(count(*[taken(samples_entered=0)] * 4)), "it was called with a list"


def test_what_does_not_reconcile_is_unknown() -> None:
    found = count(*[taken(samples_entered=rows, reconciled=False) for rows in (20, 25, 25, 20)])
    assert found.unknown is not None
    assert "trained on 20 to 25 rows where the loader's batches have 32 samples" in found.unknown
    assert found.check is not None
    assert (found.check.ok, found.check.text) == (None, found.unknown)


def test_more_rows_than_samples_may_be_several_of_each() -> None:
    more = taken(samples_drawn=6, samples_entered=10, reconciled=False)
    unknown = count(*[more] * 4).unknown or ""
    assert "trained on 10 rows where the batches of the loaders have 6 samples" in unknown
    assert "as several views of one have" in unknown
    assert "left out" not in unknown
    assert "left out" in (count(*[more] * 3, taken(samples_entered=20, reconciled=False)).unknown or "")


def test_rows_beside_those_of_a_batch_are_not_told_by_two_equal_numbers() -> None:
    unknown = count(*[taken(reconciled=False)] * 4).unknown or ""
    assert "trained on the 32 samples of the loader's batches, and on other rows" in unknown
    assert "left out" not in unknown


def test_rows_that_could_not_be_counted_are_not_told_as_none() -> None:
    unknown = count(taken(samples_entered=0, reconciled=False)).unknown
    assert unknown is not None
    assert "trained on rows that could not be counted where the loader's batches have 32 samples" in unknown


def test_why_all_steps_are_unknown_is_told_in_the_same_words_however_many_there_are() -> None:
    views = taken(samples_drawn=6, samples_entered=10, reconciled=False)
    one, other = (count(*[views] * number).unknown for number in (4, 40))
    assert one == other
    assert (one or "").startswith("each measured step trained on 10 rows")
    assert (count(STEP, views).unknown or "").startswith("of 8 measured steps 4 trained on 10 rows")


def test_one_odd_step_of_many_changes_nothing() -> None:
    assert count(*[STEP] * 19, taken(reconciled=False)).unknown is None
    assert count(*[STEP] * 18, taken(reconciled=False)).unknown is not None


def test_a_step_on_nothing_is_not_counted() -> None:
    assert count(STEP, taken(samples_drawn=0, samples_entered=0)).unknown == UNCOUNTED.format("")
    assert count(taken(samples_entered=20), taken(samples_drawn=0, samples_entered=20)).unknown == UNCOUNTED.format("")


@pytest.mark.parametrize("rows", [32, 8])
def test_several_steps_on_each_batch_count_the_rows_that_entered(rows: int) -> None:
    older = taken(samples_drawn=0, samples_entered=rows)
    found = count(taken(samples_entered=rows), older, older, taken(samples_entered=rows))
    assert (found.source, found.unknown, found.samples(older)) == (ENTERED, None, rows)
    assert "several steps on each batch" in text(found)


def test_rows_of_several_samples_each_do_not_count_where_a_batch_has_several_steps() -> None:
    packed = [taken(samples_entered=1), taken(samples_drawn=0, samples_entered=1)] * 6
    assert count(*packed).unknown == UNCOUNTED.format("")


def test_without_a_loader_there_is_nothing_to_compare_with() -> None:
    found = count(*[taken(samples_drawn=0)] * 4)
    assert (found.source, found.unknown, found.check.ok if found.check else True) == (ENTERED, None, None)
    none = taken(samples_drawn=0, samples_entered=0)
    assert count(none).unknown == NONE_COUNTED.format("")
    assert count(none, taken(samples_drawn=0)).unknown == UNCOUNTED.format("")


def test_why_samples_are_not_counted_is_told_with_their_throughput() -> None:
    none = taken(samples_drawn=0, samples_entered=0)
    assert count(none, uncounted="the model is called with a list").unknown == (
        "no step's samples could be counted: the model is called with a list; give --samples-per-step"
    )
    some = count(STEP, none, uncounted="the model is called with a list").unknown
    assert some == UNCOUNTED.format(": the model is called with a list")


def test_the_users_word_counts_and_is_not_proved() -> None:
    found = count(taken(reconciled=False), given=7)
    assert (found.source, found.unknown, found.samples(STEP)) == (GIVEN, None, 7)
    assert found.check is not None
    assert found.check.ok is None


def test_where_nothing_was_measured_nothing_is_said() -> None:
    assert counting([[]], None).check is None
    assert counting([], 3).check is None


def native(several: int, alone: int, *, num_ranks: int = 2, ranks_alone: int = 1, threads: int = 1) -> ModeSummary:
    """Return mode native, ranks with so many samples a step each in 100 ms, beside one rank in 80 ms."""
    found = {}
    for name, size, drawn, ms in (("single", ranks_alone, alone, 80), ("native", num_ranks, several, 100)):
        mode = replace(specs.mode_spec(name), launcher=("torchrun",))
        device = f"CPU, {threads if name == 'single' else 1} threads"
        steps = [step(ms, samples_drawn=drawn) for _ in range(4)]
        ranks = [rank(steps, [window(4 * ms)], index=i, world_size=size, device=device) for i in range(size)]
        found[mode] = [launch(*ranks, mode=name, world_size=size)]
    return analyse(specs.run(found)).summary.modes["native"]


@pytest.mark.parametrize(
    ("several", "rule", "words"),
    [(32, "per-device", "Weak scaling"), (16, "global", "Strong scaling"), (20, "own", "own affair")],
)
def test_how_a_script_shares_out_its_batch_is_seen_beside_one_rank(several: int, rule: str, words: str) -> None:
    mode = native(several, 32)
    assert mode.batch.rule == rule
    assert words in standing.scaling_words(mode)
    assert mode.speedup.value == pytest.approx(2 * several / 32 * 80 / 100)
    assert mode.scaling_efficiency.value == pytest.approx(several / 32 * 80 / 100)


@pytest.mark.parametrize(("several", "ideal_s"), [(32, 0.08), (16, 0.04), (20, None)])
def test_an_ideal_step_is_known_where_a_rank_takes_a_batch_of_the_script_or_its_part(several, ideal_s) -> None:
    mode = native(several, 32)
    assert (mode.waterfall and mode.waterfall.ideal.value) == (ideal_s and pytest.approx(ideal_s))
    assert ("neither the batch of one alone" in mode.waterfall_reason) is (ideal_s is None)


def test_ranks_are_held_against_one_that_computes_on_the_same() -> None:
    mode = native(32, 32, threads=2)
    assert mode.speedup.value is None
    assert mode.speedup.reason == (
        "one of several ranks computed on CPU, 1 threads, one alone on CPU, 2 threads; set OMP_NUM_THREADS"
    )


def test_a_script_that_starts_as_many_ranks_as_ever_is_no_baseline() -> None:
    assert native(32, 32, ranks_alone=2).speedup.reason == (
        "`single` was to be one rank, but the script started 2 ranks"
    )


def test_a_launcher_that_makes_one_rank_of_a_script_is_named() -> None:
    assert native(32, 32, num_ranks=1).speedup.reason == "`torchrun` made the script one rank"


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("rows", [2, 7, 128])
def test_an_item_of_as_many_rows_in_each_step_may_be_a_batch(rows: int, micro_batches: int) -> None:
    drawn = taken(samples_drawn=micro_batches, samples_entered=rows * micro_batches, micro_batches=micro_batches)
    features = InputTensor(dtype="float32", shape=(rows, 64), num_bytes=4)
    last = taken(samples_drawn=1, samples_entered=rows)
    told = count(*[drawn] * 8, last, inputs=(features,)).unknown or ""
    assert f"--samples-per-step {rows * micro_batches};" in told
    assert told.endswith(f"where it is one sample, --samples-per-step {micro_batches}")
    assert count(*[drawn] * 8, given=rows).unknown is None


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (20, 1, 8), (1, 64)])
def test_a_batch_of_one_is_one_however_many_rows_enter(shape: tuple[int, ...]) -> None:
    one = taken(samples_drawn=1, samples_entered=shape[0])
    assert count(*[one] * 8, inputs=(InputTensor(dtype="float32", shape=shape, num_bytes=4),)).unknown is None


@pytest.mark.parametrize(("dataset", "is_known"), [("range", False), ("Texts", True)])
def test_a_number_of_a_range_may_be_where_a_batch_begins(dataset: str, is_known: bool) -> None:
    # As PyG's TemporalDataLoader has it: the model is called with the nodes of 200 events, of which some are alike.
    steps = [taken(samples_drawn=1, samples_entered=rows) for rows in (387, 390, 377, 396)]
    loader = Loader(
        line="train.py:9", dataset=dataset, sampler="", batch_size=1, num_workers=0, num_batches=32, rule="per-device"
    )
    found = count(*steps, loaders=(loader,))
    assert (found.unknown is None) == is_known
    assert is_known or "single numbers of a range" in text(found)
    assert count(*[STEP] * 8, loaders=(loader,)).unknown is None, "seeds of neighborhoods are samples"


def test_texts_of_many_lengths_and_batches_of_several_are_samples() -> None:
    texts = [taken(samples_drawn=1, samples_entered=rows) for rows in (5, 7, 9, 12)]
    assert count(*texts).unknown is None
    assert count(*[taken(samples_drawn=2, samples_entered=256)] * 8).unknown is None
