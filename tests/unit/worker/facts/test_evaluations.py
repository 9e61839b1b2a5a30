from __future__ import annotations

import pytest
import torch

from dpdoctor.worker.facts.evaluations import EVALUATION, Evaluations
from tests.builders.handclock import HandClock


class Script:
    """A script that takes 10 ticks for a batch, 100 for a forward, 1 for everything else.

    `passes` are the evaluations, `inferences` the other passes without gradients, as found.
    """

    def __init__(self) -> None:
        self.clock = HandClock(1)
        self.passes: list[tuple[int, int]] = []
        self.inferences: list[tuple[int, int]] = []
        self.watched = Evaluations(self.clock, self.ended)

    def ended(self, kind: str, begin_ns: int, end_ns: int) -> None:
        (self.passes if kind == EVALUATION else self.inferences).append((begin_ns, end_ns))

    def iterate(self) -> int:
        """Begin to iterate a loader; return when."""
        now = self.clock()
        self.watched.iterates()
        self.clock.tick(1)
        return now

    def fetch(self, iterator: int = 0) -> int:
        now = self.clock()
        self.watched.fetches(iterator)
        self.clock.tick(10)
        return now

    def run_out(self, iterator: int = 0) -> int:
        """Ask once more and be told that there is nothing left."""
        now = self.clock()
        self.watched.fetches(iterator)
        self.watched.ran_out(iterator)
        return now

    def look(self, *, with_gradients: bool = False) -> int:
        """Call the model without training it, in eval mode when it has gradients; return when it was done."""
        self.watched.forward(with_gradients=with_gradients)
        self.clock.tick(100)
        return self.clock()

    def train(self) -> None:
        self.watched.trains()
        self.clock.tick(100)
        self.watched.backward()
        self.clock.tick(1)

    def tune_in_eval_mode(self) -> None:
        self.look(with_gradients=True)
        self.watched.backward()
        self.clock.tick(1)


@pytest.fixture
def script() -> Script:
    """Give a script that has trained for a step."""
    made = Script()
    made.iterate()
    made.fetch()
    made.train()
    return made


def test_an_evaluation_lasts_from_its_loader_to_the_one_that_is_trained_on(script: Script) -> None:
    with torch.no_grad():
        begin = script.iterate()
        for _ in range(3):
            script.fetch()
            script.look()
    script.clock.tick(7)
    end = script.iterate()
    script.fetch()
    script.train()
    assert script.passes == [(begin, end)]


def test_evaluations_one_after_the_other_are_one(script: Script) -> None:
    begin = script.clock()
    for _ in range(2):
        with torch.inference_mode():
            script.iterate()
            script.fetch()
            script.look()
    end = script.fetch()
    script.train()
    script.fetch()
    script.train()
    assert script.passes == [(begin, end)]


def test_a_loop_that_is_left_with_gradients_on_begins_with_its_first_forward(script: Script) -> None:
    script.iterate()
    script.fetch()
    begin = script.clock()
    with torch.no_grad():
        script.look()
    script.fetch()
    with torch.no_grad():
        last = script.look()
    assert script.run_out() == last
    script.iterate()
    script.fetch()
    script.train()
    assert script.passes == [(begin, last)]


def test_what_is_saved_after_it_is_no_part_of_it(script: Script) -> None:
    with torch.no_grad():
        begin = script.iterate()
        script.fetch()
        end = script.look()
    script.watched.leaves()
    script.clock.tick(1000)
    script.fetch()
    script.train()
    assert script.passes == [(begin, end)]


def test_one_that_the_script_ends_with_counts(script: Script) -> None:
    with torch.no_grad():
        begin = script.iterate()
        script.fetch()
        end = script.look()
    script.watched.trains()
    script.watched.trains()
    assert script.passes == [(begin, end)]


def test_forwards_without_gradients_inside_a_training_step_are_none(script: Script) -> None:
    # A generator's sample for its critic; a pseudo-label of the batch that is then trained on.
    for _ in range(3):
        script.fetch()
        with torch.no_grad():
            script.look()
            script.look()
        script.train()
    assert script.passes == []


def test_a_loader_that_is_looked_through_without_the_model_is_none(script: Script) -> None:
    with torch.no_grad():
        script.iterate()
        script.fetch()
    script.fetch()
    script.train()
    assert script.passes == []


def test_without_any_loader_nobody_knows_what_forwards_without_gradients_are_for() -> None:
    # A rollout, of which the last forward is followed by steps of the environment and the computing of advantages.
    script, found = Script(), []
    script.train()
    for number in (1, 3):
        begin = script.clock()
        with torch.no_grad():
            for _ in range(number):
                script.look()
        script.clock.tick(7)
        found.append((begin, script.clock()))
        script.train()
    assert script.passes == []
    assert script.inferences == found


def test_a_rollout_whose_samples_a_loader_gives_out_is_no_evaluation(script: Script) -> None:
    begin = script.clock()
    with torch.no_grad():
        for _ in range(3):
            script.look()
    end = script.iterate()
    script.fetch()
    script.train()
    assert (script.passes, script.inferences) == ([], [(begin, end)])


def test_pseudo_labels_for_batches_of_several_loaders_are_no_evaluation(script: Script) -> None:
    for _ in range(2):
        for iterator in (1, 2):
            script.fetch(iterator)
            with torch.no_grad():
                script.look()
        script.fetch(3)
        script.train()
    assert script.passes == []
    assert len(script.inferences) == 2


def test_text_that_is_generated_from_a_batch_of_the_training_is_no_evaluation(script: Script) -> None:
    for _ in range(2):
        script.fetch()
        begin = script.clock()
        with torch.no_grad():
            for _ in range(5):
                script.look()
        end = script.clock()
        script.train()
    assert script.passes == []
    assert script.inferences[-1] == (begin, end)


def test_an_evaluation_of_a_single_batch_is_one(script: Script) -> None:
    script.iterate()
    script.fetch()
    begin = script.clock()
    with torch.no_grad():
        last = script.look()
    script.run_out()
    script.fetch()
    script.train()
    assert (script.passes, script.inferences) == ([(begin, last)], [])


def test_it_is_on_until_the_script_turns_to_something_else(script: Script) -> None:
    assert not script.watched.is_on
    with torch.no_grad():
        script.look()
        assert script.watched.is_on
    script.iterate()
    assert not script.watched.is_on


def test_it_is_on_while_a_loader_is_read_for_another_model(script: Script) -> None:
    with torch.no_grad():
        script.fetch()
    assert script.watched.is_on
    script.fetch()
    assert not script.watched.is_on
    with torch.no_grad():
        script.fetch()
    script.train()
    assert not script.watched.is_on


def test_with_gradients_left_on_an_evaluation_is_one(script: Script) -> None:
    script.iterate()
    script.fetch()
    begin = script.clock()
    script.look(with_gradients=True)
    script.fetch()
    end = script.look(with_gradients=True)
    script.fetch()
    script.train()
    assert script.passes == [(begin, end)]


def test_a_model_that_is_tuned_in_eval_mode_does_not_evaluate(script: Script) -> None:
    for _ in range(3):
        script.fetch()
        script.tune_in_eval_mode()
    assert script.passes == []


def test_an_evaluation_of_a_model_that_is_tuned_in_eval_mode_is_one(script: Script) -> None:
    with torch.no_grad():
        begin = script.iterate()
        script.fetch()
        end = script.look()
    assert script.fetch() == end
    script.tune_in_eval_mode()
    script.fetch()
    script.tune_in_eval_mode()
    assert script.passes == [(begin, end)]
