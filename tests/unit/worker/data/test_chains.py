from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms
from torchvision.transforms import v2

from dpdoctor.worker.data import chains


class Items(Dataset[Any]):
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 4


def negate(item: Any) -> Any:
    return -item


def names(dataset: Any) -> list[list[str]]:
    return [chain.names() for chain in chains.find(dataset)]


@pytest.mark.parametrize(
    "compose",
    [
        lambda: transforms.Compose([transforms.ToTensor(), negate]),
        lambda: v2.Compose([transforms.ToTensor(), negate]),
        lambda: [transforms.ToTensor(), negate],
        lambda: (transforms.ToTensor(), negate),
        lambda: {"train": transforms.Compose([transforms.ToTensor(), negate])},
        lambda: transforms.RandomApply([transforms.ToTensor(), negate]),
    ],
)
def test_lists_of_callables_are_chains(compose: Any) -> None:
    assert names(Items(transform=compose())) == [["ToTensor", "negate"]]


@pytest.mark.parametrize(
    "within", [lambda d: Subset(d, [0]), lambda d: ConcatDataset([d]), lambda d: Items(inner=Subset(d, [0]))]
)
def test_datasets_inside_datasets_are_searched(within: Any) -> None:
    assert names(within(Items(transform=[negate], data=torch.zeros(4)))) == [["negate"]]


def test_a_chain_in_a_chain_is_found_after_it() -> None:
    inner = transforms.Compose([negate])
    assert names(Items(transform=transforms.Compose([inner, negate]))) == [["Compose", "negate"], ["negate"]]


@pytest.mark.parametrize(
    "value",
    [[], [1, 2], ["a", negate], [int, str], [negate] * 100, torch.zeros(3), nn.Sequential(nn.ReLU()), len, Items],
)
def test_what_is_no_chain(value: Any) -> None:
    assert names(Items(value=value)) == []


def test_entries_are_called_by_their_class_or_function() -> None:
    entries = [negate, functools.partial(negate), transforms.ToTensor(), torch.neg, lambda x: x, {}.get]
    assert names(Items(value=entries)) == [["negate", "negate", "ToTensor", "neg", "<lambda>", "get"]]


def test_no_code_of_the_scripts_runs() -> None:
    class Touchy:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

        @property
        def transforms(self) -> Any:
            raise AssertionError

    assert names(Items(first=Touchy(), rest=[Touchy()])) == [["Touchy"]]


def test_a_dataset_that_holds_itself_and_thousands_of_things_is_searched_in_part() -> None:
    data = Items(many={number: Items() for number in range(10_000)}, transform=[negate])
    data.itself = data  # type: ignore[attr-defined]
    node = data
    for _ in range(1000):
        node.next = Items(transform=[negate])  # type: ignore[attr-defined]
        node = node.next  # type: ignore[attr-defined]
    assert 1 < len(chains.find(data)) <= chains.MOST_OBJECTS + 1


def test_a_chain_that_changed_is_not_held_any_more() -> None:
    data = Items(transform=[negate, negate])
    (chain,) = chains.find(data)
    assert chain.held() is data.transform  # type: ignore[attr-defined]
    data.transform = [negate, len]  # type: ignore[attr-defined]
    assert chain.held() is None
    del data.transform  # type: ignore[attr-defined]
    assert chain.held() is None
