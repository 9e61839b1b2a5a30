from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.worker import blame
from tests.builders.models import Net, X, sgd
from tests.builders.rig import Rig


def raised(act: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it raises is what is looked at
        act()
    return caught.value


def test_what_a_library_raises_beside_training_is_no_ablations_fault(tmp_path: Any) -> None:
    assert not blame.may_be_an_ablations(raised(lambda: json.loads("{")))
    assert not blame.may_be_an_ablations(raised((tmp_path / "absent").read_text))
    assert not blame.may_be_an_ablations(raised(lambda: torch.save(lambda: 0, tmp_path / "function.pt")))


def test_a_check_of_the_users_own_may_have_met_what_an_ablation_changed() -> None:
    def check() -> None:
        raise ValueError("the loss is not finite")

    assert blame.may_be_an_ablations(raised(check))


def test_what_training_raises_may_be_an_ablations_fault(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    assert len(rig.steps) == 1
    assert blame.may_be_an_ablations(raised(lambda: model(torch.ones(4, 5))))
    assert blame.may_be_an_ablations(raised(lambda: nn.functional.cross_entropy(model(X), X.long())))
    loss = model(X).mean()
    loss.backward()
    assert blame.may_be_an_ablations(raised(loss.backward))
    held.param_groups[0]["lr"] = "fast"
    model(X).mean().backward()
    assert blame.may_be_an_ablations(raised(held.step))
