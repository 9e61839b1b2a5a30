from __future__ import annotations

import pytest
import torch

from dpdoctor.worker.base.local_copies import BY_METHOD
from dpdoctor.worker.base.structure import tensors

RANK, SIZE = 1, 3


class Group:
    """Three ranks, of which this is the second."""

    def rank(self) -> int:
        return RANK

    def size(self) -> int:
        return SIZE


def mine(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def empty(*shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan)


@pytest.mark.parametrize("method", ["allreduce", "allreduce_coalesced", "broadcast", "reduce"])
def test_a_sum_is_left_as_this_ranks_part(method: str) -> None:
    given = [mine(2), mine(3)]
    BY_METHOD[method](Group(), given)
    assert [tensor.tolist() for tensor in given] == [[1, 2], [1, 2, 3]]


def test_gathered_lists_hold_this_ranks_part_for_every_rank() -> None:
    places = [empty(2, 2) for _ in range(SIZE)]
    BY_METHOD["allgather"](Group(), [places], [mine(2, 2)])
    assert all(torch.equal(place, mine(2, 2)) for place in places)
    of_ranks = [[empty(2), empty(3)] for _ in range(SIZE)]
    BY_METHOD["allgather_coalesced"](Group(), of_ranks, [mine(2), mine(3)])
    assert all(torch.equal(place, mine(place.numel())) for place in tensors(of_ranks))


def test_parts_of_another_size_are_no_garbage() -> None:
    places = [empty(2), empty(3), empty(3)]
    BY_METHOD["allgather"](Group(), [places], [mine(3)])
    assert [place.tolist() for place in places] == [[0, 0], [1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("method", ["_allgather_base", "all_gather_single"])
@pytest.mark.parametrize("shape", [(SIZE * 4,), (SIZE, 4), (SIZE * 2, 2)])
def test_one_tensor_is_gathered_also_in_place(method: str, shape: tuple[int, ...]) -> None:
    apart = empty(*shape)
    BY_METHOD[method](Group(), apart, mine(4))
    in_place = empty(*shape)
    part = in_place.view(SIZE, -1)[RANK]
    part.copy_(mine(4))
    BY_METHOD[method](Group(), in_place, part)
    for found in (apart, in_place):
        assert found.view(SIZE, -1).tolist() == [[1, 2, 3, 4]] * SIZE


@pytest.mark.parametrize("method", ["_reduce_scatter_base", "reduce_scatter_single"])
def test_of_what_is_scattered_a_rank_takes_its_own_part(method: str) -> None:
    output = empty(2, 2)
    BY_METHOD[method](Group(), output, mine(SIZE * 2, 2))
    assert output.tolist() == [[5, 6], [7, 8]]
    listed = empty(2)
    BY_METHOD["reduce_scatter"](Group(), [listed], [[mine(2), 10 * mine(2), 100 * mine(2)]])
    assert listed.tolist() == [10, 20]


def test_several_at_once_are_as_one_after_the_other() -> None:
    gathered, scattered = [empty(SIZE * 2), empty(SIZE)], [empty(1), empty(2)]
    BY_METHOD["all_gather_single_coalesced"](Group(), gathered, [mine(2), mine(1)])
    BY_METHOD["reduce_scatter_single_coalesced"](Group(), scattered, [mine(SIZE), mine(SIZE * 2)])
    assert [found.tolist() for found in (*gathered, *scattered)] == [[1, 2] * SIZE, [1] * SIZE, [2], [3, 4]]
