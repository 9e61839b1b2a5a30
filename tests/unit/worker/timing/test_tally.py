from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.worker.timing.batches import Look, Pass, Rows
from dpdoctor.worker.timing.steady_tally import SteadyTally
from dpdoctor.worker.timing.tally import AS_VIEWS, ASSUMED, NOT_A_BATCH, NOT_ALIKE, TOLD, UNCOUNTED, Counted, Tally

TRAIN, OTHER = 0, 1


def trained(tally: Tally, entered: int = 4) -> None:
    tally.trained(entered)
    tally.backward()


def ordinary_step(tally: Tally, size: int = 4) -> Counted:
    tally.fetched(TRAIN, size)
    trained(tally, size)
    return tally.lap()


def step_on(tally: Tally, place: int, *, rows: int = 4, is_part: bool = False) -> Counted:
    tally.trained(rows, storages={place}, look=lambda: Look(frozenset({rows}), is_part))
    tally.backward()
    return tally.lap()


def test_one_batch_one_step() -> None:
    counted = ordinary_step(Tally())
    assert counted == Counted(
        samples_drawn=4, samples_entered=4, micro_batches=1, epoch_edge=False, samples_handed=4, reconciled=True
    )


def test_batches_that_only_an_evaluation_saw_are_not_counted() -> None:
    tally = Tally()
    ordinary_step(tally)
    for _ in range(3):
        tally.fetched(OTHER, 100)
        tally.evaluated()
    counted = ordinary_step(tally)
    assert (counted.samples_drawn, counted.micro_batches, counted.epoch_edge) == (4, 1, True)
    assert not ordinary_step(tally).epoch_edge


def test_a_model_that_runs_twice_on_its_batch_counts_it_once() -> None:
    tally = Tally()
    tally.fetched(TRAIN, 4)
    tally.trained(4)
    tally.trained(4)
    tally.backward()
    counted = tally.lap()
    assert (counted.samples_drawn, counted.samples_entered, counted.micro_batches) == (4, 4, 1)


def test_accumulation_counts_every_micro_batch() -> None:
    tally = Tally()
    for size in (4, 4, 2):
        tally.fetched(TRAIN, size)
        trained(tally, size)
    counted = tally.lap()
    assert (counted.samples_drawn, counted.samples_entered, counted.micro_batches) == (10, 10, 3)


def test_batches_fetched_in_advance_for_accumulation_all_count() -> None:
    tally = Tally()
    for _ in range(4):
        tally.fetched(TRAIN, 4)
    for _ in range(4):
        trained(tally)
    assert tally.lap().samples_drawn == 16


def test_elements_are_those_of_each_micro_batchs_first_forward() -> None:
    tally = Tally()
    for _ in range(2):
        for entered, elements in ((4, 40), (2, 30)):
            tally.trained(entered, elements=elements)
            tally.trained(entered, elements=7)
            tally.backward()
        assert tally.lap().elements == 70
    tally.trained(4, elements=40, in_eval_mode=True)
    tally.fetched(OTHER, 4)
    tally.trained(4, elements=50)
    tally.backward()
    assert tally.lap().elements == 50, "of what was only evaluated none"


def test_two_loaders_in_one_step_both_count() -> None:
    tally = Tally()
    for _ in range(5):
        tally.fetched(TRAIN, 4)
        tally.fetched(OTHER, 12)
        trained(tally)
        assert tally.lap().samples_drawn == 16


def test_a_script_that_fetches_one_batch_ahead_loses_none() -> None:
    tally = Tally()
    tally.fetched(TRAIN, 4)
    drawn = []
    for _ in range(5):
        tally.fetched(TRAIN, 4)
        trained(tally)
        drawn.append(tally.lap().samples_drawn)
    assert drawn[1:] == [4] * 4


def test_an_evaluation_keeps_the_batch_that_was_fetched_before_it_and_is_trained_on_after_it() -> None:
    # Pseudo-labels: the model sees the batch without gradients first.
    tally = Tally()
    tally.fetched(TRAIN, 4)
    tally.evaluated()
    trained(tally)
    assert tally.lap().samples_drawn == 4


def test_a_model_that_is_tuned_in_eval_mode_is_trained() -> None:
    tally = Tally()
    for loader in ([TRAIN], []):
        for _ in range(2):
            for number in loader:
                tally.fetched(number, 4)
            tally.trained(4, in_eval_mode=True)
            tally.trained(3, in_eval_mode=True)
            tally.backward()
            drawn = 4 * len(loader)
            assert tally.lap() == Counted(
                samples_drawn=drawn,
                samples_entered=4,
                micro_batches=1,
                epoch_edge=False,
                samples_handed=drawn,
                reconciled=bool(loader),
            )


