from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dpdoctor.worker.base.mode import Passes
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.phases import PhaseClock, watch_backward
from dpdoctor.worker.wrap.autograd import Repeats, is_summed, loss_targets, note_graph, taken_apart, watch_passes
from tests.builders.handclock import HandClock
from tests.builders.models import Net, X

HERE = str(Path(__file__))


def watched(patches: Patches) -> Passes:
    noted = Passes()
    watch_passes(patches, noted)
    return noted


def test_a_backward_pass_that_is_too_early_goes_before_gradients_by_grad() -> None:
    # As in meta learning: inner steps by torch.autograd.grad, and a backward pass that fills .grad, in one forward.
    noted = Passes(by_grad="meta.py:86")
    assert "torch.autograd.grad at meta.py:86" in noted.past_hooks()
    noted.in_forward = "meta.py:136"
    assert noted.past_hooks().startswith(": the backward pass at meta.py:136 begins inside of the model's forward")


def test_gradients_of_parameters_by_grad_are_noted_with_their_line(patches: Patches) -> None:
    noted, model = watched(patches), Net()
    x = X.clone().requires_grad_()
    torch.autograd.grad(model(x).sum(), x)
    assert noted == Passes(), "gradients of inputs are nobody else's"
    found = torch.autograd.grad(model(x).sum(), (p for p in model.parameters()), allow_unused=True)
    assert len(found) == len(list(model.parameters()))
    assert noted.by_grad.startswith(f"{HERE}:")
    first = noted.by_grad
    torch.autograd.grad(model(x).sum(), list(model.parameters()), allow_unused=True)
    assert noted.by_grad == first


def test_a_module_that_is_run_on_other_tensors_is_noted_with_its_line(patches: Patches) -> None:
    noted, model = watched(patches), Net()
    torch.func.functional_call(model, dict(model.named_parameters()), (X,))
    assert noted.functional.startswith(f"{HERE}:")


@pytest.mark.skipif("dict" not in str(torch.autograd.grad.__annotations__["inputs"]), reason="this torch takes no dict")
def test_gradients_of_a_dict_of_parameters_are_a_dict_and_noted(patches: Patches) -> None:
    noted, model = watched(patches), Net()
    found: Any = torch.autograd.grad(model(X).sum(), dict(model.named_parameters()))
    assert list(found) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    assert noted.by_grad.startswith(f"{HERE}:")


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_of_gradients_are_noted_however_they_are_asked_for(patches: Patches, clock: HandClock) -> None:
    for ask in (
        lambda y, x: torch.autograd.grad(y, x, create_graph=True),
        lambda y, x: torch.autograd.grad(y, x, None, None, True),
        lambda y, x: torch.autograd.backward(y, None, None, True, inputs=(x,)),
        lambda y, x: y.backward(create_graph=True, inputs=(x,)),
    ):
        noted, x = watched(patches), X.clone().requires_grad_()

        def before(_: Any, with_graph: bool, __: bool, noted: Passes = noted) -> None:
            if with_graph:
                note_graph(noted)

        watch_backward(patches, PhaseClock(clock), lambda: None, before=before)
        Net()(x).sum().backward(retain_graph=True)
        assert not noted.with_graph
        ask(Net()(x).sum(), x)
        assert noted.with_graph.startswith(f"{HERE}:")
        patches.undo()


def repeated(*graphs: tuple[nn.Module, bool], keeps_graph: bool = True) -> Passes:
    """Return what was noted after backward passes through modules, each after a forward or not; one is wrapped."""
    noted, wrapped = Passes(), Net()
    repeats = Repeats(noted)
    for module, after_forward in graphs:
        loss = (module if module is not WRAPPED else wrapped)(X).sum()
        repeats.before_backward(loss, wrapped.parameters, after_forward=after_forward, keeps_graph=keeps_graph)
    return noted


WRAPPED = Net()


def test_a_second_backward_through_the_wrapped_module_is_noted() -> None:
    assert repeated((WRAPPED, True), (WRAPPED, False)).repeated.startswith(f"{HERE}:")
    assert repeated((WRAPPED, True), (WRAPPED, True)) == Passes()
    assert repeated((WRAPPED, True), (Net(), False)) == Passes(), "another model's backward is its own"


def test_a_graph_that_no_pass_kept_is_gone_through_once() -> None:
    noted = repeated((WRAPPED, True), (WRAPPED, False), keeps_graph=False)
    assert noted.repeated == ""
    assert noted.past.startswith(f"{HERE}:")
    assert "goes through a forward that no call of the model" in noted.past_call()
    assert Passes().past_call() == ""


