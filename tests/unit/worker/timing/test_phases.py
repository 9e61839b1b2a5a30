from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpdoctor.records import BETWEEN, PHASES
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.phases import (
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    OPTIMIZER,
    OTHER,
    UNASKED,
    PhaseClock,
    Updates,
    watch_backward,
    watch_copies,
)
from tests.builders.handclock import HandClock
from tests.builders.models import SlowLinear, slow_sgd
from tests.builders.rig import Rig

phases = st.sampled_from(range(len(PHASES)))
actions = st.one_of(
    st.tuples(st.just("push"), phases),
    st.tuples(st.just("pop"), st.integers(0, 3)),
    st.tuples(st.just("tick"), st.integers(0, 1000)),
    st.tuples(st.just("lap"), st.just(0)),
)


class Oracle:
    """Charges each tick, when it passes, to the innermost open phase; what passed outside of all at the step's end."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.begin()

    def begin(self) -> None:
        self.totals = dict.fromkeys(range(len(PHASES)), 0)
        self.trained: list[int] = []
        # How many phases of training had begun, and how much passed then.
        self.outside: list[tuple[int, int]] = []

    def push(self, phase: int) -> None:
        if not self.open and PHASES[phase] in {"forward", "backward", "optimizer"}:
            self.trained.append(phase)
        self.open.append(phase)

    def tick(self, amount: int) -> None:
        if self.open:
            self.totals[self.open[-1]] += amount
        else:
            self.outside.append((len(self.trained), amount))

    def lap(self) -> tuple[int, ...]:
        for begun, amount in self.outside:
            between = tuple(PHASES[phase] for phase in self.trained[max(0, begun - 1) : begun + 1]) if begun else ()
            self.totals[PHASES.index(BETWEEN.get(between, "other"))] += amount
        totals = tuple(self.totals.values())
        self.begin()
        self.open.clear()
        return totals


@given(st.lists(actions, max_size=60), st.integers(0, 10**15))
def test_every_tick_goes_to_the_innermost_phase(script: list[tuple[str, int]], start: int) -> None:
    clock = HandClock(start)
    watched, oracle, depths, last = PhaseClock(clock), Oracle(), [], start
    for what, number in [*script, ("lap", 0)]:
        if what == "push":
            depths.append(watched.push(number))
            oracle.push(number)
        elif what == "tick":
            clock.tick(number)
            oracle.tick(number)
        elif what == "pop" and number < len(depths):
            # Popping an outer phase is what happens when an exception passes through the inner ones.
            watched.pop(depths[-1 - number])
            del depths[-1 - number :]
            del oracle.open[-1 - number :]
        elif what == "lap":
            notes = watched.lap()
            assert (notes.begin_ns, notes.end_ns) == (last, clock.now)
            assert notes.phases_ns() == oracle.lap()
            assert sum(notes.phases_ns()) == notes.duration_ns
            depths, last = [], clock.now


def told(watched: PhaseClock) -> tuple[int, tuple[int, ...]]:
    """End a step; return how long it took, and each phase of it."""
    notes = watched.lap()
    return notes.duration_ns, notes.phases_ns()


def test_an_exception_closes_what_it_left_open(clock: HandClock) -> None:
    watched = PhaseClock(clock)
    forward = watched.push(FORWARD)
    with contextlib.suppress(RuntimeError):
        try:
            watched.push(DATA_WAIT)
            clock.tick(5)
            raise RuntimeError
        finally:
            watched.pop(forward)
    clock.tick(7)
    duration, totals = told(watched)
    assert duration == 12
    assert (totals[DATA_WAIT], totals[FORWARD], totals[OTHER]) == (5, 0, 7)


def test_a_phase_that_outlives_its_step_is_charged_to_neither_twice(clock: HandClock) -> None:
    watched = PhaseClock(clock)
    depth = watched.push(OPTIMIZER)
    clock.tick(3)
    assert watched.lap().phases_ns()[OPTIMIZER] == 3
    clock.tick(4)
    inner = watched.push(BACKWARD)
    clock.tick(5)
    watched.pop(inner)
    watched.pop(depth)
    clock.tick(6)
    duration, totals = told(watched)
    assert duration == sum(totals) == 15
    assert totals[BACKWARD] == 5


STEP = ("data_wait", 3), ("other", 5), ("forward", 7), ("other", 11), ("backward", 13), ("other", 17), ("optimizer", 19)


def taken(clock: HandClock, parts: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """Return what each phase of a step is charged with that consists of these parts."""
    watched = PhaseClock(clock)
    for name, amount in parts:
        depth = watched.push(PHASES.index(name)) if name != "other" else 0
        clock.tick(amount)
        if name != "other":
            watched.pop(depth)
    charged = dict(zip(PHASES, watched.lap().phases_ns(), strict=True))
    return {name: amount for name, amount in charged.items() if amount}


def test_a_loss_is_forward_and_clipping_is_the_update(clock: HandClock) -> None:
    assert taken(clock, STEP) == {"data_wait": 3, "other": 5, "forward": 7 + 11, "backward": 13, "optimizer": 17 + 19}


def test_what_is_copied_or_fetched_before_the_loss_does_not_part_it_from_its_forward(clock: HandClock) -> None:
    parts = (*STEP[:4], ("h2d", 1), ("other", 2), ("data_wait", 4), ("other", 8), *STEP[4:5])
    assert taken(clock, parts) == {"data_wait": 7, "h2d": 1, "other": 5, "forward": 7 + 11 + 2 + 8, "backward": 13}


def test_between_micro_batches_and_forwards_lies_code_of_the_loop(clock: HandClock) -> None:
    micro_batches = (*STEP[2:6], *STEP[1:])
    assert taken(clock, micro_batches)["other"] == 17 + 5
    of_an_environment = (*STEP[2:4], *STEP[2:])
    assert taken(clock, of_an_environment)["other"] == 11


@pytest.mark.parametrize("changes", [True, False])
def test_what_changes_parameters_between_backward_and_forward_is_the_optimizers(
    clock: HandClock, *, changes: bool
) -> None:
    module = nn.Linear(2, 1)
    watched = PhaseClock(clock)
    watched.updates = Updates(lambda: [module])
    watched.pop(watched.push(FORWARD))
    watched.pop(watched.push(BACKWARD))
    clock.tick(5)
    if changes:
        with torch.no_grad():
            module.weight.add_(1)
    watched.pop(watched.push(FORWARD))
    watched.pop(watched.push(BACKWARD))
    assert watched.lap().phases_ns()[OPTIMIZER if changes else OTHER] == 5


def test_gaps_that_belong_to_a_phase_are_known_while_phases_are_marked(clock: HandClock) -> None:
    watched = PhaseClock(clock)
    watched.mark(Marks())
    watched.pop(watched.push(DATA_WAIT))
    assert watched.has_fetched
    watched.pop(watched.push(FORWARD))
    loss = watched.gap
    assert not watched.has_fetched
    watched.pop(watched.push(BACKWARD))
    watched.lap()
    assert watched.claimed == {loss}
    assert watched.gap > loss + 1


def test_only_the_thread_that_trains_is_charged(clock: HandClock) -> None:
    watched = PhaseClock(clock)
    watched.belongs_here()
    forward = watched.push(FORWARD)

    def prefetch() -> None:
        depth = watched.push(DATA_WAIT)
        clock.tick(10)
        watched.pop(depth)

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    clock.tick(1)
    watched.pop(forward)
    duration, totals = told(watched)
    assert duration == totals[FORWARD] == 11


def test_no_thread_is_charged_any_more(clock: HandClock) -> None:
    watched = PhaseClock(clock)
    watched.belongs_here()
    forward = watched.push(FORWARD)
    clock.tick(1)
    watched.belongs_nowhere()
    watched.pop(forward)
    assert watched.is_elsewhere()
    backward = watched.push(BACKWARD)
    clock.tick(10)
    watched.pop(backward)
    duration, totals = told(watched)
    assert (duration, totals[FORWARD], totals[BACKWARD]) == (11, 1, 0)


@pytest.mark.parametrize("nested", [1, 3])
def test_calls_are_counted(clock: HandClock, nested: int) -> None:
    watched = PhaseClock(clock)
    for depth in [watched.push(FORWARD) for _ in range(nested)][::-1]:
        watched.pop(depth)
    assert len(watched.lap().log) == 4 * nested


class Marks:
    """What a profiler would see: the phases that are open, and those that have been."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.closed: list[int] = []

    @contextlib.contextmanager
    def __call__(self, phase: int) -> Iterator[None]:
        self.open.append(phase)
        yield
        assert self.open.pop() == phase, "they close in the order in which they lie in each other"
        self.closed.append(phase)


