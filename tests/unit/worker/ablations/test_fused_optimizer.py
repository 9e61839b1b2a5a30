from __future__ import annotations

import contextlib
import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from dpdoctor.worker.ablations.fused_optimizer import ANOTHER, COMPILED, FUSED_ALREADY, FusedOptimizer

KINDS = {
    "AdamW": torch.optim.AdamW,
    "Adam with every moment": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": torch.optim.Adagrad,
    "by lists of tensors": lambda p: torch.optim.AdamW(p, foreach=True),
    "two groups": lambda p: torch.optim.AdamW([{"params": p[:1]}, {"params": p[1:], "lr": 0.1}]),
}


class Named(torch.optim.AdamW):
    """Of another name; takes its steps as torch's."""


class Own(torch.optim.AdamW):
    """Takes its steps by itself."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def context(*optimizers: Optimizer, share: float | None = None, are_compiled: bool = False) -> Any:
    found = SimpleNamespace(alive=lambda: list(optimizers), are_compiled=are_compiled)
    return SimpleNamespace(optimizers=found, optimizer_share=lambda: share)


def train(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()


def of_groups(optimizer: Optimizer) -> list[tuple[Any, Any]]:
    return [(group["fused"], group["foreach"]) for group in optimizer.param_groups]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_same_but_for_rounding_and_the_groups_are_as_before(kind: str, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        model = nn.Linear(3, 2).float()
        torch.set_default_dtype(torch.float32)
        alone = copy.deepcopy(model)
        optimizer, plain = (KINDS[kind](list(each.parameters())) for each in (model, alone))
        torch.set_default_dtype(dtype)  # of which counts of steps are
        ablation, before = FusedOptimizer(), of_groups(optimizer)
        for fuses in (False, True, False, True, False):
            if fuses:
                assert ablation.unfit(context(optimizer)) is None
                ablation.begin(context(optimizer))
                assert {fused for fused, _ in of_groups(optimizer)} == {True}
            for _ in range(2):
                for each, of in ((model, optimizer), (alone, plain)):
                    of.zero_grad()
                    each(torch.ones(2, 3, dtype=torch.float32)).square().sum().backward()
                    of.step()
            if fuses:
                assert ablation.end(context(optimizer)) is None
            assert of_groups(optimizer) == before
            assert [str(state.get("step")) for state in optimizer.state.values()] == [
                str(state.get("step")) for state in plain.state.values()
            ]
    finally:
        torch.set_default_dtype(torch.float32)
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_torch_runs_is_fused_for_the_window_alone() -> None:
    model = nn.Linear(3, 2)
    optimizer, ablation = torch.optim.AdamW(model.parameters()), FusedOptimizer()

    def kernels() -> set[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            train(model, optimizer)
        return {event.key for event in profile.key_averages() if "_fused_adam" in event.key}

    assert not kernels()
    ablation.begin(context(optimizer))
    assert kernels() == {"aten::_fused_adamw_"}
    ablation.end(context(optimizer))
    assert not kernels()


def test_only_torchs_own_steps_are_fused() -> None:
    named, own, other = (kind(nn.Linear(3, 2).parameters()) for kind in (Named, Own, torch.optim.RMSprop))
    ablation = FusedOptimizer()
    assert ablation.unfit(context(own, other)) == "torch has no fused form of Own and RMSprop"
    assert ablation.unfit(context(named, own)) is None
    ablation.begin(context(named, own))
    assert (named.param_groups[0]["fused"], own.param_groups[0]["fused"]) == (True, None)


def sparse() -> Optimizer:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    return torch.optim.SGD(embedding.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("optimizer", "share", "why"),
    [
        (lambda: torch.optim.AdamW(nn.Linear(3, 2).parameters(), fused=True), None, FUSED_ALREADY),
        (lambda: torch.optim.AdamW(nn.Linear(3, 2).parameters()), 0.04, "optimizers take 4.0% of a step"),
        (lambda: torch.optim.AdamW(nn.Linear(3, 2).parameters()), 0.06, None),
        (sparse, None, "SGD trains with gradients of layout torch.sparse_coo, and a fused"),
        (
            lambda: torch.optim.AdamW([nn.Parameter(torch.zeros(2, dtype=torch.cfloat))]),
            None,
            "AdamW trains parameters",
        ),
        (lambda: torch.optim.Adam(nn.Linear(3, 2).parameters(), differentiable=True), None, "Adam trains through"),
    ],
)
def test_scripts_that_gain_nothing_by_it_or_cannot_take_it(
    optimizer: Any, share: float | None, why: str | None
) -> None:
    found = FusedOptimizer().unfit(context(optimizer(), share=share))
    assert (found is None) == (why is None)
    assert (found or "").startswith(why or "")


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD", "Adagrad"])
def test_shards_are_left_alone_where_torch_has_no_fused_form_for_them(kind: str) -> None:
    model = fully_shard(nn.Linear(3, 2))
    optimizer, ablation = getattr(torch.optim, kind)(model.parameters(), lr=0.1), FusedOptimizer()
    train(model, optimizer)
    reason = ablation.unfit(context(optimizer))
    assert reason == (None if "Adam" in kind else f"torch's fused form of {kind} takes no DTensor")
    optimizer.param_groups[0]["fused"] = True
    with contextlib.nullcontext() if reason is None else pytest.raises(NotImplementedError):
        train(model, optimizer)  # as torch says itself


def test_a_compiled_function_that_takes_the_steps_stays_as_it_was_compiled() -> None:
    optimizer = torch.optim.AdamW(nn.Linear(3, 2).parameters())
    assert FusedOptimizer().unfit(context(optimizer, are_compiled=True)) == COMPILED


def test_an_optimizer_that_is_built_in_the_window_is_not_fused_so_that_it_does_not_count() -> None:
    first, second = (torch.optim.AdamW(nn.Linear(3, 2).parameters()) for _ in range(2))
    ablation = FusedOptimizer()
    ablation.begin(context(first))
    fault = ablation.end(context(first, second))
    assert fault is not None
    assert (fault.reason, fault.final) == (ANOTHER, False)
    assert (first.param_groups[0]["fused"], second.param_groups[0]["fused"]) == (None, None)
