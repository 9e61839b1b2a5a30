"""Whether the script's models evaluate, before any of them has trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches
from tests.builders.models import Net, X, sgd
from tests.builders.rig import Recording, Rig


class Frozen(nn.Sequential):
    """Keeps its first part in eval mode, as one whose statistics must not move."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self[0].eval()
        return self


def test_a_model_is_known_by_its_optimizer(rig: Rig) -> None:
    model, other = Net(), Net()
    model.eval()
    assert not rig.wrapping.is_evaluating(), "nothing holds its parameters"
    held = sgd(model)
    assert rig.wrapping.is_evaluating()
    other.eval()
    model.train()
    assert not rig.wrapping.is_evaluating()
    assert held


def test_what_a_library_built_to_evaluate_is_about_to_train(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    with monkeypatch.context() as library:
        library.setattr(lines, "is_users", lambda _: False)
        model.eval()
    held = sgd(model)
    assert not rig.wrapping.is_evaluating()
    model.eval()
    assert rig.wrapping.is_evaluating()
    assert held


def of_a_library(source: str) -> type[nn.Module]:
    """Return the class `Of` that a library defines so."""
    names: dict[str, Any] = {"nn": nn, "Net": Net}
    exec(compile(source, "/opt/site-packages/library.py", "exec"), names)
    return names["Of"]


@pytest.mark.parametrize(
    "method",
    [
        "def train(self, mode=True): return super().train(mode)",
        "def train(this, mode=True): return super().train(mode)",
        "def eval(self): return self.train(False)",
    ],
)
def test_what_the_script_tells_a_class_of_a_library_is_the_scripts(rig: Rig, method: str) -> None:
    model = of_a_library(f"class Of(Net):\n    {method}")()
    held = sgd(model)
    model.eval()
    assert rig.wrapping.is_evaluating()
    assert held


def test_what_a_library_tells_its_own_class_is_not_the_scripts(rig: Rig) -> None:
    build = "def __init__(self):\n        super().__init__()\n        self.eval()"
    model = of_a_library(f"class Of(Net):\n    {build}\n    def train(self, mode=True): return super().train(mode)")()
    held = sgd(model)
    assert not model.training
    assert not rig.wrapping.is_evaluating()
    assert held


def test_all_that_is_trained_must_evaluate(rig: Rig) -> None:
    generator, discriminator = Net(), Net()
    held = [sgd(generator), sgd(discriminator)]
    generator.eval()
    assert not rig.wrapping.is_evaluating()
    discriminator.eval()
    assert rig.wrapping.is_evaluating()
    assert held


def test_a_part_that_always_evaluates_is_not_the_model(rig: Rig) -> None:
    model = Frozen(Net(), nn.Linear(1, 1))
    held = sgd(model)
    model.train()
    assert not rig.wrapping.is_evaluating()
    model.eval()
    assert rig.wrapping.is_evaluating()
    assert held


def test_what_was_wrapped_tells_from_then_on(rig: Rig) -> None:
    own, model = nn.Module.train, Net()
    optimizer = sgd(model)
    model(X).mean().backward()
    optimizer.step()
    rig.wrapping.settle()
    assert nn.Module.train is not own
    assert not rig.wrapping.is_evaluating()
    model.eval()
    assert rig.wrapping.is_evaluating()


def test_a_model_that_follows_a_trained_one_is_no_evaluation_of_that(rig: Rig) -> None:
    first, second = Net(), Net()
    optimizer = sgd(first)
    first(X).mean().backward()
    optimizer.step()
    first.eval()
    assert rig.wrapping.is_evaluating()
    optimizer = sgd(second)
    second.eval()
    assert rig.wrapping.is_evaluating(), "as where it looks at the data before it trains"
    second.train()
    assert not rig.wrapping.is_evaluating()
    rig.wrapping.settle()
    assert rig.wrapping.is_evaluating(), "what has not trained by now may never do"
    assert optimizer


def test_the_length_that_an_evaluation_before_training_asks_for_is_what_it_sees(
    patches: Patches, mode: Recording
) -> None:
    Rig(patches, mode, rule="per-device", world_size=2)
    loader, model = DataLoader(torch.zeros(16, 3), batch_size=4), Net()  # type: ignore[arg-type]
    held = sgd(model)
    assert len(loader) == 2
    model.eval()
    assert len(loader) == 4
    with torch.no_grad():
        assert len(list(loader)) == 4
    model.train()
    assert len(loader) == 4
    assert held