def test_phases_are_marked_from_the_next_on_until_they_end() -> None:
    watched, marks = PhaseClock(HandClock()), Marks()
    before = watched.push(DATA_WAIT)
    watched.mark(marks)
    inner = watched.push(FORWARD)
    assert marks.open == [FORWARD]
    watched.pop(inner)
    watched.pop(before)
    assert (marks.open, marks.closed) == ([], [FORWARD])


def test_what_an_exception_or_the_step_leaves_open_is_closed() -> None:
    watched, marks = PhaseClock(HandClock()), Marks()
    watched.mark(marks)
    outer = watched.push(OPTIMIZER)
    watched.push(FORWARD)
    watched.pop(outer)
    watched.push(BACKWARD)
    watched.lap()
    assert (marks.open, marks.closed) == ([], [FORWARD, OPTIMIZER, BACKWARD])


def test_nothing_stays_marked_when_nobody_looks_any_more() -> None:
    watched, marks = PhaseClock(HandClock()), Marks()
    watched.mark(marks)
    depth = watched.push(FORWARD)
    watched.mark(None)
    assert marks.open == []
    watched.pop(depth)
    watched.push(BACKWARD)
    assert marks.closed == [FORWARD]


def test_anybody_may_ask_whether_a_phase_is_open() -> None:
    watched = PhaseClock(HandClock())
    assert watched.is_outside()
    depth = watched.push(FORWARD)
    assert not watched.is_outside()
    watched.pop(depth)
    assert watched.is_outside()


