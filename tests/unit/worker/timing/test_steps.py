from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.worker.timing.steps import NO_OPTIMIZER, REPLACED_AFTER, SILENT_AFTER, StepCounter


def counter_of(num_optimizers: int) -> StepCounter:
    """Return the counter of a script that has built so many optimizers before it trains."""
    counter = StepCounter()
    counter.built(num_optimizers - 1)
    return counter


def step(counter: StepCounter, optimizer: int) -> bool:
    counter.enter(optimizer)
    return counter.leave(optimizer)


def scaled(counter: StepCounter, optimizer: int, *, skipped: bool = False) -> bool:
    counter.enter(optimizer, scaled=True)
    inside = False if skipped else step(counter, optimizer)
    assert not inside, "the scaler's step is the outermost"
    return counter.leave(optimizer, scaled=True)


def test_every_step_of_the_only_optimizer_counts() -> None:
    counter = counter_of(4)
    assert [step(counter, 0) for _ in range(3)] == [True] * 3
    assert counter.reference == 0


def test_the_first_optimizer_takes_the_place_of_backward_passes_before_it_at_once() -> None:
    counter = StepCounter()
    assert [step(counter, NO_OPTIMIZER) for _ in range(3)] == [True] * 3
    counter.built(0)
    assert [step(counter, 0) for _ in range(3)] == [True] * 3
    assert (counter.reference, counter.num_replaced) == (0, 1)


def test_a_scaled_step_is_one_step_skipped_or_not() -> None:
    counter = counter_of(4)
    assert [scaled(counter, 0, skipped=skipped) for skipped in (True, False, True)] == [True] * 3


def test_an_optimizer_inside_an_optimizer_is_not_a_step_of_its_own() -> None:
    counter = counter_of(4)
    for _ in range(3):
        counter.enter(1)
        assert not step(counter, 0)
        assert not step(counter, 0)
        assert counter.leave(1)
    assert counter.reference == 1


def test_two_optimizers_in_turn_give_one_step_per_round() -> None:
    counter = counter_of(4)
    rounds = [(step(counter, 0), step(counter, 1)) for _ in range(2 * SILENT_AFTER)]
    assert set(rounds) == {(True, False)}
    assert not counter.elect(), "as many steps each: the reference stays"


def test_the_one_with_most_steps_is_elected() -> None:
    counter = counter_of(4)
    for _ in range(4):
        assert step(counter, 0)
        assert [step(counter, 1) for _ in range(5)] == [False] * 5
    assert counter.elect()
    assert counter.reference == 1
    assert step(counter, 1)
    assert not step(counter, 0)
    assert not counter.elect(), "one step each since: a tie"
    assert counter.reference == 1
    assert not counter.elect(), "no steps at all"


def test_after_a_pre_fit_the_next_optimizer_takes_over() -> None:
    counter = counter_of(4)
    assert step(counter, 0)
    others = [step(counter, 1) for _ in range(SILENT_AFTER + 2)]
    assert others == [False] * SILENT_AFTER + [True, True]


def test_an_optimizer_that_is_built_later_takes_over_soon() -> None:
    # Cross validation: a model and an optimizer of its own for every fold.
    counter = counter_of(1)
    for fold in range(5):
        counter.built(fold)
        steps = [step(counter, fold) for _ in range(40)]
        assert steps == [True] * 40 if fold == 0 else [False] * REPLACED_AFTER + [True] * (40 - REPLACED_AFTER)
        assert (counter.num_replaced, counter.replaced_after) == (fold, 40 if fold else 0)


def test_an_optimizer_that_was_replaced_is_not_elected_again() -> None:
    counter = counter_of(1)
    for fold in range(3):
        counter.built(fold)
        for number in range(40):
            step(counter, fold)
            if number == REPLACED_AFTER + 2 and fold:
                assert not counter.elect(), "the fold before took more steps since the last election"
                assert counter.reference == fold


def test_an_inner_loop_with_an_optimizer_for_each_batch_takes_nothing_over() -> None:
    # An attack on the inputs, say: it silences the reference in every step.
    counter = counter_of(1)
    assert step(counter, 0)
    for batch in range(1, 50):
        counter.built(batch)
        assert not any(step(counter, batch) for _ in range(min(batch, REPLACED_AFTER - 1)))
        assert step(counter, 0)
    assert counter.num_replaced == 0


@given(st.integers(1, 12), st.integers(1, 4), st.booleans())
def test_the_lasting_optimizer_outlives_those_for_each_batch_that_step_before_it(
    num_steps: int, num_loops: int, elects: bool
) -> None:
    # An attack on the inputs, or inner loops of meta-learning: one step or more, of which each has its own optimizer.
    counter, built, counted = counter_of(1), 0, []
    for _ in range(12):
        inner = 0
        for _ in range(num_loops):
            built += 1
            counter.built(built)
            inner += sum(step(counter, built) for _ in range(num_steps))
        counted.append((inner, step(counter, 0)))
        if elects and counted[-1] == (0, True):
            assert not counter.elect(), "a newcomer took more steps"
    assert counted[2:] == [(0, True)] * 10
    assert counter.reference == 0


def test_an_optimizer_of_the_fold_before_that_is_older_does_not_outlive_it() -> None:
    # A generator and a discriminator, anew for every fold; the discriminator's step comes first.
    counter = StepCounter()
    for fold in range(3):
        generator, discriminator = 2 * fold, 2 * fold + 1
        counter.built(discriminator)
        rounds = [(step(counter, discriminator), step(counter, generator)) for _ in range(40)]
        assert set(rounds[REPLACED_AFTER:]) <= {(True, False), (False, True)}
        assert len(set(rounds[REPLACED_AFTER:])) == 1
        assert counter.num_replaced == fold


def test_a_seldom_step_of_the_reference_keeps_it() -> None:
    counter = counter_of(4)
    for _ in range(3):
        assert step(counter, 0)
        assert not any(step(counter, 1) for _ in range(SILENT_AFTER - 1))


def test_a_step_that_an_exception_ended_is_forgotten_when_it_is_tried_again() -> None:
    counter = counter_of(4)
    counter.enter(0, scaled=True)
    counter.enter(0)
    assert scaled(counter, 0)


def test_a_step_that_an_exception_ended_does_not_silence_the_others_for_good() -> None:
    counter = counter_of(4)
    assert step(counter, 0)
    counter.enter(0)
    others = [step(counter, 1) for _ in range(3 * SILENT_AFTER)]
    assert any(others)
    assert all(others[others.index(True) :])


def test_a_step_that_calls_the_step_of_its_base_class_counts_once() -> None:
    # torch calls the hooks of both when an optimizer of the base class exists too.
    counter = counter_of(4)
    for _ in range(3):
        counter.enter(0)
        counter.enter(0)
        assert [counter.leave(0), counter.leave(0)].count(True) == 1


@given(st.lists(st.integers(0, 3), max_size=60))
def test_the_elected_one_has_most_steps(turns: list[int]) -> None:
    counter = counter_of(4)
    for optimizer in turns:
        step(counter, optimizer)
    counts = Counter(turns)
    before = counter.reference
    changed = counter.elect()
    assert changed == (counter.reference != before)
    if turns:
        assert before == turns[0]
        assert counts[counter.reference] == max(counts.values())


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=60))
def test_counted_steps_are_those_of_the_reference(turns: list[tuple[int, bool, bool]]) -> None:
    counter = counter_of(4)
    for optimizer, with_scaler, skipped in turns:
        counts = scaled(counter, optimizer, skipped=skipped) if with_scaler else step(counter, optimizer)
        assert counts == (optimizer == turns[0][0])
