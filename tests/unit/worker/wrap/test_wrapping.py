from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpdoctor.worker.base.mode import ConversionError, WrapOptions
from dpdoctor.worker.base.patches import Patches
from tests.builders.models import Net, X, sgd
from tests.builders.rig import FailedError, Recording, Rig


class Criterion(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return (y * self.weight).mean()


def test_the_outermost_module_that_is_called_is_wrapped(rig: Rig, mode: Recording) -> None:
    model = Net()
    held = sgd(model)
    beside = nn.Sequential(model, nn.Softmax(1))
    model(X).mean().backward()
    held.step()
    assert rig.wrapping.modules == mode.converted == [model]
    assert mode.called == [model]
    assert beside not in mode.converted
    (unit,) = rig.wrapping.records()
    assert (unit.name, unit.num_parameters, unit.trainable_bytes) == ("Net", 16, 64)
    assert unit.line.startswith(f"{__file__}:")


class Passing(nn.Module):
    """A wrapper that passes on what is set on it, as that of Lightning Fabric does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __setattr__(self, name: str, value: Any) -> None:
        if "inner" in self._modules:
            setattr(self._modules["inner"], name, value)
        else:
            super().__setattr__(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_a_wrapper_that_passes_attributes_on_is_wrapped_itself(rig: Rig, patches: Patches) -> None:
    model = Passing(Net())
    held = sgd(model)
    for _ in range(2):
        model(X).mean().backward()
        held.step()
    assert rig.wrapping.modules == [model]
    assert model.inner._compiled_call_impl is None
    patches.undo()
    assert "_compiled_call_impl" not in vars(model)


class Shapes(Recording):
    """A mode that, as torch's wrappers do, asks every parameter for its shape."""

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:
        assert all(parameter.shape.numel() for parameter in module.parameters())
        return super().convert(module, how)


def test_lazy_modules_have_made_their_parameters_before_they_are_wrapped(patches: Patches) -> None:
    rig = Rig(patches, Shapes())
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(1))
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    (unit,) = rig.wrapping.records()
    assert unit.num_parameters == sum(parameter.numel() for parameter in model.parameters()) > 0