def test_a_part_in_eval_mode_does_not_make_a_step_an_evaluation() -> None:
    tally = Tally()
    tally.fetched(TRAIN, 4)
    tally.trained(4, in_eval_mode=True)
    tally.trained(4)
    tally.backward()
    counted = tally.lap()
    assert (counted.samples_drawn, counted.micro_batches, counted.epoch_edge) == (4, 1, False)


def test_an_evaluation_with_gradients_left_on_is_an_evaluation() -> None:
    tally = Tally()
    for _ in range(3):
        tally.fetched(OTHER, 100)
        tally.trained(100, in_eval_mode=True)
    counted = ordinary_step(tally)
    assert counted == Counted(samples_drawn=4, samples_entered=4, micro_batches=1, epoch_edge=True, samples_handed=4)


def test_without_a_loader_the_first_forward_of_each_micro_batch_counts() -> None:
    tally = Tally()
    for _ in range(2):
        tally.trained(4)
        tally.trained(3)
        tally.backward()
    assert tally.lap() == Counted(samples_drawn=0, samples_entered=8, micro_batches=2, epoch_edge=False)


def test_several_backward_passes_after_one_forward_are_one_micro_batch() -> None:
    tally = Tally()
    tally.trained(4)
    tally.backward()
    tally.backward()
    assert tally.lap().micro_batches == 1


def test_a_step_without_a_seen_backward_does_not_hide_the_next() -> None:
    # torch.autograd.grad takes the place of backward in some scripts.
    tally = Tally()
    for _ in range(3):
        tally.trained(4)
        assert tally.lap().samples_entered == 4


def test_a_loader_that_does_not_count_still_gives_micro_batches() -> None:
    tally = Tally()
    for _ in range(2):
        tally.fetched(TRAIN, 0)
        trained(tally)
    assert tally.lap() == Counted(samples_drawn=0, samples_entered=8, micro_batches=2, epoch_edge=False)


def test_an_epoch_that_begins_marks_its_step_only() -> None:
    tally = Tally()
    tally.epoch_began(TRAIN)
    assert ordinary_step(tally).epoch_edge
    assert not ordinary_step(tally).epoch_edge


def test_a_step_in_which_a_loader_is_read_without_gradients_is_no_usual_one() -> None:
    # An average of the weights is evaluated, which is no wrapped model.
    tally = Tally()
    ordinary_step(tally)
    tally.fetched(OTHER, 4, for_training=False)
    assert ordinary_step(tally).epoch_edge
    assert not ordinary_step(tally).epoch_edge


def test_the_main_loader_fed_most() -> None:
    tally = Tally()
    assert tally.main_loader() is None
    for i in range(6):
        for _ in range(2):
            tally.fetched(TRAIN, 4)
            trained(tally)
        if i == 3:
            tally.fetched(OTHER, 100)
            trained(tally)
        tally.lap()
    assert tally.main_loader() == (TRAIN, 2)


@pytest.mark.parametrize("tally", [Tally(), SteadyTally()], ids=lambda tally: type(tally).__name__)
def test_batches_that_are_passed_over_make_an_epoch_shorter(tally: Tally) -> None:
    # Completions of one batch of prompts are trained on in two parts; the second batch that is fetched is of no use.
    for _ in range(20):
        for _ in range(2):
            tally.fetched(TRAIN, 16)
        for _ in range(2):
            trained(tally, 8)
        tally.lap()
    main = tally.main_loader()
    assert main is not None
    assert main[0] == TRAIN
    assert main[1] == pytest.approx(2, abs=0.2)


def test_a_loader_that_is_passed_over_altogether_does_not_feed() -> None:
    tally = Tally()
    for number in range(10):
        for place in range(3):
            tally.fetched(OTHER, 4, storages={100 + 3 * number + place})
        tally.fetched(TRAIN, 4, storages={1 + number})
        step_on(tally, 1 + number)
    assert tally.loaders() == {TRAIN}
    assert tally.main_loader() == (TRAIN, 1)


def test_a_loader_of_one_batch_that_all_steps_train_on_feeds_no_two_steps() -> None:
    tally = Tally()
    tally.fetched(TRAIN, 4, storages={1})
    assert [step_on(tally, 1).samples_drawn for _ in range(5)] == [4] * 5
    assert tally.main_loader() is None


def test_of_loaders_that_are_read_side_by_side_the_one_with_most_samples_is_the_main_one() -> None:
    # A few labelled samples beside many without a label; the former's loader was asked once more.
    tally = Tally()
    for number in range(21):
        tally.fetched(OTHER, 4)
        if number != 1:
            tally.fetched(TRAIN, 28)
        trained(tally)
        tally.lap()
    main = tally.main_loader()
    assert main is not None
    assert main[0] == TRAIN


