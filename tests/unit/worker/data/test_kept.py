from __future__ import annotations

import dataclasses
from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from dpdoctor.worker.data.kept import MOST_VALUES, Kept, UnreplayableError, num_bytes

Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    name: str


class Node:
    """One of a tree that leads back."""

    def __init__(self) -> None:
        self.children = [self]


class Unlike(list[int]):
    """A list that is made of something else."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(range(first, last))


class Plain:
    def __init__(self) -> None:
        self.x = torch.ones(2)


def test_a_batch_is_given_as_it_was_and_in_containers_of_its_own() -> None:
    batch = {"x": torch.ones(3), "more": [torch.zeros(2), ("name", 1, None)], "array": np.ones(2)}
    kept = Kept(batch, 3)
    for _ in range(3):
        given = kept.give()
        assert given["x"].tolist() == [1, 1, 1]
        assert given["more"][1] == ("name", 1, None)
        assert given["array"].tolist() == [1, 1]
        given["more"].clear()
        given["array"][:] = 7
        del given["x"]
    assert kept.is_intact
    assert kept.size == 3


def test_what_the_script_does_to_its_own_batch_does_not_reach_the_kept_one() -> None:
    x = torch.ones(2)
    kept = Kept([x], 2)
    x.zero_()
    assert kept.give()[0].tolist() == [1, 1]
    assert kept.is_intact


def test_a_changed_tensor_is_noticed() -> None:
    kept = Kept([torch.ones(2)], 2)
    kept.give()[0].mul_(2)
    assert not kept.is_intact


@pytest.mark.parametrize(
    "batch",
    [
        Pair(torch.ones(2), 1),
        UserDict(x=torch.ones(2)),
        Sample(image=torch.ones(2), name="cat"),
        torch.Size([2]),
        pack_sequence([torch.ones(2)]),
    ],
)
def test_the_type_of_a_container_is_kept(batch: Any) -> None:
    given = Kept(batch, 1).give()
    assert type(given) is type(batch)
    assert str(given) == str(batch)


def test_an_object_of_the_script_is_copied_with_its_tensors() -> None:
    kept = Kept(Plain(), 1)
    kept.give().x = None
    assert kept.give().x.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ([iter([1])], "list_iterator"),
        ({"x": lambda: 1}, "function"),
        ([np.array([object()])], "ndarray"),
        ([torch.ones(1, requires_grad=True)], "a tensor that requires a gradient"),
    ],
)
def test_what_cannot_be_given_twice_is_named(batch: Any, what: str) -> None:
    with pytest.raises(UnreplayableError, match=what):
        Kept(batch, 1)


def test_only_what_the_script_copies_to_a_device_is_put_there() -> None:
    image, label = torch.ones(2), torch.zeros(2)
    kept = Kept([image, label], 2)
    assert not kept.moves
    kept.copied_to_device(torch.ones(2))
    assert not kept.moves, "that tensor is of no batch"
    kept.copied_to_device(image)
    kept.forget_originals()
    kept.copied_to_device(label)
    there, here = kept.on(torch.device("meta")).give()
    assert (there.device.type, here.device.type) == ("meta", "cpu")


@pytest.mark.parametrize(("batch", "error"), [([Node()], "RecursionError"), ({"x": Unlike(0, 2)}, "TypeError")])
def test_what_cannot_be_copied_is_not_kept(batch: Any, error: str) -> None:
    with pytest.raises(UnreplayableError, match=f"what cannot be copied .{error}"):
        Kept(batch, 2)


def test_what_a_batch_takes_is_told_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "clone", None)
    assert num_bytes({"x": torch.ones(3), "array": np.ones(2), "more": [torch.zeros(2)]}) == 12 + 16 + 8


@pytest.mark.parametrize("look", [num_bytes, lambda batch: Kept(batch, 1)])
def test_a_batch_that_leads_to_all_of_the_data_is_not_copied(look: Any) -> None:
    batch = Plain()
    batch.dataset = list(range(MOST_VALUES + 1))  # type: ignore[attr-defined]
    with pytest.raises(UnreplayableError, match="more than 65,536 values"):
        look(batch)