def test_parts_called_inside_are_not_units(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    for _ in range(3):
        model(X).mean().backward()
        held.step()
    assert rig.wrapping.modules == [model]
    assert [step.counted.samples_entered for step in rig.steps] == [4, 4, 4]


def test_a_criterion_with_parameters_is_a_unit_too(rig: Rig, mode: Recording) -> None:
    model, criterion = Net(), Criterion()
    held = sgd(model, criterion)
    criterion(model(X)).backward()
    held.step()
    assert rig.wrapping.modules == [model, criterion]
    assert mode.called == [model, criterion]
    assert rig.wrapping.unwrapped() == ()


def test_modules_that_nobody_trains_are_left_alone(rig: Rig) -> None:
    teacher, model = Net(), Net()
    held = sgd(model)
    (model(X) - teacher(X)).pow(2).mean().backward()
    nn.MSELoss()(model(X), torch.zeros(4, 1))
    held.step()
    assert rig.wrapping.modules == [model]


def test_only_a_module_that_stays_unheld_is_told_to_be(rig: Rig) -> None:
    Net()(X)
    assert not rig.wrapping.unheld(), "it is gone"
    rig.wrapping.passed_by = None
    model = Net()
    model(X)
    assert rig.wrapping.unheld().startswith(f"Net, called at {__file__}:")
    held = sgd(model)
    assert not rig.wrapping.unheld()
    held.step()


def test_each_model_that_only_a_backward_pass_calls_with_gradients_is_wrapped(rig: Rig) -> None:
    first, last, head = nn.Linear(3, 3), nn.Linear(3, 3), Net()
    held = sgd(first, last, head)
    for _ in range(2):
        x = X.clone().requires_grad_()
        for model in (first, last):
            x = checkpoint(model, x, use_reentrant=True)
        head(x).mean().backward()
        held.step()
    assert rig.wrapping.modules == [head, last, first]
    assert rig.wrapping.unwrapped() == ()


def test_what_a_backward_pass_computes_once_more_is_no_model_of_its_own(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    y = model(X)
    y.register_hook(lambda gradient: nn.Sequential(model.first)(X).sum() * 0 + gradient)
    y.mean().backward()
    held.step()
    assert rig.wrapping.modules == [model]


def test_a_model_that_is_frozen_at_its_first_call_is_wrapped_once_it_trains(rig: Rig, mode: Recording) -> None:
    generator, critic = Net(), nn.Linear(1, 1)
    held, judge = sgd(generator), sgd(critic)
    for _ in range(2):
        critic.requires_grad_(False)
        critic(generator(X)).mean().backward()
        held.step()
        critic.requires_grad_(True)
        critic(generator(X).detach()).mean().backward()
        judge.step()
    assert mode.converted == rig.wrapping.modules == [generator, critic]
    assert mode.called == [generator, generator, critic, generator, critic, generator, critic]


@pytest.mark.usefixtures("rig")
def test_a_frozen_backbone_that_an_optimizer_holds_is_called_plainly(mode: Recording) -> None:
    backbone, head = Net().requires_grad_(False), nn.Linear(1, 1)
    held = sgd(backbone, head)
    head(backbone(X)).mean().backward()
    held.step()
    assert mode.converted == [head]


def test_what_is_frozen_for_a_while_is_trained(rig: Rig) -> None:
    model = Net()
    model.second.requires_grad_(False)
    held = sgd(model)
    model(X).mean().backward()
    model.first.requires_grad_(False)
    assert rig.wrapping.trained() == list(model.first.parameters())
    assert rig.wrapping.records()[0].trainable_bytes == 48
    model.second.requires_grad_()
    assert rig.wrapping.trained() == list(model.parameters())
    held.zero_grad()


def test_a_model_is_wrapped_at_its_first_training_forward_and_not_before(rig: Rig) -> None:
    model = Net()
    model(X)
    held = sgd(model)
    with torch.no_grad():
        model(X)
    assert rig.wrapping.modules == []
    model.double().load_state_dict(Net().state_dict())
    model(X.double()).mean().backward()
    held.step()
    assert rig.wrapping.modules == [model]
    assert rig.wrapping.records()[0].trainable_bytes == 128


class Fitting(Net):
    """Its method holds the whole training step."""

    def fit(self, held: torch.optim.Optimizer) -> None:
        self.second(self.first(X)).mean().backward()
        held.step()


def test_training_through_a_method_that_runs_the_backward_pass_is_refused(patches: Patches) -> None:
    Rig(patches, Recording())
    model = Fitting()
    with pytest.raises(FailedError, match=r"gradients .* through Fitting\.fit") as failed:
        model.fit(sgd(model))
    assert f"Linear is called at {__file__}:" in str(failed.value)


def test_such_a_method_is_a_warning_where_nothing_is_synchronised(patches: Patches) -> None:
    rig = Rig(patches)
    model = Fitting()
    held = sgd(model)
    for _ in range(3):
        model.fit(held)
    (warning,) = rig.wrapping.warnings
    assert "Fitting.fit" in warning
    assert rig.wrapping.modules == [model.first, model.second]


@pytest.mark.parametrize("num_steps", [2, 3])
def test_a_module_that_is_made_anew_is_a_warning_on_one_device(patches: Patches, num_steps: int) -> None:
    rig = Rig(patches)
    model = Net()
    held = sgd(model)
    for _ in range(num_steps):
        around = nn.Sequential(model)
        (around(X) + around(X)).mean().backward()
        held.step()
    rig.wrapping.settle()
    (warning,) = rig.wrapping.warnings
    assert warning.startswith(rig.wrapping.made_anew)
    assert rig.wrapping.made_anew.startswith(f"Sequential, called at {__file__}:")


@pytest.mark.parametrize("together", [False, True])
def test_modules_around_one_model_may_take_turns(patches: Patches, together: bool) -> None:
    rig = Rig(patches)
    model = Net()
    held, heads = sgd(model), [nn.Sequential(model) for _ in range(2)]
    for step in range(4):
        for head in heads if together else heads[step % 2 :][:1]:
            head(X).mean().backward()
        held.step()
    rig.wrapping.settle()
    assert rig.wrapping.modules == heads
    assert not rig.wrapping.made_anew
    assert not rig.wrapping.warnings


def test_a_part_that_is_called_alone_is_wrapped_beside_the_whole(patches: Patches) -> None:
    rig = Rig(patches)
    model = Net()
    held = sgd(model)
    for called in (model, model.first, model, model.first):
        held.zero_grad()
        called(X).mean().backward()
        held.step()
    assert rig.wrapping.modules == [model, model.first]
    assert [step.counted.samples_entered for step in rig.steps] == [len(X)] * 4
    assert rig.watch.forwards == {id(model): 2, id(model.first): 2}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_part_that_precedes_a_backward_pass_with_the_whole_is_left_to_it(patches: Patches, is_first: bool) -> None:
    rig = Rig(patches)
    model = Net()
    held = sgd(model)
    for _ in range(3):
        outputs = [called(X).mean() for called in ((model.first, model) if is_first else (model, model.first))]
        torch.stack(outputs).sum().backward()
        held.step()
    assert rig.wrapping.modules == [model]
    assert model.first._compiled_call_impl is None


@pytest.mark.usefixtures("rig")
def test_two_modules_around_one_model_are_not_wrapped() -> None:
    model = Net()
    held, heads = sgd(model), [nn.Sequential(model) for _ in range(2)]
    heads[0](X).mean().backward()
    with pytest.raises(FailedError, match=r"Sequential, called at .*, is one more of its class around the same"):
        heads[1](X)
    assert held


class Chain(Net):
    """Its loss takes the method that is outermost of three, beside one that has nothing of its own."""

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.encode(x)).mean()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


@pytest.mark.parametrize("model", [Net(), Chain()])
def test_training_through_a_method_enters_the_wrapper_with_it(rig: Rig, mode: Recording, model: Net) -> None:
    held = sgd(model)
    for _ in range(3):
        held.zero_grad()
        model.loss(X).backward()
        held.step()
    assert rig.wrapping.modules == mode.converted == [model]
    assert rig.wrapping.records()[0].name == type(model).__name__
    assert mode.called == [model, model], "the first forward told what to route"
    assert [step.counted.samples_entered for step in rig.steps] == [0, 4, 4]
    assert f"{type(model).__name__}.loss" in rig.wrapping.warnings[0]


@pytest.mark.parametrize("order", [("loss", "first"), ("first", "loss"), ("loss", "loss")])
def test_a_method_that_every_step_calls_is_not_missed(rig: Rig, order: tuple[str, str]) -> None:
    model = Net()
    held = sgd(model)
    model.loss(X).backward()
    for _ in range(2):
        for name in order:
            assert not rig.wrapping.uncalled
            getattr(model, name)(X).sum().backward()
        held.step()
        assert not rig.wrapping.uncalled


def test_it_is_known_whether_a_routed_method_is_called_again(rig: Rig) -> None:
    model = Net()
    held, out_of_reach = sgd(model), functools.lru_cache(maxsize=0)(model.loss)
    for called, uncalled in ((out_of_reach, ["Net.loss"]), (out_of_reach, ["Net.loss"]), (model, [])):
        (called(X) if called is out_of_reach else model.loss(X)).backward()
        held.step()
        assert rig.wrapping.uncalled == uncalled


class Trainer:
    """Holds the method that computes its loss, as a function that it was given would be."""

    def __init__(self, loss: Callable[..., torch.Tensor]) -> None:
        self.loss = loss


def test_a_method_that_was_taken_before_training_is_routed_too(rig: Rig, mode: Recording) -> None:
    model = Net()
    held, taken, trainer, losses = sgd(model), model.loss, Trainer(model.loss), [model.loss]
    partial = functools.partial(model.loss)
    taken(X).backward()
    held.step()
    for called in (taken, trainer.loss, losses[0], partial, functools.partial(partial), model.loss):
        mode.called.clear()
        called(X).backward()
        held.step()
        assert mode.called == [model]
        assert not rig.wrapping.uncalled


def test_a_method_beside_the_models_own_call_is_told_as_that(rig: Rig, mode: Recording) -> None:
    mode.wraps_parts = True
    model = Net()
    held = sgd(model)
    for loss in (model, model.loss, model, model.loss):
        loss(X).mean().backward()
        held.step()
    (warning,) = rig.wrapping.warnings
    assert warning == "beside its own call, Net is trained through Net.loss, which stands for one"


@pytest.mark.usefixtures("rig")
def test_ranks_leave_the_first_step_of_a_routed_method_alike() -> None:
    model = Net()
    held = sgd(model)
    before = [p.detach().clone() for p in model.parameters()]
    model.loss(X).backward()
    held.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)), "its gradient was local"
    assert all(p.grad is not None for p in model.parameters()), "a GradScaler wants to see gradients"
    model.loss(X).backward()
    held.step()
    assert not any(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.usefixtures("rig")
def test_a_routed_method_gives_what_it_gave() -> None:
    model = Net()
    held = sgd(model)
    before = model.loss(X)
    before.backward()
    held.step()
    assert torch.equal(model.loss(X), before)
    assert torch.equal(model(X), Net.forward(model, X))
    with torch.no_grad():
        assert not model.loss(X).requires_grad
    assert inspect.signature(model.loss) == inspect.signature(Net().loss)


@pytest.mark.usefixtures("rig")
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_with_a_routed_method_is_a_model(mode: Recording, copied: Any) -> None:
    model = Net()
    held = sgd(model)
    model.loss(X).backward()
    held.step()
    other = copied(model)
    other.loss(X).backward()
    assert mode.called == [], "the copy is not routed"
    assert other.first.weight is not model.first.weight
    assert other.first.weight.grad is not None


def test_a_forward_called_by_its_name_is_a_method_too(rig: Rig, mode: Recording) -> None:
    model = Net()
    held = sgd(model)
    for _ in range(3):
        model.forward(X).mean().backward()
        held.step()
    assert mode.called == [model, model]
    assert rig.wrapping.modules == [model]


class Halving(Net):
    """Is called by a call of its own, which does something before its forward."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x / 2)


class Whole(Net):
    """Has no forward: its own call is all there is."""

    forward = nn.Module.forward

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize("kind", [Halving, Whole])
def test_a_call_of_the_classs_own_enters_the_wrapper_once(
    rig: Rig, mode: Recording, patches: Patches, kind: type[Net]
) -> None:
    model, other = kind(), kind()
    held = sgd(model)
    before = model(X)
    for _ in range(3):
        held.zero_grad()
        (model(X) + other(X)).mean().backward()
        held.step()
    assert rig.wrapping.modules == mode.converted == [model]
    assert mode.called == [model, model], "the first forward told what to route"
    assert [step.counted.samples_entered for step in rig.steps] == [0, 4, 4]
    assert f"{kind.__name__}.__call__" in rig.wrapping.warnings[0]
    after = model(X)
    with torch.no_grad():
        assert torch.equal(model(X), after)
    patches.undo()
    assert torch.equal(model(X), after)
    assert not torch.equal(before, after)


class Indexed(Net):
    """Its forward is run by an operator, which Python looks up in the class."""

    def __getitem__(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(x)


def test_a_method_that_python_calls_by_itself_leaves_the_one_that_it_calls(rig: Rig, mode: Recording) -> None:
    model = Indexed()
    held = sgd(model)
    for _ in range(2):
        model[X].backward()
        held.step()
    assert mode.called == [model]
    assert "Indexed.loss" in rig.wrapping.warnings[0]


def test_a_trainer_that_is_a_module_but_trains_no_more_than_its_model_is_no_trap(rig: Rig) -> None:
    class Trainer(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).mean()

    trainer = Trainer(Net())
    held = sgd(trainer)
    trainer.training_step(X).backward()
    held.step()
    assert rig.wrapping.modules == [trainer.model]


@pytest.mark.parametrize("kind", [ConversionError, AssertionError])
def test_a_mode_that_cannot_convert_says_so_with_the_line(patches: Patches, kind: type[Exception]) -> None:
    class Refusing(Recording):
        def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:
            raise kind(f"planted for {module}, unused {how.has_unused}")

    Rig(patches, Refusing())
    model = Net()
    held = sgd(model)
    with pytest.raises(FailedError, match=r"Net, called at .*: planted for Net"):
        model(X)
    held.zero_grad()


def test_the_mode_is_told_of_parameters_without_a_gradient(patches: Patches, mode: Recording) -> None:
    rig = Rig(patches, mode, unused=["first.weight"])
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    assert mode.told is not None
    assert mode.told.has_unused
    assert rig.wrapping.has_unused
    assert mode.told.ignored == frozenset()


class Averaged(nn.Module):
    """A model that keeps a copy of itself inside, which no optimizer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.average = Net(), Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def test_a_copy_that_nothing_trains_is_no_parameter_without_a_gradient(patches: Patches, mode: Recording) -> None:
    model = Averaged()
    names = [f"average.{name}" for name, _ in model.average.named_parameters()]
    rig = Rig(patches, mode, unused=names)
    held = sgd(model.net)
    model(X).mean().backward()
    held.step()
    assert mode.told is not None
    assert mode.told.ignored == frozenset(names)
    assert not rig.wrapping.has_unused


def test_a_parameter_whose_gradient_is_left_at_zero_is_unused_all_the_same(rig: Rig) -> None:
    model = Net()
    held = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).mean().backward()
    held.zero_grad(set_to_none=False)
    assert rig.wrapping.records()[0].unused == ()
    assert rig.wrapping.records(set(map(id, model.first.parameters())))[0].unused == ("second.weight", "second.bias")