def test_the_most_steps_between_two_begins_are_an_epoch() -> None:
    tally = Tally()
    for steps in (0, 5, 5, 3, 5):
        tally.epoch_began(TRAIN)
        assert tally.steps_between_begins(TRAIN) in {None, 5}
        for _ in range(steps):
            ordinary_step(tally)
    assert tally.steps_between_begins(TRAIN) == 5
    assert tally.steps_between_begins(OTHER) is None


def test_a_step_in_which_other_optimizers_took_many_tells_nothing_of_an_epoch() -> None:
    tally = Tally()
    for _ in range(4):
        ordinary_step(tally)
    for _ in range(9):
        tally.fetched(TRAIN, 4)
        trained(tally)
    tally.interrupted()
    counted = tally.lap()
    assert (counted.samples_drawn, counted.epoch_edge, counted.interrupted) == (36, True, True)
    ordinary_step(tally)
    assert tally.main_loader() == (TRAIN, 1)


def test_the_first_steps_without_a_batch_do_not_thin_out_the_rest() -> None:
    # A script without an optimizer is wrapped at its second forward: its first step seems to have trained on nothing.
    tally = Tally()
    tally.fetched(TRAIN, 4)
    tally.lap()
    for _ in range(9):
        ordinary_step(tally)
    assert tally.main_loader() == (TRAIN, 1)


@pytest.mark.parametrize("loader", [TRAIN, OTHER])
def test_batches_that_were_looked_at_before_training_do_not_count_as_trained_on(loader: int) -> None:
    # Mean and deviation of the data set, computed by hand in a pass of its own.
    tally = Tally()
    tally.epoch_began(loader)
    for _ in range(50):
        tally.fetched(loader, 4)
    tally.epoch_began(TRAIN)
    for _ in range(10):
        counted = ordinary_step(tally)
    assert counted.samples_drawn == 4
    assert tally.main_loader() == (TRAIN, 1)


def test_a_thread_that_fetches_ahead_is_counted_over_the_window_and_not_undone_by_an_evaluation() -> None:
    tally, drawn = Tally(), 0
    for _ in range(10):
        tally.fetched(TRAIN, 4, ahead=True)
        tally.evaluated()
        tally.fetched(OTHER, 100)
        tally.evaluated()
        tally.fetched(TRAIN, 4, ahead=True)
        for _ in range(2):
            trained(tally)
            counted = tally.lap()
            drawn += counted.samples_drawn
            assert counted.micro_batches == 1
    assert drawn == 10 * 8


def test_what_a_thread_fetches_for_an_evaluation_is_not_counted() -> None:
    tally = Tally()
    ordinary_step(tally)
    for _ in range(3):
        tally.fetched(OTHER, 100, ahead=True, for_training=False)
        tally.evaluated()
    counted = ordinary_step(tally)
    assert (counted.samples_drawn, counted.samples_handed, counted.epoch_edge) == (4, 4, True)
    assert tally.loaders() == {TRAIN}


@pytest.mark.parametrize("kind", [Tally, SteadyTally])
def test_a_loader_that_feeds_no_training_in_most_steps_is_known(kind: type[Tally]) -> None:
    tally = kind()
    for step in range(40):
        tally.fetched(TRAIN, 4, storages={1})
        if step != 30:
            tally.fetched(OTHER, 8, storages={2})
        tally.trained(4, storages={1})
        tally.backward()
        assert tally.lap().samples_drawn == 4
        assert tally.unfed() == ([OTHER] if step >= 7 else [])
    tally.fetched(OTHER, 8, storages={2})
    tally.trained(8, storages={2})
    tally.backward()
    tally.lap()
    assert tally.unfed() == []


def test_a_loader_that_an_evaluation_reads_now_and_then_is_not_missed() -> None:
    tally = Tally()
    for step in range(40):
        if step % 3 == 0:
            tally.fetched(OTHER, 8, storages={2})
            tally.evaluated()
        tally.fetched(TRAIN, 4, storages={1})
        tally.trained(4, storages={1})
        tally.backward()
        tally.lap()
    assert tally.unfed() == []


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=12))
def test_no_sample_is_lost_or_counted_twice(steps: list[list[int]]) -> None:
    tally = Tally()
    for sizes in steps:
        for size in sizes:
            tally.fetched(TRAIN, size)
            trained(tally, size)
        counted = tally.lap()
        assert counted.samples_drawn == counted.samples_entered == sum(sizes)
        assert counted.micro_batches == len(sizes)


def test_a_closure_that_runs_several_times_counts_its_samples_once() -> None:
    tally = Tally()
    for _ in range(4):
        tally.trained(32)
        tally.backward(in_step=True)
    counted = tally.lap()
    assert (counted.samples_entered, counted.micro_batches) == (32, 1)
    tally.trained(32)
    assert tally.lap().samples_entered == 32