def test_a_method_that_is_gone_past_is_named_when_a_step_without_it_has_ended() -> None:
    noted = repeated((WRAPPED, True), (WRAPPED, False), keeps_graph=False)
    repeats = Repeats(noted)
    assert not repeats.step_ended([])
    assert not noted.past_method
    assert repeats.step_ended(["Net.loss"])
    assert not repeats.step_ended(["Net.loss"]), "it is said once"
    assert "trains through Net.loss" in noted.past_call()
    assert "model.loss(...)" in noted.past_call()
    assert not Repeats(Passes()).step_ended(["Net.loss"]), "nothing went past it"


def test_whether_a_backward_pass_keeps_its_graph_is_seen(patches: Patches, clock: HandClock) -> None:
    told: list[tuple[bool, bool]] = []
    watch_backward(patches, PhaseClock(clock), lambda: None, before=lambda _, *flags: told.append(flags))
    Net()(X).sum().backward(retain_graph=True)
    torch.autograd.backward(Net()(X).sum(), None, True)
    Net()(X).sum().backward()
    assert told == [(False, True), (False, True), (False, False)]


def test_tensors_without_a_graph_lead_nowhere() -> None:
    noted = Passes()
    Repeats(noted).before_backward(iter([X]), Net().parameters, after_forward=False, keeps_graph=True)
    assert noted == Passes()


SIZE = 8
INPUT, TARGET, CLASSES = torch.randn(SIZE, 3), torch.randn(SIZE, 4), torch.arange(SIZE) % 4


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(3, 4)


def written(*losses: torch.Tensor) -> torch.Tensor:
    places = torch.zeros(len(losses))
    for place, loss in enumerate(losses):
        places[place] = loss
    return places


def penalty(model: nn.Module) -> torch.Tensor:
    return torch.stack([parameter.pow(2).sum() for parameter in model.parameters()]).sum()


Loss = Callable[[torch.Tensor, nn.Module], torch.Tensor]

SUMS: dict[str, Loss] = {
    "cross entropy": lambda y, _: functional.cross_entropy(y, CLASSES, reduction="sum"),
    "squares": lambda y, _: functional.mse_loss(y, TARGET, reduction="sum"),
    "absolute": lambda y, _: functional.l1_loss(y, TARGET, reduction="sum"),
    "binary": lambda y, _: functional.binary_cross_entropy_with_logits(y, TARGET.sigmoid(), reduction="sum"),
    "by hand": lambda y, _: (y - TARGET).pow(2).sum(),
    "none, then sum": lambda y, _: functional.cross_entropy(y, CLASSES, reduction="none").sum(),
    "per sample, then sum": lambda y, _: (y - TARGET).pow(2).mean(1).sum(),
    "mean and sum": lambda y, _: y.mean() + (y - TARGET).pow(2).sum(),
    "sum and a weighed penalty": lambda y, m: (y - TARGET).pow(2).sum() + 0.1 * penalty(m),
    "in another precision": lambda y, _: y.pow(2).sum().double(),
    "reshaped": lambda y, _: y.pow(2).sum().view(1).squeeze(),
    "negated": lambda y, _: -y.pow(2).sum(),
    "of rows of their own length": lambda y, _: (
        torch.nested.as_nested_tensor([y[:1, 0], y[1:, 0]], layout=torch.jagged).pow(2).sum()
    ),
    "sum of sums that were written into their places": lambda y, _: written(y.sum(), y.abs().sum()).sum(),
    "less a mean": lambda y, _: y.pow(2).sum() - y.mean(),
    "scaled by a GradScaler": lambda y, _: GradScaler("cpu").scale(y.pow(2).sum()),
    "by class probabilities": lambda y, _: functional.cross_entropy(y, TARGET.softmax(1), reduction="sum"),
}
MEANS: dict[str, Loss] = {
    "cross entropy": lambda y, _: functional.cross_entropy(y, CLASSES),
    "squares": lambda y, _: functional.mse_loss(y, TARGET),
    "none, then mean": lambda y, _: functional.cross_entropy(y, CLASSES, reduction="none").mean(),
    "sum over the samples' own values, then mean": lambda y, _: (y - TARGET).pow(2).sum(1).mean(),
    "sum over the batch's size": lambda y, _: (y - TARGET).pow(2).sum() / SIZE,
    "times one over the batch's size": lambda y, _: (y - TARGET).pow(2).sum() * (1 / SIZE),
    "smoothed labels": lambda y, _: functional.cross_entropy(y, CLASSES, label_smoothing=0.1),
    "class probabilities": lambda y, _: functional.cross_entropy(y, TARGET.softmax(1), label_smoothing=0.1),
    "mean, then a sum of that one number": lambda y, _: functional.mse_loss(y, TARGET).sum(),
    "mean, then a sum over its only dimension": lambda y, _: functional.mse_loss(y, TARGET).view(1).sum(0),
    "mean over the batch, then sum": lambda y, _: (y - TARGET).pow(2).mean(0).sum(),
    "sum of several means over all dimensions": lambda y, _: torch.stack([y.mean(None, keepdim=True)] * 2).sum(),
    "sum of several means": lambda y, _: torch.stack([functional.mse_loss(y, TARGET), y.mean()]).sum(),
    "sum of means that were written into their places": lambda y, _: written(y.mean(), y.abs().mean()).sum(),
    "mean, scaled by a GradScaler": lambda y, _: GradScaler("cpu").scale(y.pow(2).mean()),
    "sum, divided and scaled": lambda y, _: GradScaler("cpu").scale(y.pow(2).sum() / SIZE),
    "mean and a weighed penalty": lambda y, m: functional.mse_loss(y, TARGET) + 0.1 * penalty(m),
}


