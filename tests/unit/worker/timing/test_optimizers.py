from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.checkpoint import checkpoint

from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.optimizers import (
    MOST_IDLE,
    NO_OPTIMIZER,
    REPLACED_AFTER,
    SILENT_AFTER,
    STEPS_OF_A_TURN,
    StepCounter,
)
from tests.builders.handclock import HandClock
from tests.builders.models import SlowLinear, SlowSGD, backward, slow_sgd
from tests.builders.rig import Rig


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


def test_two_optimizers_in_turn_are_counted_as_one_step_per_round() -> None:
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


@pytest.mark.parametrize("num_steps", [STEPS_OF_A_TURN, SILENT_AFTER // 2])
def test_optimizers_that_were_built_ahead_and_train_in_turn_take_over_as_soon(num_steps: int) -> None:
    # Cross validation with all models at hand, for several epochs.
    counter = counter_of(5)
    for turn in range(15):
        steps = [step(counter, turn % 5) for _ in range(num_steps)]
        silent = STEPS_OF_A_TURN - 1 if turn else 0
        assert steps == [False] * silent + [True] * (num_steps - silent)
        assert counter.num_replaced == turn


def test_short_turns_leave_the_reference() -> None:
    # A model that takes many steps for several of another one's in a row, and one that takes no more than that one.
    counter = counter_of(2)
    for _ in range(10):
        assert all(step(counter, 0) for _ in range(2 * STEPS_OF_A_TURN))
        assert not any(step(counter, 1) for _ in range(STEPS_OF_A_TURN - 1))
    for _ in range(10):
        assert all(step(counter, 0) for _ in range(STEPS_OF_A_TURN - 1))
        assert not any(step(counter, 1) for _ in range(STEPS_OF_A_TURN))
    assert (counter.reference, counter.num_replaced) == (0, 0)


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


class CountsEach(StepCounter):
    """A counter that takes no steps of the reference together."""

    def _goes_on(self, optimizer: int) -> bool:  # noqa: ARG002
        return False


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["steps", "begins", "ends", "built", "elect"]),
            st.integers(0, 3),
            st.sampled_from([1, 2, 9, 17, 201]),
        ),
        max_size=20,
    )
)
@example([("steps", 0, 2), ("built", 2, 1), ("steps", 0, 1), ("steps", 2, 9)])
@example([("steps", 0, 2), *[("begins", 0, 1), ("steps", 1, 17), ("ends", 0, 1)] * 13])
def test_steps_that_are_counted_together_count_as_one_by_one(events: list[tuple[str, int, int]]) -> None:
    together, each = StepCounter(), CountsEach()
    found: tuple[list[Any], ...] = ([], [])
    for counter, told in zip((together, each), found, strict=True):
        for what, optimizer, times in events:
            if what == "built":
                counter.built(optimizer)
            if what == "elect":
                told.append(counter.elect())
            for _ in range(times):
                if what in {"steps", "begins"}:
                    counter.enter(optimizer)
                if what in {"steps", "ends"}:
                    told.append(counter.leave(optimizer))
        counter._count_more()
    assert found[0] == found[1]
    assert vars(together) == vars(each)


