"""Every way to count twice or too little that is known, in combination: the script keeps a count of its own."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.batches import MOST_AHEAD
from tests.builders.rig import Rig

NUM_STEPS = 14
BATCH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a training loop does.

    Attributes:
        ahead: batches that its framework fetches before it hands one over.
        accumulate: batches to a step.
        rest: samples of the last batch of an epoch, which is short.
        skips: whether every second batch is passed over.
        validates: whether a copy of the model sees another loader after each epoch, and which: without gradients, or
            with them and without a backward pass.
        second: batch size of a second loader whose batches enter with the first's; 0: none.
        parts: slices of a batch that enter one after the other, each with a backward pass of its own.
        remakes: whether other tensors enter than those that were fetched.
        holds: whether batches are fetched once and trained on in each epoch: by itertools.cycle, or in a list.
    """

    ahead: int
    accumulate: int
    rest: int
    skips: bool
    validates: str
    second: int
    parts: int
    remakes: bool
    holds: str = ""


HABITS = st.builds(
    Habits,
    ahead=st.integers(0, 2),
    accumulate=st.sampled_from([1, 2, 4]),
    rest=st.integers(0, 3),
    skips=st.booleans(),
    validates=st.sampled_from(["", "no_grad", "eval", "carelessly"]),
    second=st.sampled_from([0, 0, 3, 4]),
    parts=st.sampled_from([1, 1, 2, 4]),
    remakes=st.booleans(),
    holds=st.sampled_from(["", "", "cycle", "list"]),
)


def fetched_ahead(batches: Iterable[Any], number: int) -> Iterator[Any]:
    """Yield batches of which so many more are fetched already."""
    waiting: deque[Any] = deque()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > number:
            yield waiting.popleft()
    yield from waiting


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches for ever, without keeping them as itertools.cycle does."""
    while True:
        yield from batches


def loader(samples: int, batch_size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(samples, 3)), batch_size=batch_size, shuffle=True)


class Script:
    """A script with these habits. `own`: the samples of each step, as it knows them."""

    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self._model, self.own = nn.Linear(3, 1), list[int]()
        self._average = copy.deepcopy(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._samples = self._micro_batches = 0
        self._others = endless(loader(12, habits.second)) if habits.second else None

    def run(self) -> None:
        habits = self._habits
        training, validation = loader(9 * BATCH + habits.rest, BATCH), loader(6, 5)
        cached, kept = itertools.cycle(training), list(training) if habits.holds == "list" else []
        while len(self.own) < NUM_STEPS:
            batches = kept or (itertools.islice(cached, len(training)) if habits.holds == "cycle" else training)
            for number, (x,) in enumerate(fetched_ahead(batches, habits.ahead)):
                if not (habits.skips and number % 2):
                    self._train_on(x)
            self._validate(validation)

    def _train_on(self, x: torch.Tensor) -> None:
        habits = self._habits
        other = next(self._others)[0] if self._others else None
        if habits.remakes:
            x, other = 2 * x, other if other is None else 2 * other
        for part in x.chunk(habits.parts):
            loss = self._model(part).mean()
            if other is not None:
                loss, self._samples, other = loss + self._model(other).mean(), self._samples + len(other), None
            loss.backward()
            self._samples += len(part)
        self._micro_batches += 1
        if self._micro_batches % habits.accumulate == 0:
            self._optimizer.step()
            self.own.append(self._samples)
            self._samples = 0

    def _validate(self, batches: DataLoader[Any]) -> None:
        if self._habits.validates == "no_grad":
            with torch.no_grad():
                for (x,) in batches:
                    self._average(x)
        elif self._habits.validates:
            self._model.train(self._habits.validates != "eval")
            for (x,) in batches:
                self._model(x).mean().item()
            self._model.train()


@settings(max_examples=60)
@given(HABITS)
@example(Habits(ahead=0, accumulate=1, rest=0, skips=False, validates="", second=0, parts=1, remakes=False))
@example(Habits(ahead=2, accumulate=4, rest=3, skips=True, validates="no_grad", second=3, parts=4, remakes=True))
def test_samples_per_step_are_those_that_the_script_counts(habits: Habits) -> None:
    # A validation with gradients is all that fetches then, and nothing tells its batches from the training's.
    assume(not (habits.holds and habits.remakes and habits.validates in {"eval", "carelessly"}))
    patches = Patches()
    try:
        rig, script = Rig(patches), Script(habits)
        script.run()
    finally:
        patches.undo()
    counted = [step.counted for step in rig.steps]
    if not habits.remakes:
        assert [step.samples_drawn for step in counted] == script.own
        assert all(step.reconciled for step in counted)
    else:
        wrong = [s.samples_drawn != own for own, s in zip(script.own, counted, strict=True) if s.reconciled]
        # By numbers alone, it is not known at once that a loader gives no more batches.
        assert sum(wrong) <= (MOST_AHEAD if habits.holds else 0)