@pytest.mark.parametrize("loss", SUMS.values(), ids=SUMS.keys())
def test_sums_are_found(model: nn.Module, loss: Loss) -> None:
    value = loss(model(INPUT), model)
    assert is_summed(value)
    value.sum().backward()


@pytest.mark.parametrize("loss", MEANS.values(), ids=MEANS.keys())
def test_means_are_not_called_sums(model: nn.Module, loss: Loss) -> None:
    assert not is_summed(loss(model(INPUT), model))


@pytest.mark.parametrize("what", [torch.ones(1).sum(), torch.ones(1, requires_grad=True), 3.0, None])
def test_what_has_no_history_is_no_sum(what: object) -> None:
    assert not is_summed(what)


def test_a_long_chain_of_terms_is_searched_only_so_far(model: nn.Module) -> None:
    total = model(INPUT).sum()
    for _ in range(1000):
        total = total + model(INPUT).mean()
    assert not is_summed(total)


@pytest.mark.parametrize(
    ("loss", "lengths"),
    [
        (lambda y: (y.chunk(2)[0] - y.chunk(2)[1]).square().mean(), {6}),
        (lambda y: functional.normalize(y, dim=1).split([2, 4])[1].mean(), {6}),
        (lambda y: y[:4].log_softmax(1)[:, :1].mean() + 1.0, {6}),
        (lambda y: y[:, 1:].mean() + y[:, -1].mean() + y[torch.tensor([0, 2])].mean(), set()),
        (lambda y: (y @ y.t()).mean(), {6}),
        (lambda y: (functional.normalize(y, dim=1) @ functional.normalize(y, dim=1).T).mean(), set()),
        (lambda y: (z := functional.normalize(y, dim=1)).mm(z.T).logsumexp(1).mean(), {6}),
        (lambda y: (y.t() @ y).mean() + (y @ torch.ones(3, 6)).mean(), set()),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_losses_that_take_a_batch_apart_are_found(
    loss: Callable[[torch.Tensor], torch.Tensor], lengths: set[int], bias: bool
) -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3, bias=bias))
    inside = torch.stack([model[0](torch.ones(8))[:5]] * 6)
    assert set(taken_apart(loss(nn.Linear(5, 3, bias=bias)(inside)))) == lengths


def test_what_losses_are_held_to_is_found_near_where_a_backward_pass_begins() -> None:
    x, classes, values = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, 1, 0]), torch.rand(4, 3)
    loss = nn.functional.cross_entropy(x, classes) / 2 + nn.functional.mse_loss(x.sigmoid(), values)
    found = [*loss_targets(loss)]
    assert len(found) == 2
    assert any(torch.equal(target, classes) for target in found)
    assert any(torch.equal(target, values) for target in found)
    assert len([*loss_targets([loss, loss])]) == 2
    loss.backward()
    assert [*loss_targets(loss), *loss_targets(x.sum()), *loss_targets(None)] == []


def test_what_a_checkpointed_loss_is_held_to_is_not_computed_once_more() -> None:
    x, num_forwards = torch.randn(4, 3, requires_grad=True), 0

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        nonlocal num_forwards
        num_forwards += 1
        return nn.functional.cross_entropy(x, torch.tensor([0, 2, 1, 0]))

    assert [*loss_targets(checkpoint(loss_of, x, use_reentrant=False))] == []
    assert num_forwards == 1