def turn(tally: Tally, entered: int, *, backwards: int = 1) -> None:
    for _ in range(backwards):
        trained(tally, entered)
    tally.optimizer_stepped()


def test_two_optimizers_that_train_in_turn_count_their_batch_once() -> None:
    tally = Tally()
    turn(tally, 4)
    turn(tally, 4)
    assert tally.lap().samples_entered == 4
    (remark,) = tally.remarks()
    assert remark == ASSUMED.format(4)


def test_optimizers_that_step_after_one_backward_count_its_batch_once() -> None:
    tally = Tally()
    turn(tally, 4, backwards=2)
    tally.optimizer_stepped()
    assert tally.lap().samples_entered == 8


def test_turns_of_different_size_are_not_counted_from_then_on() -> None:
    tally = Tally()
    turn(tally, 4, backwards=2)
    turn(tally, 4)
    assert tally.lap().samples_entered == 0
    turn(tally, 4)
    assert tally.lap().samples_entered == 0
    (remark,) = tally.remarks()
    assert (remark, tally.uncounted()) == (UNCOUNTED.format(NOT_ALIKE), NOT_ALIKE)


def test_what_is_no_tensor_is_not_counted() -> None:
    tally = Tally()
    turn(tally, 0)
    assert tally.lap().samples_entered == 0
    assert tally.remarks() == (UNCOUNTED.format(NOT_A_BATCH),)


def test_before_a_step_has_ended_there_is_nothing_to_remark() -> None:
    tally = Tally()
    tally.trained(4, samples=lambda: Rows(4, is_told=True))
    tally.backward()
    assert tally.remarks() == ()
    tally.optimizer_stepped()
    tally.lap()
    assert tally.remarks() == (TOLD.format(0, 4),)


def test_there_is_nothing_to_remark_where_a_loader_counts() -> None:
    tally = Tally()
    assert tally.remarks() == ()
    tally.fetched(TRAIN, 4)
    turn(tally, 0)
    assert tally.lap().samples_drawn == 4
    assert tally.remarks() == ()


def look(*sizes: int, is_part: bool = False) -> Callable[[], Look]:
    return lambda: Look(frozenset(sizes), is_part)


def followed(tally: Tally, entered: int, **how: Any) -> Pass:
    training = tally.trained(entered, **how)
    assert training is not None
    training.followed()
    return training


def test_a_forward_that_no_backward_pass_comes_to_trains_on_nothing() -> None:
    # An evaluation of a script that forgot both `no_grad` and `eval`.
    tally = Tally()
    for number in range(6):
        if number % 3 == 2:
            for _ in range(4):
                tally.fetched(OTHER, 100)
                followed(tally, 100)
        tally.fetched(TRAIN, 4)
        followed(tally, 4).reach()
        tally.backward()
        counted = tally.lap()
        assert (counted.samples_drawn, counted.samples_entered, counted.micro_batches) == (4, 4, 1)
        assert (counted.samples_handed, counted.reconciled) == (4, True)
    assert tally.main_loader() == (TRAIN, 1)
    assert tally.loaders() == {TRAIN}


def test_a_forward_that_is_stepped_on_in_the_next_step_counts_there() -> None:
    # A generator's forward, whose output trains the discriminator first.
    tally = Tally()
    drawn = []
    for _ in range(4):
        tally.fetched(TRAIN, 4)
        late = followed(tally, 4)
        drawn.append(tally.lap().samples_drawn)
        late.reach()
        tally.backward()
    assert drawn == [0, 4, 4, 4]


def test_where_a_backward_pass_comes_to_no_output_the_model_kept_its_loss_and_all_counts() -> None:
    tally = Tally()
    for _ in range(3):
        tally.fetched(TRAIN, 4)
        followed(tally, 4)
        tally.backward()
        assert tally.lap().samples_drawn == 4


def test_a_part_of_a_batch_counts_as_the_rows_that_entered() -> None:
    tally = Tally()
    for number in range(4):
        tally.fetched(TRAIN, 64, storages={number})
        tally.trained(16, storages={number}, look=look(16, is_part=True))
        tally.backward()
        counted = tally.lap()
        assert (counted.samples_drawn, counted.samples_handed, counted.reconciled) == (16, 64, True)