def test_of_a_model_that_a_step_did_not_train_its_own_gradients_tell(rig: Rig) -> None:
    models = [Net() for _ in range(3)]
    held = [sgd(model) for model in models]
    for model in models:
        model(X).mean().backward()
    models[1].second.bias.grad = None
    held[2].zero_grad()
    touched = set(map(id, models[0].parameters()))
    assert [unit.unused for unit in rig.wrapping.records(touched)] == [(), ("second.bias",), ()]


def test_unused_and_unwrapped_parameters_are_named(rig: Rig) -> None:
    model, loose = Net(), nn.Parameter(torch.ones(2))
    held = torch.optim.SGD([*model.parameters(), loose], lr=0.1)
    model.first(X).mean().backward()
    assert rig.wrapping.modules == [model.first]
    model(X).mean().backward()
    assert rig.wrapping.modules == [model], "a part is released: two wrappers would reduce it twice"
    assert model.first._compiled_call_impl is None
    held.zero_grad()
    model.first(X).mean().backward()
    assert rig.wrapping.modules == [model], "and not wrapped again when it is called alone"
    (loose.sum() * 2).backward()
    assert rig.wrapping.records()[0].unused == ("second.weight", "second.bias")
    touched = {id(p) for p in (*model.first.parameters(), model.second.bias)}
    assert rig.wrapping.records(touched)[0].unused == ("second.weight",)
    (unwrapped,) = rig.wrapping.unwrapped()
    assert "(2,)" in unwrapped
    assert "SGD" in unwrapped
    held.step()