def test_a_change_in_place_and_other_memory_are_seen() -> None:
    module = nn.Linear(2, 2)
    updates = Updates(lambda: [module])
    assert not updates.changed()
    updates.note()
    assert not updates.changed()
    with torch.no_grad():
        module.weight.mul_(2)
    assert updates.changed()
    updates.note()
    assert not updates.changed()
    module.weight.data = torch.zeros(2, 2)
    assert updates.changed()


def test_modules_that_come_later_and_frozen_ones() -> None:
    modules: list[nn.Module] = [nn.Linear(2, 2).requires_grad_(False)]
    updates = Updates(lambda: modules)
    updates.note()
    with torch.no_grad():
        modules[0].get_parameter("weight").mul_(2)
    assert not updates.changed()
    modules.append(nn.Linear(2, 2))
    updates.note()
    with torch.no_grad():
        modules[1].get_parameter("weight").mul_(2)
    assert updates.changed()


def test_nothing_is_noted_where_nobody_asks_until_somebody_does() -> None:
    module = nn.Linear(2, 2)
    updates = Updates(lambda: [module])
    for _ in range(UNASKED + 1):
        updates.note()
    told = []
    for _ in range(2):
        with torch.no_grad():
            module.weight.mul_(2)
        told.append(updates.changed())
        updates.note()
    assert told == [False, True]


class Called(Exception):  # noqa: N818 - a signal between the parts of a test
    """Raised in the middle of a backward pass."""


def test_a_backward_pass_that_raises_is_none_and_its_phase_ends(patches: Patches, clock: HandClock) -> None:
    phases = PhaseClock(clock)
    seen: list[Any] = []
    watch_backward(patches, phases, lambda: seen.append(1), before=lambda what, *_: seen.append(("before", what)))
    x = torch.ones(2, requires_grad=True)
    loss = (x * 2).sum()

    def planted(_: torch.Tensor) -> None:
        clock.tick(3)
        raise Called

    x.register_hook(planted)
    with pytest.raises(Called):
        loss.backward()
    assert seen == [("before", loss)]
    clock.tick(4)
    assert phases.lap().phases_ns() == (0, 0, 0, 3, 0, 4)


def test_gradients_that_are_asked_for_take_time_of_the_backward_and_end_no_pass(
    patches: Patches, clock: HandClock
) -> None:
    phases, ended = PhaseClock(clock), list[int]()
    watch_backward(patches, phases, lambda: ended.append(1))
    x = torch.ones(2, requires_grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda _: clock.tick(3))
    (gradient,) = torch.autograd.grad(y, x)
    assert gradient.tolist() == [2, 2]
    assert (phases.lap().phases_ns()[3], ended) == (3, [])


def test_a_backward_pass_from_several_tensors_is_seen(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer = slow_sgd(module, rig.clock)
    y = module(torch.randn(4, 3))
    torch.autograd.backward(tensors=[y.sum(), y.mean()])
    optimizer.step()
    assert rig.steps[0].counted.micro_batches == 1
    assert rig.steps[0].ticks["backward"] == 1000


@pytest.mark.parametrize(
    ("target", "options", "charged"),
    [
        (("cuda",), {}, True),
        (("cuda:0",), {"non_blocking": True}, True),
        ((torch.device("cuda", 0),), {}, True),
        ((0,), {}, True),
        ((), {"device": "cuda", "dtype": torch.float64}, True),
        ((torch.float64,), {}, False),
        (("cpu",), {}, False),
        ((torch.device("cpu"), torch.float64), {}, False),
        ((torch.ones(1, dtype=torch.float64),), {}, False),
        ((), {"dtype": torch.float64}, False),
    ],
)
def test_only_copies_to_a_device_are_charged(
    patches: Patches, clock: HandClock, target: tuple[Any, ...], options: dict[str, Any], charged: bool
) -> None:
    phases, seen = PhaseClock(clock), list[torch.Tensor]()
    watch_copies(patches, phases, seen.append, lambda *_: None)
    tensor = torch.ones(3)
    # Where there is no GPU torch refuses, as it would unwatched.
    with contextlib.suppress(RuntimeError, AssertionError):
        tensor.to(*target, **options)
    assert len(phases.lap().log) == 4 * charged
    assert [found is tensor for found in seen] == [True] * charged
    patches.undo()
    assert torch.ones(3).to(torch.float64).dtype == torch.float64