@pytest.mark.parametrize("parts", [2, 4])
def test_slices_of_a_batch_are_micro_batches_that_make_it_whole(parts: int) -> None:
    tally = Tally()
    tally.fetched(TRAIN, 64, storages={1})
    for _ in range(parts):
        tally.trained(64 // parts, storages={1}, look=look(64 // parts, is_part=True))
        tally.backward()
    counted = tally.lap()
    assert (counted.samples_drawn, counted.micro_batches, counted.reconciled) == (64, parts, True)


@pytest.mark.parametrize(
    ("rows", "sizes", "known", "reconciled"),
    [
        (64, (), False, True),
        (35, (35, 64), False, True),  # time first
        (30, (30, 8), False, False),  # rows left out, or packed
        (30, (30, 8), True, True),  # the loader's own tensors, as a whole
        (128, (128, 8), False, True),  # two views of each
        (100, (100, 8), False, False),
    ],
)
def test_what_entered_is_held_against_what_was_drawn(
    rows: int, sizes: tuple[int, ...], known: bool, reconciled: bool
) -> None:
    tally = Tally()
    tally.fetched(TRAIN, 64, storages={1})
    tally.trained(rows, storages={1} if known else (), look=look(*sizes))
    tally.backward()
    counted = tally.lap()
    assert (counted.samples_drawn, counted.reconciled) == (64, reconciled)
    assert ordinary_step(tally).reconciled


@pytest.mark.parametrize(("rows", "sizes", "known"), [(128, (128, 8), True), (128, (128, 64), False), (64, (), False)])
def test_rows_that_may_come_from_elsewhere_are_told(rows: int, sizes: tuple[int, ...], known: bool) -> None:
    tally = Tally()
    for place in (1, 2):
        tally.fetched(TRAIN, 64, storages={place})
        tally.trained(rows, storages={place} if known else (), look=look(*sizes))
        tally.backward()
        assert tally.lap().samples_drawn == 64
        assert tally.remarks() == ()
    for _ in range(3):
        assert tally.remarks() == ()
        assert step_of_views(tally).samples_drawn == 64
    assert tally.remarks() == (AS_VIEWS.format(128, "64 samples", ""),)


def step_of_views(tally: Tally) -> Counted:
    """End a step whose batch was joined with a memory's, or has two views of each sample."""
    tally.fetched(TRAIN, 64)
    tally.trained(128, look=look(128, 8))
    tally.backward()
    return tally.lap()


def test_rows_that_came_from_elsewhere_are_told_with_in_how_many_steps_but_for_odd_ones() -> None:
    tally = Tally()
    for number in range(40):
        step_of_views(tally) if number == 0 else ordinary_step(tally, 64)
    assert tally.remarks() == ()
    for _ in range(9):
        step_of_views(tally)
    (told,) = tally.remarks()
    assert "128 rows enter the model with 64 samples of a loader in 10 of 49 steps: " in told


def rows_of_batches(*rows: int, sizes: tuple[int, ...] = (), item_per_row: bool = False) -> list[int]:
    """Return the samples that are counted where batches of 32 enter in so many rows."""
    tally, drawn = Tally(), []
    tally.item_per_row = {TRAIN} if item_per_row else ()
    for place, number in enumerate(rows, 1):
        tally.fetched(TRAIN, 32, storages={place})
        tally.trained(number, storages={place}, look=look(number, *sizes))
        tally.backward()
        counted = tally.lap()
        assert counted.reconciled
        drawn.append(counted.samples_drawn)
    return drawn


def test_samples_that_a_collate_function_leaves_out_are_not_counted() -> None:
    assert rows_of_batches(32, 29, 32, 31, 29) == [32, 29, 32, 31, 29]


def test_where_shapes_tell_that_each_row_is_one_item_no_batch_need_be_whole() -> None:
    assert rows_of_batches(29, 31, 12, item_per_row=True) == [32, 31, 12]
    assert rows_of_batches(29, 31, 12) == [32] * 3


def test_a_share_that_is_the_same_in_each_batch_is_not_what_was_left() -> None:
    """As of pairs: the last batch of an epoch has fewer of them, and as many samples in each."""
    tally, drawn = Tally(), []
    tally.item_per_row = {TRAIN}
    for place, size in enumerate((32, 8, 32)):
        tally.fetched(TRAIN, size, storages={place})
        tally.trained(size // 2, storages={place}, look=look(size // 2))
        tally.backward()
        drawn.append(tally.lap().samples_drawn)
    assert drawn == [32, 8, 32]


def test_rows_that_hold_several_samples_each_count_as_those_drawn() -> None:
    assert rows_of_batches(8, 8, 8) == [32] * 3
    assert rows_of_batches(32, 40, 29) == [32] * 3, "as boxes of images, which may be more"
    assert rows_of_batches(32, 35, 29, sizes=(32,)) == [32] * 3, "time first"


@pytest.mark.parametrize(
    ("batches", "drawn", "reconciled"),
    [
        ([(1, 1), (8, 1), (5, 1)], [1, 8, 5], True),  # packed into one row, and the last of an epoch is of one sample
        ([(4, 4), (9, 4), (6, 4)], [4, 9, 6], True),  # packed into four rows
        ([(4, 4), (9, 3), (9, 4)], [4, 9, 9], False),
        ([(9, 9), (9, 5), (1, 1)], [9, 5, 1], True),  # some are left out
    ],
)
def test_samples_that_are_packed_into_rows_are_not_taken_for_left_out_as_a_batch_is_of_as_many(
    batches: list[tuple[int, int]], drawn: list[int], reconciled: bool
) -> None:
    tally = Tally()
    counted = []
    for place, (size, rows) in enumerate(batches):
        tally.fetched(TRAIN, size, storages={place})
        tally.trained(rows, storages={place})
        tally.backward()
        counted.append(tally.lap())
    assert [step.samples_drawn for step in counted] == drawn
    assert all(step.reconciled for step in counted) is reconciled


def test_halves_that_enter_one_after_the_other_reconcile() -> None:
    tally = Tally()
    tally.fetched(TRAIN, 4)
    tally.fetched(OTHER, 12)
    tally.trained(4, look=look(4))
    tally.trained(12, look=look(12))
    tally.backward()
    counted = tally.lap()
    assert (counted.samples_drawn, counted.reconciled) == (16, True)


def test_a_batch_that_a_forward_on_noise_took_by_its_size_is_that_of_the_forward_that_is_called_with_it() -> None:
    # generator(noise), discriminator(real), backward, step; discriminator(fake), backward, step.
    tally = Tally()
    drawn = []
    for number in range(4):
        tally.fetched(TRAIN, 8, storages={number})
        generated = followed(tally, 8)
        followed(tally, 8, storages={number}).reach()
        tally.backward()
        drawn.append(tally.lap().samples_drawn)
        generated.reach()
        followed(tally, 8).reach()
        tally.backward()
        tally.optimizer_stepped()
    assert drawn == [8] * 4


def test_noise_of_twice_as_many_rows_is_not_told_to_be_views_of_a_batch_that_enters_after_it() -> None:
    tally = Tally()
    for number in range(12):
        tally.fetched(TRAIN, 8, storages={number})
        followed(tally, 16).reach()
        followed(tally, 8, storages={number}).reach()
        tally.backward()
        counted = tally.lap()
        assert (counted.samples_drawn, counted.reconciled) == (8, True)
    assert tally.remarks() == ()


def test_a_batch_that_is_held_counts_in_each_step_that_trains_on_it() -> None:
    tally = Tally()
    for place in (1, 2):
        tally.fetched(TRAIN, 4, storages={place})
    counted = [step_on(tally, place) for place in (1, 1, 2, 1, 2, 1)]
    assert [(c.samples_drawn, c.reconciled) for c in counted] == [(4, True)] * 6
    assert tally.main_loader() == (TRAIN, 4 / 5), "the second step has no batch of its own"
    assert tally.remarks() == ()


def test_a_batch_that_a_second_optimizer_trains_on_after_the_step_is_counted_once() -> None:
    tally, counted = Tally(), []
    for place in range(1, 5):
        # As in pix2pix: the discriminator sees the batch after the generator's step, whose end is the step's.
        tally.fetched(TRAIN, 4, storages={place})
        counted.append(step_on(tally, place))
        tally.trained(4, storages={place})
        tally.backward()
    assert [c.samples_drawn for c in counted] == [4] * 4


def test_slices_of_a_batch_of_which_each_step_takes_one_are_one_batch() -> None:
    tally, counted = Tally(), []
    for place in (1, 2, 3):
        tally.fetched(TRAIN, 8, storages={place})
        counted += [step_on(tally, place, rows=2, is_part=True) for _ in range(4)]
    assert [(c.samples_drawn, c.reconciled) for c in counted] == [(2, True)] * 12
    assert tally.main_loader() == (TRAIN, 2 / 11)


def test_of_batches_that_are_held_and_made_anew_it_is_said_that_they_are_not_counted() -> None:
    tally = Tally()
    tally.fetched(TRAIN, 4, storages={1})
    for _ in range(20):
        step_on(tally, 9)
    assert tally.remarks() == (ASSUMED.format(4),)


def test_a_loader_that_gives_no_more_leaves_what_enters_beside_another_unknown() -> None:
    tally, counted = Tally(), []
    for number in range(12):
        tally.fetched(OTHER, 4, storages={number})
        tally.trained(4, storages={number})
        if number < 4:
            tally.fetched(TRAIN, 4)
        counted.append(step_on(tally, 99))
    assert [c.samples_drawn for c in counted] == [8] * 4 + [4] * 8
    assert [c.reconciled for c in counted] == [True] * 6 + [False] * 6


@pytest.mark.parametrize(
    ("first", "second", "entered"),
    [
        ({"call": (1, "x")}, {"call": (1, "y")}, 0),
        ({"call": (1, "x")}, {"call": (1, "x")}, 4),
        ({"call": (1, "x")}, {"call": (1, "y"), "goes_on": True}, 4),
        ({"call": (1, "x")}, {"call": (2, "y")}, 4),
        ({}, {}, 4),
    ],
)
def test_several_calls_of_a_model_before_a_backward_pass_are_on_nobody_knows_how_many_samples(
    first: dict[str, Any], second: dict[str, Any], entered: int
) -> None:
    tally = Tally()
    tally.trained(4, **first)
    tally.trained(4, **second)
    tally.backward()
    assert tally.lap().samples_entered == entered
    assert ("several times" in tally.remarks()[0]) == (not entered)


def test_a_closure_that_runs_again_on_all_of_the_data_counts_them_once_in_each_step() -> None:
    tally, counted = Tally(), []
    for _ in range(4):
        for _ in range(5):
            tally.trained(128, call=(1, "x"))
            tally.backward(in_step=True)
        tally.optimizer_stepped()
        counted.append(tally.lap())
    assert [(c.samples_entered, c.micro_batches) for c in counted] == [(128, 1)] * 4
    assert tally.remarks() == (ASSUMED.format(128),)


def passes(tally: Tally, *calls: object, **told: Any) -> Counted:
    """Return a step with a backward pass after each call of one model, on the tensor that lies there."""
    for place in calls:
        tally.trained(4, call=(1, place), **told)
        tally.backward()
    tally.optimizer_stepped()
    return tally.lap()


def test_a_second_backward_pass_over_the_same_tensor_is_on_no_more_samples() -> None:
    tally = Tally()
    counted = [passes(tally, f"x{number}", f"x{number}") for number in range(3)]
    assert [(c.samples_entered, c.micro_batches) for c in counted] == [(4, 1)] * 3
    (remark,) = tally.remarks()
    assert "backward passes" not in remark


def test_backward_passes_over_other_tensors_are_taken_to_be_on_other_samples_which_is_said() -> None:
    tally = Tally()
    counted = passes(tally, "x", "y")
    assert (counted.samples_entered, counted.micro_batches) == (8, 2)
    (remark,) = tally.remarks()
    assert "up to 2 backward passes" in remark


@pytest.mark.parametrize("number_of_passes", [1, 2])
def test_what_passes_after_one_that_gives_gradients_to_its_input_are_on_is_not_known(number_of_passes: int) -> None:
    tally = Tally()
    counted = passes(tally, *"xy"[:number_of_passes], changes_input=True)
    assert counted.samples_entered == (4 if number_of_passes == 1 else 0)
    assert ("gradient penalties" in tally.remarks()[0]) == (number_of_passes > 1)


def test_passes_over_one_tensor_in_every_step_may_stand_in_for_several_batches() -> None:
    tally = Tally()
    for _ in range(2):
        counted = passes(tally, "x", "x")
    assert counted.samples_entered == 0
    assert "stands in for several" in tally.remarks()[0]


def test_passes_that_nobody_can_tell_apart_count_each() -> None:
    assert passes(Tally(), None, None).samples_entered == 8


def test_rows_of_which_several_are_a_sample_are_none() -> None:
    tally = Tally()
    tally.trained(35, samples=lambda: Rows(0, is_told=True))
    tally.backward()
    assert tally.lap().samples_entered == 0
    assert "nodes of graphs" in tally.remarks()[0]


@pytest.mark.parametrize(("rows", "entered"), [(4, 0), (8, 8), (16, 8)])
def test_a_model_that_goes_on_with_fewer_rows_has_pooled_some_or_left_some_out(rows: int, entered: int) -> None:
    tally = Tally()
    tally.trained(8, call=(1, "x"))
    tally.trained(rows, call=(2, "y"), goes_on=True)
    tally.backward()
    assert tally.lap().samples_entered == entered
    assert ("goes on with fewer rows" in tally.remarks()[0]) == (not entered)


def test_steps_that_no_model_is_seen_in_are_not_said_to_be_counted() -> None:
    tally = Tally()
    trained(tally)
    for number in range(10):
        tally.optimizer_stepped()
        tally.lap()
        assert ("is seen" in tally.remarks()[0]) == (number >= 8)


@pytest.mark.parametrize("drawn", [4, 0])
def test_several_calls_on_the_batches_of_a_loader_count_as_these_do(drawn: int) -> None:
    tally = Tally()
    for _ in range(2):
        tally.fetched(TRAIN, drawn)
        tally.trained(4, call=(1, "x"))
        tally.trained(4, call=(1, "y"))
        tally.backward()
        counted = tally.lap()
        assert (counted.samples_drawn, counted.samples_entered) == (drawn, 4)
    assert not any("several times" in remark for remark in tally.remarks())


def test_samples_are_what_the_model_takes_them_for_where_no_loader_counts() -> None:
    told = Rows(20, 1, is_told=True)
    for samples, fed, entered in ((told, False, 20), (None, False, 0), (told, True, 35), (None, True, 35)):
        tally = Tally()
        if fed:
            tally.fetched(TRAIN, 35)
        tally.trained(35, samples=lambda samples=samples: samples)
        tally.backward()
        assert tally.lap().samples_entered == entered
        assert [("dim 1" in remark, "nothing tells" in remark) for remark in tally.remarks()] == (
            [] if fed else [(bool(samples), not samples)]
        )


@pytest.mark.parametrize("unlabelled", [4, 28])
def test_samples_that_the_model_labels_and_then_trains_on_count(unlabelled: int) -> None:
    tally = Tally()
    for _ in range(3):
        tally.fetched(OTHER, unlabelled)
        tally.evaluated()
        tally.fetched(TRAIN, 4)
        tally.trained(unlabelled + 4)
        tally.backward()
        counted = tally.lap()
        assert (counted.samples_drawn, counted.reconciled) == (unlabelled + 4, True)


def test_an_evaluation_that_fetched_as_many_does_not_count() -> None:
    tally = Tally()
    tally.fetched(OTHER, 4)
    tally.evaluated()
    tally.fetched(TRAIN, 4)
    tally.trained(4)
    tally.backward()
    assert tally.lap().samples_drawn == 4


def own_label_step(tally: Tally, *, has_own: bool, in_a_row: int = 1) -> Counted:
    """Train on a batch, maybe on what the model said of it without gradients."""
    tally.fetched(TRAIN, 4)
    for _ in range(in_a_row if has_own else 0):
        tally.evaluated()
    trained(tally)
    return tally.lap()


def test_a_forward_without_gradients_now_and_then_is_a_part_of_a_step_once_it_is_known_to_come_often() -> None:
    tally = Tally()
    edges = [own_label_step(tally, has_own=number % 2 == 0).epoch_edge for number in range(20)]
    assert edges == [True, False] * 3 + [False] * 14


@pytest.mark.parametrize(("every", "in_a_row"), [(20, 1), (4, 2)])
def test_steps_with_an_evaluation_by_hand_stay_edges(every: int, in_a_row: int) -> None:
    tally = Tally()
    steps = [own_label_step(tally, has_own=number % every == 0, in_a_row=in_a_row) for number in range(100)]
    assert [step.epoch_edge for step in steps] == [number % every == 0 for number in range(100)]


def test_it_is_known_of_models_that_train_in_eval_mode() -> None:
    tally = Tally()
    tally.trained(4)
    tally.trained(4, in_eval_mode=True)
    tally.backward()
    assert not tally.trains_in_eval_mode, "a part of them alone is"
    tally.trained(4, in_eval_mode=True)
    tally.backward()
    assert tally.trains_in_eval_mode


def test_what_a_thread_fetches_counts_in_the_step_that_trains_on_it() -> None:
    tally = Tally()
    drawn = []
    for epoch in range(3):
        tally.epoch_began(TRAIN)
        for place in range(4):
            while_two_wait = range(3) if place == 0 else [place + 2]
            for fetched in while_two_wait:
                if fetched < 4:
                    tally.fetched(TRAIN, 4, ahead=True, storages=[4 * epoch + fetched + 1])
            drawn.append(step_on(tally, 4 * epoch + place + 1).samples_drawn)
    assert drawn[4:] == [4] * 8
    assert sum(drawn) == 48


def test_what_a_thread_fetched_counts_at_once_where_the_script_makes_others_of_it() -> None:
    tally = Tally()
    for place in (1, 2):
        tally.fetched(TRAIN, 4, ahead=True, storages=[place])
    drawn = [step_on(tally, 1).samples_drawn]
    tally.fetched(TRAIN, 4, ahead=True, storages=[3])
    drawn += [step_on(tally, place).samples_drawn for place in (2, 100, 101, 102)]
    tally.fetched(TRAIN, 4, ahead=True, storages=[4])
    drawn.append(step_on(tally, 103).samples_drawn)
    assert drawn == [8, 0, 0, 0, 4, 4]


def test_a_batch_that_a_thread_fetched_counts_in_each_step_on_it() -> None:
    tally = Tally()
    tally.fetched(TRAIN, 4, ahead=True, storages=[1])
    tally.fetched(TRAIN, 4, ahead=True, storages=[2])
    step_on(tally, 1)
    tally.fetched(TRAIN, 4, ahead=True, storages=[3])
    assert [step_on(tally, place).samples_drawn for place in (2, 2, 3, 3)] == [0, 0, 4, 4]  # 2 did when it was fetched
