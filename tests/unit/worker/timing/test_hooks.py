from __future__ import annotations

import contextlib
import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.checkpoint import checkpoint

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing import hooks
from tests.builders.handclock import HandClock
from tests.builders.models import SlowLinear, SlowSGD, backward, slow_sgd
from tests.builders.rig import Rig


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
    idle(optimizer, hooks.MOST_IDLE - 1)
    assert rig.idle == []
    idle(optimizer, 2)
    assert (rig.idle, rig.num_steps) == ([("Adam",)], 0)


def test_all_that_stepped_without_gradients_are_named(rig: Rig) -> None:
    first, second = (of(nn.Linear(1, 1).parameters()) for of in (SGD, Adam))
    idle(first, hooks.MOST_IDLE - 1)
    idle(second, 1)
    assert rig.idle == [("SGD", "Adam")]


def test_what_idles_before_it_trains_or_beside_what_trains_is_not_told(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer, other = slow_sgd(module, rig.clock), Adam(nn.Linear(1, 1).parameters())
    idle(other, hooks.MOST_IDLE - 1)
    backward(module)
    optimizer.step()
    idle(other, hooks.MOST_IDLE)
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
