"""The short way counts what the long way does, whatever a script does next."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdoctor.worker.timing.batches import LEAST_GONE, Pass, identity, live_storages, storages
from dpdoctor.worker.timing.steady_tally import SteadyTally
from dpdoctor.worker.timing.tally import Counted, Tally

TRAIN, OTHER = 0, 1
SIZE = 4
Act = Callable[["Script"], None]


class Script:
    """Does the same things before one tally; it holds the batches that it was given last."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.batches: list[torch.Tensor] = []
        self.open: list[Pass] = []
        self.counted: list[Counted] = []

    def fetch(self, loader: int = TRAIN, size: int = SIZE, *, for_training: bool = True, left_out: int = 0) -> None:
        rows = size - left_out
        self.batches = [*self.batches[-3:], torch.zeros(rows, 2)]
        self.tally.handed(loader, size, [self.batches[-1], torch.zeros(rows)], ahead=False, for_training=for_training)

    def forward(self, *tensors: torch.Tensor, in_eval_mode: bool = False) -> None:
        first = tensors[0]
        is_plain = not in_eval_mode and (self.tally.loaders_count or self.tally.repeats(0, first))
        if is_plain and self.tally.trained_as_before(first, (0, None), alone=len(tensors) == 1):
            return
        training = self.tally.trained(
            len(first),
            elements=first.numel(),
            in_eval_mode=in_eval_mode,
            storages=storages(tensors),
            call=(0, identity(first)),
        )
        if training is not None:
            training.followed()
            self.open.append(training)

    def backward(self, *, reaches: bool = True, in_step: bool = False) -> None:
        for training in self.open[None if reaches else len(self.open) - 1 :]:
            training.reach()
        self.open.clear()
        self.tally.backward(in_step=in_step)

    def step(self) -> None:
        self.tally.optimizer_stepped()
        self.counted.append(self.tally.lap())

    def usual(self) -> None:
        self.fetch()
        self.trained_on(self.batches[-1])

    def filtered(self) -> None:
        self.fetch(left_out=1)
        self.trained_on(self.batches[-1])

    def views(self) -> None:
        self.fetch()
        self.own(2 * SIZE)

    def evaluation(self) -> None:
        for _ in range(3):
            self.fetch(OTHER, for_training=False)
            self.tally.evaluated()

    def own(self, size: int = SIZE) -> None:
        self.trained_on(torch.zeros(size, 2))

    def trained_on(self, *tensors: torch.Tensor) -> None:
        self.forward(*tensors)
        self.backward()
        self.step()

    def last(self, back: int = 1) -> torch.Tensor:
        return self.batches[-min(back, len(self.batches))] if self.batches else torch.zeros(SIZE, 2)

    def pair(self) -> None:
        other = self.last()
        self.fetch()
        self.trained_on(self.last(), other)

    def held(self, back: int) -> None:
        self.forward(self.last(back))

    def copied(self) -> None:
        if self.batches:
            self.batches.append(self.batches[-1].clone())
            self.tally.copied(storages(self.batches[-2]), live_storages(self.batches[-1]))


ACTS: dict[str, Act] = {
    "usual": Script.usual,
    "own": Script.own,
    "own_short": lambda script: script.own(SIZE - 1),
    "on_last": lambda script: script.trained_on(script.last()),
    "on_held": lambda script: script.trained_on(script.last(3)),
    "filtered": Script.filtered,
    "left_out": lambda script: script.fetch(left_out=1),
    "pair": Script.pair,
    "fetch": Script.fetch,
    "short": lambda script: script.fetch(size=SIZE - 1),
    "other": lambda script: script.fetch(OTHER),
    "no_grad": lambda script: script.fetch(OTHER, for_training=False),
    "no_grad_alike": lambda script: script.fetch(for_training=False),
    "evaluation": Script.evaluation,
    "ahead": lambda script: script.tally.fetched(TRAIN, SIZE, ahead=True),
    "ahead_no_grad": lambda script: script.tally.fetched(OTHER, SIZE, ahead=True, for_training=False),
    "last": lambda script: script.held(1),
    "held": lambda script: script.held(3),
    "copied": Script.copied,
    "noise": lambda script: script.forward(torch.zeros(SIZE, 2)),
    "more_noise": lambda script: script.forward(torch.zeros(2 * SIZE, 2)),
    "views": Script.views,
    "part": lambda script: script.forward(script.batches[-1][:2] if script.batches else torch.zeros(2, 2)),
    "eval_mode": lambda script: script.forward(torch.zeros(SIZE, 2), in_eval_mode=True),
    "evaluated": lambda script: script.tally.evaluated(),
    "epoch": lambda script: script.tally.epoch_began(TRAIN),
    "interrupted": lambda script: script.tally.interrupted(),
    "backward": Script.backward,
    "closure": lambda script: script.backward(in_step=True),
    "turn": lambda script: script.tally.optimizer_stepped(),
    "step": Script.step,
}