@dataclasses.dataclass
class Unhashable(nn.Module):
    """A loss that compares by its fields, and so has no hash."""

    gamma: float = 2.0

    def __post_init__(self) -> None:
        super().__init__()

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return (y.abs() ** self.gamma).mean()


class Listed(Net):
    """A model whose own `parameters` is a list."""

    def parameters(self, recurse: bool = True) -> Any:
        return [p for p in super().parameters(recurse) if p.requires_grad]


class Named(nn.Module):
    """A loss of which an attribute has the name of a method."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters = {"weight": 2.0}  # type: ignore[assignment]

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return (y * self.parameters["weight"]).mean()  # type: ignore[index]


@pytest.mark.parametrize("loss", [Unhashable(), Named()])
def test_what_a_module_says_of_itself_is_its_own_affair(rig: Rig, loss: nn.Module) -> None:
    model = Listed()
    held = sgd(model)
    loss(model(X)).backward()
    held.step()
    with torch.no_grad():
        loss(model(X))
    assert rig.wrapping.modules == [model]


class Chooses(nn.Module):
    """Takes an argument that hooks might have a name for, too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Net(), Net()

    def forward(self, x: torch.Tensor, module: str = "a", self_: int = 0) -> torch.Tensor:
        return getattr(self, module)(x) + self_


