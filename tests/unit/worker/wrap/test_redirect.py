from __future__ import annotations

import copy
import io
import os
import pickle
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.wrap.entered import are_same
from dpdoctor.worker.wrap.redirect import Redirect
from tests.builders.models import Net, X, sgd
from tests.builders.rig import Recording, Rig


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
    assert rig.wrapping.modules == [model]


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
def test_a_copy_of_an_wrapped_module_is_a_plain_module(
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


def test_a_copy_of_an_wrapped_model_that_is_trained_is_wrapped_itself(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    twin = copy.deepcopy(model)
    held_too = sgd(twin)
    twin(X).mean().backward()
    held.step()
    held_too.step()
    assert rig.wrapping.modules == [model, twin]


def test_state_travels_in_and_out_of_an_wrapped_module(rig: Rig) -> None:
    model, other = Net(), Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    model.load_state_dict(other.state_dict())
    assert torch.equal(model(X), other(X))
    assert rig.wrapping.modules == [model]


def test_settled_the_module_call_is_torchs_own_and_the_unit_still_redirects(rig: Rig, mode: Recording) -> None:
    own = nn.Module._wrapped_call_impl
    assert nn.Module.__call__ is not own
    model, late = Net(), Net()
    held = sgd(model, late)
    model(X).mean().backward()
    rig.wrapping.settle()
    assert nn.Module.__call__ is own
    model(X).mean().backward()
    late(X).mean().backward()
    held.step()
    assert mode.called == [model, model]
    assert len(rig.wrapping.unwrapped()) == 4, "what begins to train later is noticed by its gradients"


def test_after_undo_an_wrapped_module_is_a_plain_one(patches: Patches) -> None:
    Rig(patches)
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    assert isinstance(model._compiled_call_impl, Redirect)
    patches.undo()
    assert "_compiled_call_impl" not in vars(model)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_process_an_wrapped_module_is_a_plain_one(rig: Rig) -> None:
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
    ("args", "kwargs", "entered", "elements"),
    [
        ((torch.ones(5, 3),), {}, 5, 15),
        (({"x": torch.ones(6, 3), "mask": torch.ones(2)},), {}, 6, 18),
        (([torch.ones(7, 3)],), {}, 0, 0),
        (({"images": [torch.ones(7, 3)]}, torch.ones(2)), {}, 0, 0),
        ((UserDict(name="text", x=torch.ones(7, 3)),), {}, 7, 21),
        ((), {"x": torch.ones(8, 3)}, 8, 24),
        (("text", 3, torch.ones(9, 3)), {}, 9, 27),
        ((torch.tensor(1.0), torch.ones(9, 3)), {}, 9, 27),
        ((torch.tensor(1.0), [torch.ones(9, 3)]), {}, 0, 0),
        ((torch.tensor(1.0),), {}, 0, 0),
        (("text",), {}, 0, 0),
    ],
)
def test_samples_and_elements_are_those_of_the_first_tensor_that_has_rows(
    rig: Rig, args: tuple[Any, ...], kwargs: dict[str, Any], entered: int, elements: int
) -> None:
    module = nn.Identity()
    rig.watch.keep_inputs = True
    rig.watch.training_forward(module, args, kwargs)
    counted = rig.tally.lap()
    assert (counted.samples_entered, counted.elements) == (entered, elements)
    kept = rig.watch.inputs
    rig.watch.training_forward(module, (torch.ones(1),), {})
    assert rig.watch.inputs is kept, "only the first forward's are kept"
    assert rig.watch.forwards == {id(module): 1}, "a second forward before any backward is the same pass"
    rig.watch.backward_ended()
    rig.watch.training_forward(module, (torch.ones(1),), {})
    assert rig.watch.forwards == {id(module): 2}
    assert not rig.watch.keep_inputs


def test_what_is_kept_is_what_trains_and_no_evaluation_with_gradients_left_on(rig: Rig) -> None:
    module, evaluated = nn.Identity(), torch.zeros(1)
    rig.watch.keep_inputs = True
    for first in (evaluated, torch.ones(1)):
        rig.watch.training_forward(module.eval(), (first,), {})
    assert rig.watch.inputs == [evaluated], "one that fine-tunes a frozen model trains like that"
    rig.watch.training_forward(module.train(), (X,), {})
    assert rig.watch.inputs == [X]
    assert not rig.watch.keep_inputs


def test_an_evaluation_with_gradients_left_on_is_not_training(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    for _ in range(2):
        for (x,) in DataLoader(TensorDataset(X), batch_size=2):
            model.train()
            model(x).mean().backward()
            held.step()
        model.eval()
        for (x,) in DataLoader(TensorDataset(torch.ones(30, 3)), batch_size=10):
            model(x)
    counted = [(step.counted.samples_drawn, step.counted.samples_entered) for step in rig.steps]
    assert counted == [(2, 2)] * 4


def test_a_tensor_class_of_the_scripts_is_not_asked_when_it_is_looked_at(rig: Rig) -> None:
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not nn.functional.linear:
                raise ValueError(func)
            return super().__torch_function__(func, types, args, kwargs or {}).as_subclass(torch.Tensor)

    model = Net()
    held = sgd(model)
    rig.watch.entered.is_on = True
    model(X.as_subclass(Refusing)).mean().backward()
    held.step()
    assert rig.steps[0].counted.samples_entered == 4


def test_a_model_in_eval_mode_trains_on_its_data_though_another_ones_training_forward_follows(rig: Rig) -> None:
    tuned, prompted = Net().eval(), Net()
    held = torch.optim.SGD([*tuned.parameters(), *prompted.parameters()])
    entered, told = rig.watch.entered, []
    entered.is_on = True
    for _ in range(2):  # ranks
        entered.begin_anew()
        for _ in range(2):
            (tuned(torch.rand(4, 3)) + prompted(X)).mean().backward()
            held.step()
            entered.step_ended()
        told.append(entered.told())
    assert not are_same(told)


def test_two_losses_on_the_same_samples_are_of_one_batch(rig: Rig) -> None:
    actor, critic = Net(), Net()
    held = torch.optim.SGD([*actor.parameters(), *critic.parameters()])
    states = torch.randn(6, 3)
    for is_at_once in (True, False):
        policy = actor(states).mean()
        value = critic(states).mean() if is_at_once else None
        policy.backward()
        (critic(states).mean() if value is None else value).backward()
        held.step()
    assert [step.counted.samples_entered for step in rig.steps] == [6, 6]
    (remark,) = rig.tally.remarks()
    assert ", up to 6 per step" in remark


def mean_of(*models: nn.Module) -> torch.Tensor:
    """Return the mean of what models give that are called one after another, on new samples."""
    x = torch.randn(4, 3)
    for model in models:
        x = model(x)
    return x.mean()


@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_loss_through_a_model_that_has_just_stepped_adds_to_no_gradients(rig: Rig, accumulated: int) -> None:
    actor, critic = nn.Linear(3, 3), nn.Linear(3, 3)
    of_actor, of_critic = sgd(actor), sgd(critic)
    for _ in range(6):
        for models, optimizer in (((critic,), of_critic), ((actor, critic), of_actor)):
            optimizer.zero_grad()
            for _ in range(accumulated):
                mean_of(*models).backward()
            optimizer.step()
    assert [step.counted.micro_batches for step in rig.steps] == [accumulated] * 6
    assert set(rig.watch.micro_batches) == {accumulated}


def test_two_models_that_each_have_a_backward_pass_before_their_steps_accumulate_nothing(rig: Rig) -> None:
    models = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizers = [sgd(model) for model in models]
    for _ in range(6):
        for model in models:
            mean_of(model).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert {step.counted.micro_batches for step in rig.steps} == {1}
    assert set(rig.watch.micro_batches) == {1}


def test_a_discriminator_that_accumulates_beside_a_generator_that_does_not_is_told_apart(rig: Rig) -> None:
    generator, discriminator = nn.Linear(3, 3), nn.Linear(3, 3)
    of_discriminator, of_generator = sgd(discriminator), sgd(generator)
    for _ in range(6):
        mean_of(discriminator).backward()
        mean_of(discriminator).backward()
        of_discriminator.step()
        mean_of(generator, discriminator).backward()
        of_generator.step()
    assert set(rig.watch.micro_batches) == {1, 2}


def sam(model: nn.Module) -> Iterator[torch.Tensor]:
    x = torch.rand(4, 3)
    yield x
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    yield x


def accumulated(_: nn.Module) -> Iterator[torch.Tensor]:
    for _ in range(2):
        yield torch.rand(4, 3)


def in_one_buffer(_: nn.Module) -> Iterator[torch.Tensor]:
    x = torch.empty(4, 3)
    for _ in range(2):
        yield x.copy_(torch.rand(4, 3))


def in_slices(_: nn.Module) -> Iterator[torch.Tensor]:
    yield from torch.rand(8, 3).chunk(2)


def attacked(_: nn.Module) -> Iterator[torch.Tensor]:
    x = torch.rand(4, 3, requires_grad=True)
    yield x
    assert x.grad is not None
    yield (x + x.grad.sign()).detach()


def attacked_by_a_part(_: nn.Module) -> Iterator[torch.Tensor]:
    x, delta = torch.rand(4, 3), torch.zeros(4, 3, requires_grad=True)
    yield x + delta
    yield x


@pytest.mark.parametrize(
    ("batches", "entered"),
    [(sam, 4), (accumulated, 8), (in_one_buffer, 8), (in_slices, 8), (attacked, 0), (attacked_by_a_part, 0)],
)
def test_a_second_backward_pass_of_a_step_is_on_samples_of_its_own_where_its_batch_is(
    rig: Rig, batches: Callable[[nn.Module], Iterator[torch.Tensor]], entered: int
) -> None:
    model = Net()
    held = sgd(model)
    for _ in range(5):
        for x in batches(model):
            model(x).mean().backward()
        held.step()
    assert [step.counted.samples_entered for step in rig.steps[1:]] == [entered] * 4


def test_two_models_on_samples_of_their_own_are_not_counted(rig: Rig) -> None:
    models = Net(), Net()
    held = torch.optim.SGD([p for model in models for p in model.parameters()])
    for model in models:
        model(torch.randn(6, 3)).mean().backward()
    held.step()
    (remark,) = rig.tally.remarks()
    assert "on tensors of their own" in remark


def test_a_batch_that_made_a_forward_raise_is_not_trained_on(rig: Rig) -> None:
    class Picky(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x[0, 0] < 0:
                raise RuntimeError("a batch that it cannot take")
            return super().forward(x)

    model = Picky()
    held = sgd(model)
    for (x,) in DataLoader(TensorDataset(torch.tensor([[-1.0] * 3] * 2 + [[1.0] * 3] * 2)), batch_size=2):
        try:
            loss = model(x * 2).mean()
        except RuntimeError:
            continue
        loss.backward()
        held.step()
    assert [step.counted.samples_drawn for step in rig.steps] == [2]


def test_what_torch_func_maps_over_has_no_samples_that_are_known(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    rig.watch.entered.is_on = True
    for _ in range(3):
        torch.func.vmap(torch.func.jacrev(model))(torch.randn(5, 3)).pow(2).mean().backward()
        held.step()
    assert [step.counted.samples_entered for step in rig.steps] == [0, 0, 0]


@dataclass
class Given:
    """What some frameworks call a model with."""

    name: str
    past: torch.Tensor
    future: torch.Tensor | None = None


class OfGiven(Net):
    def forward(self, given: Any) -> torch.Tensor:
        return super().forward(given.past)


def test_the_tensors_of_a_dataclass_are_what_a_model_is_called_with(rig: Rig) -> None:
    model = OfGiven()
    held = sgd(model)
    for (x,) in DataLoader(TensorDataset(X.repeat(3, 1)), batch_size=4):
        model(Given("a", 2 * x)).mean().backward()
        held.step()
    counted = [step.counted for step in rig.steps]
    assert [(each.samples_drawn, each.samples_entered, each.reconciled) for each in counted] == [(4, 4, True)] * 3


@dataclass(eq=False)
class Node:
    """A part of a tree that leads to the whole of it, and to all that the script has."""

    past: torch.Tensor
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    data: Endless | None = None


class Endless(list[int]):
    """Data of which nobody may read all."""

    def __iter__(self) -> Iterator[int]:
        for number in range(1 << 20):
            assert number < 1 << 16, "it is read to its end"
            yield number


def test_what_leads_back_to_itself_or_to_all_data_is_looked_into_once(rig: Rig) -> None:
    class OfNodes(OfGiven):
        def forward(self, given: Any) -> Any:
            y, whole = super().forward(given), [given.children]
            whole.append(whole)
            return y, whole

    model = OfNodes()
    held = sgd(model)
    rig.watch.entered.is_on = True
    for (x,) in DataLoader(TensorDataset(X.repeat(4, 1)), batch_size=4):
        root = Node(2 * x)
        root.children += [Node(2 * x, root, data=Endless()), root]
        rig.watch.keep_inputs = True
        rig.watch.entered.handed(root)
        model(root)[0].mean().backward()
        held.step()
        rig.watch.entered.step_ended()
    assert [step.counted.samples_entered for step in rig.steps] == [4] * 4
    assert [tensor.shape for tensor in rig.watch.inputs] == [X.shape] * 2
    assert rig.watch.entered.num_steps == 4


class OfRows(nn.Linear):
    """Takes a list of rows, or what is packed of them."""

    def __init__(self) -> None:
        super().__init__(3, 1)

    def forward(self, rows: Any) -> torch.Tensor:
        return super().forward(rows.data if hasattr(rows, "data") else torch.cat(rows))


@pytest.mark.parametrize(
    ("given", "reconciled"),
    [
        (lambda x: [2 * row[None] for row in x], True),
        (lambda x: tuple(2 * row[None] for row in x), True),
        (lambda x: pack_sequence([2 * x[:2], 2 * x[:1], 2 * x[:1], 2 * x[:1]]), True),
        (lambda x: [2 * row[None] for row in x[:3]], False),
    ],
)
def test_lists_of_new_tensors_and_packed_sequences_are_held_against_what_was_drawn(
    rig: Rig, given: Callable[[torch.Tensor], Any], reconciled: bool
) -> None:
    model = OfRows()
    held = sgd(model)
    for (x,) in DataLoader(TensorDataset(X.repeat(3, 1)), batch_size=4):
        model(given(x)).mean().backward()
        held.step()
    assert [(step.counted.samples_drawn, step.counted.reconciled) for step in rig.steps] == [(4, reconciled)] * 3


@pytest.mark.parametrize(
    ("data", "of_batch", "samples"),
    [
        (torch.ones(8, 8, 3), lambda x: x.transpose(0, 1)[:3], 4),  # a piece of each sequence, time first
        (torch.ones(8, 3, dtype=torch.int64), lambda x: x.t()[:-1], 4),  # all but the last token, time first
        (torch.ones(8, 8, 3), lambda x: x[:3], 3),
        (torch.ones(8, 3, dtype=torch.int64), lambda x: x[:3], 3),
        (torch.ones(8, 3, dtype=torch.int64), lambda x: x[:3, 0], 3),
        (torch.ones(8, 4, dtype=torch.int64), lambda x: x[:3], 0),  # as many tokens as samples: nobody can tell
    ],
)
def test_a_part_of_a_batch_is_one_of_its_samples_or_of_their_time(
    rig: Rig, data: torch.Tensor, of_batch: Callable[[torch.Tensor], torch.Tensor], samples: int
) -> None:
    class OfAny(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.reshape(-1, 1).float())

    model = OfAny(1, 1)
    held = sgd(model)
    for (x,) in DataLoader(TensorDataset(data), batch_size=4):
        model(of_batch(x)).mean().backward()
        held.step()
    counted = [step.counted for step in rig.steps]
    assert [step.samples_drawn if step.reconciled else 0 for step in counted] == [samples] * 2