def test_every_step_is_seen_with_its_phases(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer = slow_sgd(module, rig.clock)
    for _ in range(3):
        rig.clock.tick(1)
        backward(module)
        optimizer.step()
        optimizer.zero_grad()
    assert [step.ticks for step in rig.steps] == [{"other": 1, "forward": 100, "backward": 1000, "optimizer": 10}] * 3
    assert [step.counted.samples_entered for step in rig.steps] == [4] * 3


def test_phases_inside_a_closure_are_its_own_and_not_the_optimizers(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=3)
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        rig.clock.tick(1)
        return backward(module)

    for _ in range(2):
        optimizer.step(closure)
        assert rig.steps[-1].ticks == {"forward": 100 * calls, "backward": 1000 * calls, "optimizer": calls}
        calls = 0
    assert len(rig.steps) == 2


class Curvature(SGD):
    """Has its step told the model, a closure or what it may be."""

    def step(self, given: Any) -> Any:  # type: ignore[override]
        return given


@pytest.mark.parametrize("given", [nn.Linear(3, 1), lambda: None, HandClock(1)], ids=["model", "closure", "callable"])
def test_a_step_gets_what_the_script_gave_it(rig: Rig, given: Any) -> None:
    optimizer = Curvature(nn.Linear(3, 1).parameters(), lr=0.1)
    assert optimizer.step(given) is given
    assert optimizer.step(given=given) is given
    assert rig.num_steps == 2


class Passing(torch.optim.LBFGS):
    """Hands its closure on in another function, as subclasses do."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(torch.enable_grad()(closure))


def test_backward_passes_are_counted_where_a_step_runs_them(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    torch.optim.LBFGS(nn.Linear(3, 1).parameters())  # makes torch call the hooks in the base class's step as well
    optimizer = Passing(module.parameters(), max_iter=3)
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        return backward(module)

    for _ in range(2):
        calls = 0
        backward(module)
        optimizer.step(closure)
        assert rig.counter.num_passes == calls > 1


def test_steps_before_there_is_any_gradient_draw_a_schedule_and_train_nothing(rig: Rig) -> None:
    dummy = Adam(nn.Linear(1, 1).parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(dummy, lambda _: 1.0)
    for _ in range(300):
        dummy.step()
        scheduler.step()
    assert (rig.num_steps, rig.counter.reference, rig.counter.under_way) == (0, None, [])
    module = SlowLinear(rig.clock)
    optimizer = Adam(module.parameters())
    for number in range(1, 4):
        backward(module)
        optimizer.step()
        optimizer.zero_grad()
        assert rig.num_steps == number
    dummy.step()
    optimizer.step()
    assert rig.num_steps == 4, "from the first gradient on each of its steps counts"


def idle(optimizer: Optimizer, times: int) -> None:
    for _ in range(times):
        nn.Parameter(torch.ones(())).backward()
        optimizer.step()
        optimizer.step()


def test_backward_passes_that_leave_an_optimizer_without_gradients_are_told(rig: Rig) -> None:
    optimizer = Adam(nn.Linear(1, 1).parameters())
    idle(optimizer, MOST_IDLE - 1)
    assert rig.idle == []
    idle(optimizer, 2)
    assert (rig.idle, rig.num_steps) == ([("Adam",)], 0)


def test_all_that_stepped_without_gradients_are_named(rig: Rig) -> None:
    first, second = (of(nn.Linear(1, 1).parameters()) for of in (SGD, Adam))
    idle(first, MOST_IDLE - 1)
    idle(second, 1)
    assert rig.idle == [("SGD", "Adam")]


def test_what_idles_before_it_trains_or_beside_what_trains_is_not_told(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer, other = slow_sgd(module, rig.clock), Adam(nn.Linear(1, 1).parameters())
    idle(other, MOST_IDLE - 1)
    backward(module)
    optimizer.step()
    idle(other, MOST_IDLE)
    assert rig.idle == []


@pytest.mark.parametrize("is_closure", [True, False])
def test_a_step_that_may_train_without_gradients_counts(rig: Rig, is_closure: bool) -> None:
    class Perturbing(SGD):
        """Moves its parameters by itself."""

    weight = nn.Parameter(torch.ones(3))
    optimizer = SGD([weight], lr=0.1) if is_closure else Perturbing([weight], lr=0.1)
    for number in range(1, 4):
        optimizer.step(lambda: torch.zeros(())) if is_closure else optimizer.step()
        assert rig.num_steps == number


@pytest.mark.parametrize("checkpoints", [False, True])
def test_steps_that_are_taken_in_a_backward_pass_end_with_it(rig: Rig, checkpoints: bool) -> None:
    # As in torch's tutorial: an optimizer for each parameter steps as soon as its gradient is there.
    module, optimizers = SlowLinear(rig.clock), dict[torch.Tensor, SlowSGD]()

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in module.parameters():
        optimizers[parameter] = SlowSGD([parameter], lr=0.1)
        optimizers[parameter].clock = rig.clock
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(6):
        x = 2 * torch.randn(4, 3, requires_grad=True)
        x.register_hook(lambda _: rig.clock.tick(7))
        y = checkpoint(module, x, use_reentrant=True) if checkpoints else module(x)
        y.mean().backward()
    assert [(s.counted.samples_entered, s.counted.micro_batches) for s in rig.steps] == [(4, 1)] * 6
    unrecorded = {"other": 100} if checkpoints else {}
    assert [s.ticks for s in rig.steps] == [{"forward": 100, "backward": 1007, "optimizer": 20, **unrecorded}] * 6


def test_a_step_in_a_backward_pass_is_kept_with_its_line_where_it_trains_a_module(rig: Rig) -> None:
    module, x = SlowLinear(rig.clock), torch.randn(4, 3, requires_grad=True)
    solved = torch.zeros(3, requires_grad=True)
    inner, own = torch.optim.SGD([solved], lr=0.1), torch.optim.SGD(module.parameters(), lr=0.1)
    x.register_hook(lambda _: inner.step())
    module(x).mean().backward()
    own.step()
    assert not rig.optimizers.in_backward_at
    module.bias.register_post_accumulate_grad_hook(lambda _: own.step())
    module(x).mean().backward()
    assert rig.optimizers.in_backward_at.startswith(f"{__file__}:")


def test_a_backward_pass_inside_of_another_is_no_step_of_its_own(rig: Rig) -> None:
    blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = blocks

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=True)
            return x

    module = Model()
    for _ in range(4):
        module(torch.randn(4, 3, requires_grad=True)).mean().backward()
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad)
        module.zero_grad()
    assert [step.counted.micro_batches for step in rig.steps[1:]] == [1] * 3
    assert len(rig.steps) == 4


class Plain(Optimizer):
    """An update that torch compiles as one graph."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * group["lr"])


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by torch 2.11, while it compiles
@pytest.mark.parametrize("what", ["method", "function", "function that calls it", "breaks"])
def test_steps_inside_of_a_compiled_function_count_with_their_time(rig: Rig, what: str) -> None:
    torch.compiler.reset()
    module, traced = SlowLinear(rig.clock), list[bool]()
    optimizer = (Adam if what == "breaks" else Plain)(module.parameters())

    def update() -> None:
        traced.append(torch.compiler.is_compiling())
        optimizer.step()

    def update_all() -> None:
        compiled()

    compiled = torch.compile(
        optimizer.step if what == "method" else update, backend="eager", fullgraph=what != "breaks"
    )
    step = torch.compile(update_all, backend="eager", fullgraph=True) if what == "function that calls it" else compiled
    for _ in range(3):
        before = module.weight.detach().clone()
        backward(module)
        step()
        assert not torch.equal(before, module.weight)
        optimizer.zero_grad()
    assert what == "method" or traced == [True] * 3
    assert rig.optimizers.are_compiled
    assert [step.counted.samples_entered for step in rig.steps] == [4] * 3


@pytest.mark.parametrize("what", ["backward", "grad", "func"])
def test_a_compiled_function_that_trains_is_not_the_optimizers(rig: Rig, what: str) -> None:
    torch.compiler.reset()
    weight, tick = nn.Parameter(torch.ones(3)), torch.compiler.disable(rig.clock.tick)
    optimizer = Plain([weight])

    @torch.compile(backend="eager")
    def train(x: torch.Tensor) -> None:
        tick(100)
        if what == "func":
            weight.grad = torch.func.grad(lambda w: (x * w).sum())(weight.detach())
        elif what == "grad":
            (weight.grad,) = torch.autograd.grad((x * weight).sum(), weight)
        else:
            (x * weight).sum().backward()
        optimizer.step()

    for _ in range(4):
        train(torch.ones(3))
        optimizer.zero_grad()
    assert len(rig.steps) == 4
    assert all(step.ticks["other"] >= 100 for step in rig.steps)


def test_a_compiled_function_in_which_nobody_steps_is_no_step(rig: Rig) -> None:
    torch.compiler.reset()
    module = nn.Linear(3, 1)
    optimizer = Plain(module.parameters())
    halve = torch.compile(lambda x: x * optimizer.param_groups[0]["lr"], backend="eager", fullgraph=True)
    for _ in range(3):
        backward(module)
        halve(torch.ones(2))
        optimizer.step()
    assert len(rig.steps) == 3


def test_however_many_steps_are_taken_in_a_backward_pass_they_are_one(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    many = [torch.zeros(1, requires_grad=True) for _ in range(250)]
    for parameter in (*module.parameters(), *many):
        optimizer = SlowSGD([parameter], lr=0.1)
        optimizer.clock = rig.clock
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    for _ in range(4):
        (module(torch.randn(4, 3)).mean() + sum(many)).backward()
    assert [s.counted.micro_batches for s in rig.steps] == [1] * 4


@pytest.mark.parametrize("first_steps", [0, 2])
def test_a_scheduler_changes_nothing(rig: Rig, first_steps: int) -> None:
    module = nn.Linear(3, 1)
    optimizer = SGD(module.parameters(), lr=0.1)
    for _ in range(first_steps):
        backward(module)
        optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        backward(module)
        optimizer.step()
        scheduler.step()
    assert len(rig.steps) == first_steps + 3


def test_two_optimizers_in_turn_give_one_step_per_round(rig: Rig) -> None:
    modules = [SlowLinear(rig.clock) for _ in range(2)]
    optimizers = [slow_sgd(module, rig.clock) for module in modules]
    for _ in range(3):
        for module, optimizer in zip(modules, optimizers, strict=True):
            backward(module)
            optimizer.step()
    assert len(rig.steps) == 3
    assert rig.steps[-1].ticks == {"forward": 200, "backward": 2000, "optimizer": 20}
    assert rig.wrapping.modules == modules


def test_a_subclass_whose_step_calls_its_base_class_steps_once(rig: Rig) -> None:
    module, other = SlowLinear(rig.clock), nn.Linear(3, 1)
    # An instance of the base class makes torch call the hooks in the base class's step as well.
    SGD(other.parameters(), lr=0.1)
    optimizer = slow_sgd(module, rig.clock)
    for _ in range(3):
        rig.clock.tick(1)
        backward(module)
        optimizer.step()
    assert [step.ticks for step in rig.steps] == [{"other": 1, "forward": 100, "backward": 1000, "optimizer": 10}] * 3


def test_an_optimizer_that_steps_another_is_one_step(rig: Rig) -> None:
    class Outer(Optimizer):
        def __init__(self, inner: Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self) -> None:  # type: ignore[override]
            rig.clock.tick(5)
            self.inner.step()
            self.inner.step()
            rig.clock.tick(5)

    module = SlowLinear(rig.clock)
    optimizer = Outer(slow_sgd(module, rig.clock))
    for _ in range(3):
        backward(module)
        optimizer.step()
    assert [step.ticks["optimizer"] for step in rig.steps] == [30, 30, 30]


def test_a_step_that_raises_is_not_a_step_and_leaves_nothing_behind(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer = slow_sgd(module, rig.clock)

    def closure() -> torch.Tensor:
        raise RuntimeError("planted")

    for _ in range(3):
        backward(module)
        with contextlib.suppress(RuntimeError):
            optimizer.step(closure)
        optimizer.step()
    assert len(rig.steps) == 3
    assert rig.steps[-1].ticks == {"forward": 100, "backward": 1000, "optimizer": 20}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copied_optimizer_is_known_before_its_first_step(rig: Rig, copied: Any) -> None:
    original = nn.Linear(3, 1)
    theirs = Adam(original.parameters())
    module, optimizer = copied((original, theirs))
    assert rig.optimizers.alive() == [theirs, optimizer]
    backward(module)
    assert rig.wrapping.modules == [module]
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert rig.optimizers.alive() == [theirs, optimizer]
    assert len(rig.steps) == 1


def test_optimizers_that_are_gone_are_not_alive(rig: Rig) -> None:
    module = nn.Linear(3, 1)
    kept, dropped = SGD(module.parameters(), lr=0.1), SGD(module.parameters(), lr=0.1)
    assert rig.optimizers.alive() == [kept, dropped]
    del dropped
    gc.collect()
    assert rig.optimizers.alive() == [kept]


def test_optimizers_have_their_names_when_the_function_that_trained_has_returned(rig: Rig) -> None:
    def train() -> None:
        module = nn.Linear(3, 1)
        optimizer = SGD(module.parameters(), lr=0.1)
        SGD(module.parameters(), lr=0.1)  # takes no step
        backward(module)
        optimizer.step()
        assert rig.optimizers.names() == ("SGD",)

    train()
    gc.collect()
    assert rig.optimizers.alive() == []
    assert rig.optimizers.names() == ("SGD",)
    assert rig.optimizers.built_at() == ()


def test_it_is_known_where_each_optimizer_was_built(rig: Rig) -> None:
    first = lines.caller(sys._getframe())
    built = [SGD(nn.Linear(3, 1).parameters(), lr=0.1) for _ in range(2)]
    file, _, number = first.rpartition(":")
    assert rig.optimizers.built_at() == 2 * (f"{file}:{int(number) + 1}",)
    assert len(built) == 2


def test_without_a_torch_optimizer_a_backward_pass_is_a_step(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    for _ in range(4):
        module.zero_grad()
        backward(module)
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
    assert len(rig.steps) == 4
    assert rig.wrapping.modules == [module]
    # Until a backward pass was seen, nothing says that this script has no optimizer.
    assert [step.counted.samples_entered for step in rig.steps] == [0, 4, 4, 4]


def test_passes_before_an_optimizer_is_built_are_no_steps_if_few(patches: Patches) -> None:
    rig = Rig(patches, patience=3)
    module = nn.Linear(3, 1)
    for _ in range(3):
        backward(module)
    optimizer = SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        backward(module)
        optimizer.step()
    assert len(rig.steps) == 2


@pytest.mark.parametrize("looks_first", [False, True])
def test_optimizers_that_are_built_after_the_first_backward_pass_step_once_with_it(rig: Rig, looks_first: bool) -> None:
    module = nn.Linear(3, 1)
    if looks_first:  # at gradients, by which nothing is trained
        backward(module)
    optimizers: list[Optimizer] = []
    for _ in range(3):
        backward(module)
        optimizers = optimizers or [SGD([parameter], lr=0.1) for parameter in module.parameters()]
        for optimizer in optimizers:
            optimizer.step()
    assert len(rig.steps) == 3 + looks_first
    assert rig.wrapping.modules == [module]


def test_more_passes_without_an_optimizer_are_steps(patches: Patches) -> None:
    rig = Rig(patches, patience=3)
    module = nn.Linear(3, 1)
    for _ in range(5):
        backward(module)
    assert len(rig.steps) == 2


def test_every_step_and_backward_asks_whether_the_script_must_end(rig: Rig) -> None:
    module = nn.Linear(3, 1)
    optimizer = SGD(module.parameters(), lr=0.1)
    before = rig.checks
    optimizer.step()
    assert rig.checks > before


def test_nothing_is_seen_after_undo(rig: Rig, patches: Patches) -> None:
    patches.undo()
    module = nn.Linear(3, 1)
    optimizer = SGD(module.parameters(), lr=0.1)
    backward(module)
    optimizer.step()
    assert rig.steps == []
    assert rig.optimizers.alive() == []
    assert len(rig.phases.lap().log) == 0


def scaler(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10_000)


def test_a_scaled_step_is_one_step_that_ends_after_the_scalers(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer, scaling = slow_sgd(module, rig.clock), scaler(8.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaling.scale(module(torch.randn(4, 3)).mean()).backward()
        scaling.step(optimizer)
        scaling.update()
    assert [step.ticks["optimizer"] for step in rig.steps] == [10, 10]


def second_optimizer(_: Rig, __: nn.Module, optimizer: Optimizer) -> Optimizer:
    return copy.deepcopy(optimizer)


def scaled_step(_: Rig, module: nn.Module, optimizer: Optimizer) -> None:
    scaling = scaler(8.0)
    scaling.scale(module(torch.randn(4, 3)).mean()).backward()
    scaling.step(optimizer)


def compiled_step(_: Rig, __: nn.Module, ___: Optimizer) -> None:
    torch.compile(lambda: None, backend="eager")


def end_of_it(rig: Rig, _: nn.Module, __: Optimizer) -> None:
    rig.optimizers.follow()


@pytest.mark.parametrize("change", [second_optimizer, scaled_step, compiled_step, end_of_it])
def test_only_ends_of_steps_are_told_until_others_may_count(rig: Rig, change: Callable[..., Any]) -> None:
    module = nn.Linear(3, 1)
    optimizer, ends = SGD(module.parameters(), lr=0.1), 0

    def on_end(*_: Any) -> None:
        nonlocal ends
        ends += 1

    def step() -> None:
        backward(module)
        optimizer.step()

    step()
    rig.optimizers.only_ends(on_end)
    before = rig.checks
    step()
    step()
    assert (ends, len(rig.steps), rig.checks) == (2, 1, before)
    kept = change(rig, module, optimizer)
    seen = len(rig.steps)
    step()
    assert (ends, len(rig.steps)) == (2, seen + 1), kept
    rig.optimizers.only_ends(on_end)
    step()
    assert ends == (3 if change is end_of_it else 2)


@pytest.mark.parametrize("case", ["subclass", "no gradient", "in a step"])
def test_steps_are_followed_where_ends_alone_do_not_tell(rig: Rig, case: str) -> None:
    module, ends = nn.Linear(3, 1), []
    optimizer = slow_sgd(module, rig.clock) if case == "subclass" else SGD(module.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        if case == "in a step":
            rig.optimizers.only_ends(ends.append)
        return backward(module)

    optimizer.step(None if case == "no gradient" else closure)
    if case != "in a step":
        rig.optimizers.only_ends(ends.append)
    backward(module)
    optimizer.step()
    assert (ends, len(rig.steps)) == ([], 1 if case == "no gradient" else 2)


def test_a_step_that_the_scaler_skips_counts(rig: Rig) -> None:
    module = nn.Linear(3, 1)
    optimizer, scaling = SGD(module.parameters(), lr=0.1), scaler(8.0)
    before = module.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        scaling.scale(module(torch.full((4, 3), torch.inf)).mean()).backward()
        scaling.step(optimizer)
        scaling.update()
    assert torch.equal(module.weight, before)
    assert len(rig.steps) == 2


def test_a_scaled_step_that_fails_does_not_stop_the_counting(rig: Rig) -> None:
    module = nn.Linear(3, 1)
    optimizer, scaling = SGD(module.parameters(), lr=0.1), scaler(8.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaling.scale(module(torch.randn(4, 3)).mean()).backward()
        scaling.step(optimizer)
        with pytest.raises(RuntimeError):
            scaling.step(optimizer)
        scaling.update()
    assert len(rig.steps) == 2