@settings(max_examples=400)
@given(
    st.sampled_from(["usual", "own"]),
    st.lists(st.one_of(st.sampled_from(["usual", "own"]), st.sampled_from(list(ACTS))), max_size=40),
)
def test_every_step_is_counted_alike(way: str, acts: list[str]) -> None:
    scripts = Script(SteadyTally(patience=1)), Script(Tally())
    for script in scripts:
        for _ in range(4):
            ACTS[way](script)
        for act in acts:
            ACTS[act](script)
        script.step()
    short, long = scripts
    first = next((step for step, counted in enumerate(long.counted) if counted != short.counted[step]), None)
    if first is not None:
        assert short.counted[first].epoch_edge  # it is set apart, and what comes then may hang on what it left
        return
    assert short.tally.remarks() == long.tally.remarks()
    assert short.tally.loaders() == long.tally.loaders()
    assert short.tally.feeding() == long.tally.feeding()
    assert short.tally.main_loader() == long.tally.main_loader()
    assert short.tally.steps_between_begins(TRAIN) == long.tally.steps_between_begins(TRAIN)


def test_the_short_way_is_taken() -> None:
    script = Script(SteadyTally(patience=3))
    ways = []
    for _ in range(5):
        script.usual()
        ways.append(script.tally.was_short)
    assert ways == [False, False, False, True, True]
    assert [counted.samples_drawn for counted in script.counted] == [SIZE] * 5


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_it_is_taken_with_nested_tensors_which_may_have_no_shape(layout: torch.layout) -> None:
    script = Script(SteadyTally(patience=2))
    for _ in range(6):
        nested = torch.nested.nested_tensor([torch.zeros(rows, 2) for rows in range(1, SIZE + 1)], layout=layout)
        script.tally.handed(TRAIN, SIZE, nested, ahead=False, for_training=True)
        if not script.tally.trained_as_before(nested, (0, None), alone=True):
            script.tally.trained(SIZE, elements=nested.numel(), storages=storages((nested,)))
        script.backward()
        script.step()
    assert [counted.samples_drawn for counted in script.counted] == [SIZE] * 6
    assert script.tally.was_short


def test_the_short_way_is_taken_where_no_loader_counts() -> None:
    script = Script(SteadyTally(patience=2))
    ways = []
    for size in (SIZE, SIZE, SIZE, SIZE - 1, SIZE - 1, SIZE - 1):
        script.own(size)
        ways.append(script.tally.was_short)
    assert ways == [False, False, True, False, False, True]
    assert [counted.samples_entered for counted in script.counted] == [SIZE] * 3 + [SIZE - 1] * 3


def test_steps_are_steady_though_a_batch_is_looked_at_whenever_a_loader_begins() -> None:
    script = Script(SteadyTally(patience=3))
    told = []
    for _ in range(3):
        script.tally.epoch_began(TRAIN)
        script.fetch()  # next(iter(loader)), to see how large it is
        script.tally.epoch_began(TRAIN)
        for _ in range(5):
            script.usual()
            told.append((script.tally.was_short, script.tally.is_steady))
    assert told[:5] == [(False, False)] * 3 + [(False, True), (True, True)]
    assert told[5:] == 2 * [*[(False, True)] * 4, (True, True)]


@pytest.mark.parametrize("odd", ["interrupted", "noise", "more_noise"])
def test_steps_are_steady_no_more_after_one_of_another_kind_in_which_no_loader_began(odd: str) -> None:
    script = Script(SteadyTally(patience=3))
    for _ in range(6):
        script.usual()
    assert script.tally.is_steady
    ACTS[odd](script)
    script.usual()
    assert not script.tally.is_steady


def test_a_loader_that_takes_anothers_place_feeds_from_its_second_step_on() -> None:
    script = Script(SteadyTally(patience=2))
    for _ in range(5):
        script.usual()
    feeding = []
    for _ in range(3):
        script.fetch(OTHER)
        script.trained_on(script.last())
        feeding.append(script.tally.feeding())
    assert script.tally.was_short
    assert feeding == [{TRAIN}, {TRAIN, OTHER}, {TRAIN, OTHER}]


