from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.worker.base.mode import Passes
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing import hooks
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.wrap import passes
from tests.builders.handclock import HandClock
from tests.builders.models import Net, X

HERE = str(Path(__file__))


def watched(patches: Patches) -> Passes:
    noted = Passes()
    passes.watch(patches, noted)
    return noted


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
                passes.note_graph(noted)

        hooks.watch_backward(patches, PhaseClock(clock), lambda: None, before=before)
        Net()(x).sum().backward(retain_graph=True)
        assert not noted.with_graph
        ask(Net()(x).sum(), x)
        assert noted.with_graph.startswith(f"{HERE}:")
        patches.undo()


def repeated(*graphs: tuple[nn.Module, bool], keeps_graph: bool = True) -> Passes:
    """Return what was noted after backward passes through modules, each after a forward or not; one is wrapped."""
    noted, wrapped = Passes(), Net()
    repeats = passes.Repeats(noted)
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
    repeats = passes.Repeats(noted)
    assert not repeats.step_ended([])
    assert not noted.past_method
    assert repeats.step_ended(["Net.loss"])
    assert not repeats.step_ended(["Net.loss"]), "it is said once"
    assert "trains through Net.loss" in noted.past_call()
    assert "model.loss(...)" in noted.past_call()
    assert not passes.Repeats(Passes()).step_ended(["Net.loss"]), "nothing went past it"


def test_whether_a_backward_pass_keeps_its_graph_is_seen(patches: Patches, clock: HandClock) -> None:
    told: list[tuple[bool, bool]] = []
    hooks.watch_backward(patches, PhaseClock(clock), lambda: None, before=lambda _, *flags: told.append(flags))
    Net()(X).sum().backward(retain_graph=True)
    torch.autograd.backward(Net()(X).sum(), None, True)
    Net()(X).sum().backward()
    assert told == [(False, True), (False, True), (False, False)]


def test_tensors_without_a_graph_lead_nowhere() -> None:
    noted = Passes()
    passes.Repeats(noted).before_backward(iter([X]), Net().parameters, after_forward=False, keeps_graph=True)
    assert noted == Passes()