def test_a_forward_may_have_an_argument_of_any_name(rig: Rig) -> None:
    model = Chooses()
    held = sgd(model)
    for _ in range(2):
        model(X, module="b", self_=1).mean().backward()
        held.step()
    assert rig.wrapping.modules == [model]


def test_a_compiled_function_that_calls_a_model_runs_as_python_and_the_model_is_compiled(
    rig: Rig, mode: Recording
) -> None:
    model, traced = Net(), []
    held = sgd(model)

    @torch.compile(backend="eager")
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return model(x).mean()

    for _ in range(2):
        loss_of(X).backward()
        held.step()
    assert mode.called == [model, model]
    assert traced == [False, False]
    assert rig.wrapping.is_compiled(model)
    assert "loss_of, compiled at " in rig.wrapping.warnings[0]


def test_all_compiled_functions_on_the_way_to_a_model_run_as_python(rig: Rig, mode: Recording) -> None:
    model, traced = Net(), []
    held = sgd(model)

    @torch.compile(backend="eager")
    def output_of(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return model(x)

    @torch.compile(backend="eager")
    def loss_of(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
        assert net is model
        return output_of(x).mean()

    for _ in range(3):
        loss_of(X, model).backward()
        held.step()
    assert mode.called == [model] * 3
    assert traced == [False] * 3
    assert [text.partition(",")[0].rpartition(".")[2] for text in rig.wrapping.warnings[:2]] == ["loss_of", "output_of"]


@dataclasses.dataclass(slots=True)
class Holder:
    """Holds anything, without attributes of its own."""

    held: Any


def called_by_helper(x: torch.Tensor) -> Any:
    return THEIRS.held(x)


class Space:
    helper = staticmethod(called_by_helper)

    def __call__(self, x: torch.Tensor) -> Any:
        return called_by_helper(x)


THEIRS = Holder(None)


@pytest.mark.parametrize(
    "compiled",
    [
        lambda model: functools.partial(lambda models, x: models["net"][0](x), {"net": [model]}),
        lambda model: functools.partial(lambda holder, x: holder.held.net(x), Holder(argparse.Namespace(net=model))),
        lambda _: lambda x: sum(called_by_helper(part) for part in [x]),
        lambda _: lambda x: Space.helper(x) + 1,
        lambda _: functools.partial(lambda space, x: space(x), Space()),
        lambda model: functools.wraps(torch.matmul)(lambda x: model(x) + 1),
        lambda model: lambda x, net=model: net(x),
    ],
)
def test_a_model_is_found_however_a_compiled_function_comes_to_it(
    rig: Rig, mode: Recording, monkeypatch: pytest.MonkeyPatch, compiled: Callable[[nn.Module], Any]
) -> None:
    model = Net()
    held = sgd(model)
    monkeypatch.setattr(THEIRS, "held", model)
    function = compiled(model)
    call = torch.compile(getattr(function, "func", function), backend="eager")
    for _ in range(2):
        call(*getattr(function, "args", ()), X).mean().backward()
        held.step()
    assert mode.called == [model, model]
    assert rig.wrapping.is_compiled(model)


def test_a_compiled_function_may_close_over_what_has_no_value_yet(rig: Rig) -> None:
    held = sgd(Net())

    @torch.compile(backend="eager")
    def loss_of(x: torch.Tensor, *, is_late: bool = False) -> torch.Tensor:
        return late(x) if is_late else x.mean()

    assert loss_of(X) == X.mean()
    late = Net()
    assert not rig.wrapping.warnings
    assert held


def test_what_is_compiled_may_be_compiled_again_and_bound_to_anything(rig: Rig) -> None:
    @dataclasses.dataclass(slots=True)
    class Loss:
        factor: float

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.factor * x.mean()

        def of(self, x: torch.Tensor) -> torch.Tensor:
            return self(x)

    held = sgd(Net())
    twice = torch.compile(torch.compile(lambda x: x + 1, backend="eager"), backend="eager")
    bound = torch.compile(Loss(2.0).of, backend="eager")
    assert torch.equal(twice(X), X + 1)
    assert bound(X) == 2 * X.mean()
    assert not rig.wrapping.warnings
    assert held


def test_a_compiled_method_that_stands_for_its_models_call_is_routed(rig: Rig, mode: Recording) -> None:
    model = Net()
    held = sgd(model)
    loss_of = torch.compile(model.loss, backend="eager")
    for _ in range(3):
        loss_of(X).backward()
        held.step()
    assert mode.called == [model, model], "the first forward told what to route"
    assert rig.wrapping.modules == [model]


def test_a_compiled_function_that_calls_nothing_that_is_trained_stays_compiled(rig: Rig, mode: Recording) -> None:
    model, frozen, traced = Net(), Net().requires_grad_(False), []
    held = sgd(model)

    @torch.compile(backend="eager")
    def target_of(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return frozen(x)

    for _ in range(2):
        (model(X) - target_of(X)).pow(2).mean().backward()
        held.step()
    assert all(traced)
    assert mode.converted == [model]
    assert "target_of, compiled at" in rig.wrapping.past_graphs()


class Observing(Recording):
    """Lets the script be as it is."""

    only_observes = True


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:Dynamo does not know")
@pytest.mark.parametrize("what", ["all", "backward", "forward"])
def test_who_only_observes_says_where_a_forward_is_a_part_of_a_graph(patches: Patches, what: str) -> None:
    torch.compiler.reset()
    rig = Rig(patches, Observing())
    model = Net()
    held = sgd(model)

    @torch.compile(backend="eager")
    def train(x: torch.Tensor) -> torch.Tensor:
        loss = model.second(model.first(x)).mean() if what == "all" else x.mean()
        if what != "forward":
            loss.backward()
        return loss

    model(X).mean().backward()
    for _ in range(3):
        loss = train(X if what == "all" else model(X))
        if what == "forward":
            loss.backward()
        held.step()
    assert bool(rig.wrapping.made_anew) is (what == "all")
    assert [text.startswith(rig.wrapping.made_anew) for text in rig.wrapping.warnings] == [True] * (what == "all")


def test_who_only_observes_leaves_a_compiled_function_as_it_is(patches: Patches) -> None:
    rig, traced = Rig(patches, Observing()), []
    held = sgd(Net())
    loss_of = torch.compile(lambda x: traced.append(torch.compiler.is_compiling()) or x.mean(), backend="eager")
    loss_of(X)
    held.zero_grad()
    assert all(traced)
    assert "is a graph in which no call of a module is seen" in rig.wrapping.past_graphs()