def test_samples_that_a_collate_function_leaves_out_are_not_counted_either_way() -> None:
    script, ways = Script(SteadyTally(patience=2)), []
    for left_out in (0, 0, 0, 1, 0, 0, 1):
        script.filtered() if left_out else script.usual()
        ways.append(script.tally.was_short)
    assert [counted.samples_drawn for counted in script.counted] == [4, 4, 4, 3, 4, 4, 3]
    assert ways == [False, False, True, False, False, True, False]


def test_it_is_taken_again_after_an_evaluation() -> None:
    script = Script(SteadyTally(patience=2))
    for _ in range(3):
        script.usual()
    script.evaluation()
    script.usual()
    assert isinstance(script.tally, SteadyTally)
    assert script.tally._is_short
    assert [counted.epoch_edge for counted in script.counted] == [False, False, False, True]


def test_a_step_whose_first_forward_was_not_followed_is_set_apart() -> None:
    short, long = Script(SteadyTally(patience=1)), Script(Tally())
    for script in (short, long):
        for _ in range(4):
            script.usual()
        script.fetch()
        script.held(1)
        script.fetch()
        script.held(1)
        script.backward(reaches=False)
        script.step()
        script.usual()
    assert short.counted[:4] == long.counted[:4]
    assert long.counted[4].samples_drawn == SIZE
    assert short.counted[4].epoch_edge
    assert short.counted[5].samples_drawn == long.counted[5].samples_drawn == SIZE


@pytest.mark.parametrize("num_steps", [10, 500])
def test_batches_that_are_freed_are_not_remembered(num_steps: int) -> None:
    script = Script(SteadyTally(patience=1))
    for _ in range(num_steps):
        script.usual()
    assert len(script.tally._pending._gone) <= 200


def test_a_batch_that_a_view_holds_for_long_counts_where_it_is_trained_on_again() -> None:
    short, long = Script(SteadyTally(patience=1)), Script(Tally())
    for script in (short, long):
        for _ in range(5):
            script.usual()
        view = script.last().detach()
        for _ in range(3 * LEAST_GONE):
            script.usual()
        script.trained_on(view)
    assert short.counted[-1].samples_drawn == long.counted[-1].samples_drawn == SIZE


def test_a_forward_that_trains_nothing_is_not_counted_where_no_loader_counts() -> None:
    short, long = Script(SteadyTally(patience=1)), Script(Tally())
    for script in (short, long):
        for _ in range(4):
            script.own()
        script.forward(torch.zeros(SIZE, 2))
        script.forward(torch.zeros(SIZE, 2))
        script.backward(reaches=False)
        script.step()
        for _ in range(3):
            script.own()
    assert [counted.epoch_edge for counted in short.counted] == [False] * 4 + [True] + [False] * 3
    assert [counted.samples_entered for counted in short.counted] == [SIZE] * 8
    assert [counted.samples_entered for counted in long.counted] == [SIZE] * 8
    assert short.tally.remarks() == long.tally.remarks()


def test_a_second_pass_over_a_batch_that_went_the_short_way_is_on_no_more_samples() -> None:
    script = Script(SteadyTally(patience=2))
    for _ in range(5):
        script.own()
    assert script.tally.was_short
    batch = torch.zeros(SIZE, 2)
    for _ in range(2):
        script.forward(batch)
        script.backward()
    script.step()
    assert [counted.samples_entered for counted in script.counted] == [SIZE] * 6


def test_a_closure_that_runs_once_and_then_again_counts_the_same_data_once_in_each_step() -> None:
    script, data = Script(SteadyTally(patience=2)), torch.zeros(SIZE, 2)
    for number in range(12):
        for _ in range(1 if number < 6 else 5):
            script.forward(data)
            script.backward(in_step=True)
        script.step()
    assert [(c.samples_entered, c.micro_batches) for c in script.counted] == [(SIZE, 1)] * 12
    assert "same tensor" not in "".join(script.tally.remarks())


def test_an_update_without_a_backward_pass_is_set_apart() -> None:
    script = Script(SteadyTally(patience=1))
    for _ in range(4):
        script.own()
    script.forward(torch.zeros(SIZE, 2))
    script.step()
    assert script.counted[-1].epoch_edge
