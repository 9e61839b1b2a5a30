from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from dpdoctor.worker.data.specimen import describe

Pair = namedtuple("Pair", "first second")


def iterator(**options: Any) -> Any:
    return iter(DataLoader([0], **options))  # type: ignore[arg-type]


def made(batch: Any) -> Any:
    specimen = describe(batch, iterator())
    return specimen and specimen.make()


@pytest.mark.parametrize("batch", [3, "text", None, [1.5, (b"x", True)], {"a": [1], 2: "b"}, [], ()])
def test_what_is_not_a_tensor_is_kept(batch: Any) -> None:
    assert made(batch) == batch


def test_tensors_are_made_anew_in_shape_and_type() -> None:
    one, two = torch.ones(2, 3, dtype=torch.float16), torch.ones((), dtype=torch.int64)
    first, rest = made([one, {"x": two}])
    assert (first.shape, first.dtype, rest["x"].shape, rest["x"].dtype) == (one.shape, one.dtype, two.shape, two.dtype)
    assert not first.any()


def test_containers_like_tuples_and_dicts_become_these() -> None:
    assert made(Pair(1, 2)) == (1, 2)
    assert made(UserDict(a=1)) == {"a": 1}


@pytest.mark.parametrize("value", [object(), {1}, torch.zeros(2).to_sparse(), torch.nn.Parameter(torch.zeros(2))])
def test_other_things_are_not_described(value: Any) -> None:
    assert describe([1, value], iterator()) is None


def test_tensors_that_default_collate_makes_in_workers_are_shared() -> None:
    ours, theirs = describe(torch.zeros(2), iterator()), describe(torch.zeros(2), iterator(collate_fn=list))
    assert ours is not None
    assert theirs is not None
    assert (ours.make().is_shared(), theirs.make().is_shared()) == (True, False)
