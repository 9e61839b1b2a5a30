from __future__ import annotations

import copy
import io
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.worker.adopt import Redirect
from dpdoctor.worker.modes._base import AdoptionError, Conversion
from dpdoctor.worker.patches import Patches
from tests.unit.worker.rig import FailedError, Recording, Rig

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.1)


class Net(nn.Module):
    """A model of two parts; `loss` reaches its forward without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).mean()


class Criterion(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return (y * self.weight).mean()


@pytest.fixture
def mode() -> Recording:
    return Recording()


@pytest.fixture
def rig(patches: Patches, mode: Recording) -> Rig:
    return Rig(patches, mode)


def test_the_outermost_module_that_is_called_is_adopted(rig: Rig, mode: Recording) -> None:
    model = Net()
    held = sgd(model)
    beside = nn.Sequential(model, nn.Softmax(1))
    model(X).mean().backward()
    held.step()
    assert rig.adopter.modules == mode.converted == [model]
    assert mode.called == [model]
    assert beside not in mode.converted
    (unit,) = rig.adopter.units()
    assert (unit.name, unit.num_parameters, unit.trainable_bytes) == ("Net", 16, 64)
    assert unit.line.startswith(f"{__file__}:")


def test_parts_called_inside_are_not_units(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    for _ in range(3):
        model(X).mean().backward()
        held.step()
    assert rig.adopter.modules == [model]
    assert [step.counted.samples_entered for step in rig.steps] == [4, 4, 4]


def test_a_criterion_with_parameters_is_a_unit_too(rig: Rig, mode: Recording) -> None:
    model, criterion = Net(), Criterion()
    held = sgd(model, criterion)
    criterion(model(X)).backward()
    held.step()
    assert rig.adopter.modules == [model, criterion]
    assert mode.called == [model, criterion]
    assert rig.adopter.unadopted() == ()


def test_modules_that_nobody_trains_are_left_alone(rig: Rig) -> None:
    teacher, model = Net(), Net()
    held = sgd(model)
    (model(X) - teacher(X)).pow(2).mean().backward()
    nn.MSELoss()(model(X), torch.zeros(4, 1))
    held.step()
    assert rig.adopter.modules == [model]


def test_a_model_is_adopted_at_its_first_training_forward_and_not_before(rig: Rig) -> None:
    model = Net()
    model(X)
    held = sgd(model)
    with torch.no_grad():
        model(X)
    assert rig.adopter.modules == []
    model.double().load_state_dict(Net().state_dict())
    model(X.double()).mean().backward()
    held.step()
    assert rig.adopter.modules == [model]
    assert rig.adopter.units()[0].trainable_bytes == 128


def test_without_gradients_the_module_itself_answers(rig: Rig, mode: Recording) -> None:
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    with torch.no_grad():
        assert not model(X).requires_grad
    with torch.inference_mode():
        model(X)
    assert mode.called == [model], "an evaluation on one rank must wait for nobody"
    model(X).mean().backward()
    held.step()
    assert [step.counted.epoch_edge for step in rig.steps] == [False, True]


def test_a_module_that_calls_itself_enters_its_wrapper_once(rig: Rig, mode: Recording) -> None:
    class Recursive(nn.Linear):
        def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
            return self(super().forward(x), depth - 1) if depth else super().forward(x)

    model = Recursive(3, 3)
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    assert mode.called == [model]
    assert rig.steps[0].counted.samples_entered == 4


def test_a_forward_that_raises_leaves_the_wrapper_usable(rig: Rig, mode: Recording) -> None:
    model = Net()
    held = sgd(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(4, 5))
    model(X).mean().backward()
    held.step()
    assert mode.called == [model, model]
    assert rig.adopter.modules == [model]


def test_hooks_of_the_module_run_once(rig: Rig) -> None:
    model, calls = Net(), []
    model.register_forward_hook(lambda *_: calls.append("forward"))
    held = sgd(model)
    for _ in range(2):
        model(X).mean().backward()
        held.step()
    assert calls == ["forward"] * 2
    assert len(rig.steps) == 2


def saved_and_loaded(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)), saved_and_loaded]
)
def test_a_copy_of_an_adopted_module_is_a_plain_module(
    patches: Patches, mode: Recording, copied: Callable[[nn.Module], nn.Module]
) -> None:
    Rig(patches, mode)
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    twin = copied(model)
    assert type(twin) is Net
    assert "_compiled_call_impl" not in vars(twin)
    with torch.no_grad():
        assert torch.equal(twin(X), model(X))
    assert mode.called == [model]
    assert list(twin.state_dict()) == list(Net().state_dict())


def test_a_copy_of_an_adopted_model_that_is_trained_is_adopted_itself(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    twin = copy.deepcopy(model)
    held_too = sgd(twin)
    twin(X).mean().backward()
    held.step()
    held_too.step()
    assert rig.adopter.modules == [model, twin]


def test_state_travels_in_and_out_of_an_adopted_module(rig: Rig) -> None:
    model, other = Net(), Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    model.load_state_dict(other.state_dict())
    assert torch.equal(model(X), other(X))
    assert rig.adopter.modules == [model]


def test_training_through_a_method_is_refused_with_its_name_and_line(patches: Patches) -> None:
    Rig(patches, Recording())
    model = Net()
    held = sgd(model)
    with pytest.raises(
        FailedError, match=r"gradients would not be synchronised: .* reached through Net\.loss"
    ) as failed:
        model.loss(X)
    assert f"Linear is called at {__file__}:" in str(failed.value)
    held.zero_grad()


def test_training_through_a_method_is_a_warning_where_nothing_is_synchronised(patches: Patches) -> None:
    rig = Rig(patches)
    model = Net()
    held = sgd(model)
    model.loss(X).backward()
    held.step()
    assert "Net.loss" in rig.adopter.warnings[0]
    assert rig.adopter.modules == [model.first, model.second]


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
    assert rig.adopter.modules == [trainer.model]


def test_a_mode_that_cannot_convert_says_so_with_the_line(patches: Patches) -> None:
    class Refusing(Recording):
        def convert(self, module: nn.Module, how: Conversion) -> Callable[..., Any]:
            raise AdoptionError(f"planted for {module}, unused {how.has_unused}")

    Rig(patches, Refusing())
    model = Net()
    held = sgd(model)
    with pytest.raises(FailedError, match=r"Net, called at .* could not be converted: planted for Net"):
        model(X)
    held.zero_grad()


def test_the_mode_is_told_of_parameters_without_a_gradient(rig: Rig, mode: Recording) -> None:
    rig.adopter.seek(has_unused=True)
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    assert mode.told_of_unused is True


def test_unused_and_unadopted_parameters_are_named(rig: Rig) -> None:
    model, loose = Net(), nn.Parameter(torch.ones(2))
    held = torch.optim.SGD([*model.parameters(), loose], lr=0.1)
    model.first(X).mean().backward()
    assert rig.adopter.modules == [model.first]
    model(X).mean().backward()
    assert rig.adopter.modules == [model.first, model]
    held.zero_grad()
    model.first(X).mean().backward()
    (loose.sum() * 2).backward()
    assert rig.adopter.units()[1].unused == ("second.weight", "second.bias")
    assert rig.adopter.unadopted() == ("a parameter of shape (2,) in SGD",)
    held.step()


def test_settled_the_module_call_is_torchs_own_and_the_unit_still_redirects(rig: Rig, mode: Recording) -> None:
    own = nn.Module._wrapped_call_impl
    assert nn.Module.__call__ is not own
    model, late = Net(), Net()
    held = sgd(model, late)
    model(X).mean().backward()
    rig.adopter.settle()
    assert nn.Module.__call__ is own
    model(X).mean().backward()
    late(X).mean().backward()
    held.step()
    assert mode.called == [model, model]
    assert len(rig.adopter.unadopted()) == 4, "what begins to train later is noticed by its gradients"


def test_after_undo_an_adopted_module_is_a_plain_one(patches: Patches) -> None:
    Rig(patches)
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    assert isinstance(model._compiled_call_impl, Redirect)
    patches.undo()
    assert "_compiled_call_impl" not in vars(model)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_process_an_adopted_module_is_a_plain_one(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    pid = os.fork()
    if pid == 0:
        os._exit("_compiled_call_impl" in vars(model))
    assert os.waitpid(pid, 0)[1] == 0
    assert isinstance(model._compiled_call_impl, Redirect)
    assert len(rig.steps) == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "entered"),
    [
        ((torch.ones(5, 3),), {}, 5),
        (({"x": torch.ones(6, 3), "mask": torch.ones(2)},), {}, 6),
        (([torch.ones(7, 3)],), {}, 7),
        ((), {"x": torch.ones(8, 3)}, 8),
        (("text", 3, torch.ones(9, 3)), {}, 9),
        ((torch.tensor(1.0), torch.ones(9, 3)), {}, 0),
        (("text",), {}, 0),
    ],
)
def test_samples_are_counted_on_the_first_tensor(
    rig: Rig, args: tuple[Any, ...], kwargs: dict[str, Any], entered: int
) -> None:
    rig.watch.keep_inputs = True
    rig.watch.training_forward(1, args, kwargs)
    assert rig.tally.lap().samples_entered == entered
    kept = rig.watch.inputs
    rig.watch.training_forward(1, (torch.ones(1),), {})
    assert rig.watch.inputs is kept, "only the first forward's are kept"
    assert rig.watch.forwards == {1: 2}
    assert not rig.watch.keep_inputs
