"""Copies that lie apart from what malloc gives the script."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpdoctor.worker.base import aside
from tests.builders.heap import taken

LARGE = aside.SMALL // 4


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(LARGE, dtype=torch.float32),
        torch.arange(8 * LARGE).view(4, 2, LARGE // 8, 8).to(memory_format=torch.channels_last),
        torch.arange(4 * LARGE).view(4, LARGE).t(),
        torch.arange(4 * LARGE)[::2],
        torch.ones(1, 1).expand(LARGE, 4),
        torch.arange(LARGE).to(torch.complex64).conj(),
        torch.ones(4 * LARGE, dtype=torch.bool),
        torch.ones(2 * LARGE, dtype=torch.bfloat16),
        torch.ones(3),
        torch.ones(0),
        torch.eye(200).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_a_copy_is_what_a_clone_is_and_counts_its_changes_anew(tensor: torch.Tensor) -> None:
    found, clone = aside.copy(tensor), tensor.clone()
    assert (found.dtype, found.shape, found._version) == (clone.dtype, clone.shape, 0)
    assert torch.equal(found.to_dense(), clone.to_dense().resolve_conj())
    if tensor.layout == torch.strided:
        assert found.stride() == clone.stride()
        before = clone.clone()
        found.zero_()
        assert (tensor.equal(before), found._version) == (True, 1)


class Labelled(torch.Tensor):
    """A class of its own, as torchvision's images have."""


def test_a_copy_of_a_tensor_of_another_class_keeps_it() -> None:
    found = aside.copy(torch.ones(LARGE).as_subclass(Labelled))
    assert type(found) is Labelled


def test_malloc_knows_of_no_large_copy() -> None:
    tensor = torch.ones(1 << 22)
    before = taken()
    cloned = tensor.clone()
    assert taken() - before > tensor.nbytes // 2
    between = taken()
    copied = aside.copy(tensor)
    assert taken() - between < tensor.nbytes // 2
    assert copied.equal(cloned)


def test_the_blocks_of_gradients_are_taken_by_them_or_by_as_large_ones() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with_gradients = aside.gradient_places([*module.parameters()])
    assert [of.shape for of in with_gradients] == [p.shape for p in reversed([*module.parameters()])]
    for parameter in module.parameters():
        parameter.grad = 2 * torch.ones_like(parameter, requires_grad=True)
    held = aside.gradient_places([*module.parameters()])
    gradients = [p.grad for p in reversed([*module.parameters()]) if p.grad is not None]
    assert [of.data_ptr() for of in held] == [gradient.data_ptr() for gradient in gradients]
    assert not any(of.requires_grad for of in held), "no graph is kept"


def test_nothing_is_held_of_many_gradients_or_of_those_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = nn.Parameter(torch.ones(1000))
    monkeypatch.setattr(aside, "MOST_KEPT", 3999)
    assert aside.gradient_places([parameter]) == []
    assert aside.gradient_places([nn.Parameter(torch.ones(2, device="meta"))]) == []
    monkeypatch.setattr(aside, "MOST_KEPT", 4000)
    assert len(aside.gradient_places([parameter])) == 1
