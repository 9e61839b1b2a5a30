from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from dpdoctor.worker.data.apart import random_numbers_kept
from dpdoctor.worker.data.shard import OWN, CountedIndices, Draws, Shard, next_size

sizes = st.lists(st.integers(1, 9), max_size=20)
worlds = st.integers(1, 5)


@contextlib.contextmanager
def unseeded() -> Iterator[None]:
    yield


def batches_of(lengths: list[int]) -> list[list[int]]:
    """Return consecutive indices in batches of these lengths."""
    indices = itertools.count()
    return [list(itertools.islice(indices, length)) for length in lengths]


def shards(sampler: Any, rule: str, world_size: int) -> list[Shard]:
    return [Shard(sampler, rule, rank, world_size, seeded=unseeded, draws=Draws()) for rank in range(world_size)]


@given(sizes, worlds)
def test_per_device_deals_the_batches_out_in_turn(lengths: list[int], world_size: int) -> None:
    batches = batches_of(lengths)
    taken = [list(shard) for shard in shards(batches, "per-device", world_size)]
    rounds = len(batches) // world_size
    dealt = [batch for together in zip(*taken, strict=True) for batch in together]
    assert dealt == batches[: rounds * world_size], "all of them but the remainder, each once, equally many per rank"


@given(sizes, worlds)
def test_global_cuts_every_batch_into_parts_of_nearly_equal_size(lengths: list[int], world_size: int) -> None:
    batches = batches_of(lengths)
    taken = [list(shard) for shard in shards(batches, "global", world_size)]
    for batch, *parts in zip(batches, *taken, strict=True):
        if len(batch) < world_size:
            assert parts == [batch] * world_size
        else:
            assert [index for part in parts for index in part] == batch
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(sizes, worlds)
def test_whole_keeps_everything(lengths: list[int], world_size: int) -> None:
    batches = batches_of(lengths)
    assert [list(shard) for shard in shards(batches, "whole", world_size)] == [batches] * world_size


@given(sizes, worlds, st.sampled_from(["per-device", "global", "whole"]))
def test_the_length_is_the_number_of_batches(lengths: list[int], world_size: int, rule: str) -> None:
    for shard in shards(batches_of(lengths), rule, world_size):
        assert len(shard) == len(list(shard)) == len(list(shard)), "in every epoch"


def test_no_length_where_the_sampler_has_none() -> None:
    with pytest.raises(TypeError):
        len(Shard(iter([]), "per-device", 0, 2, seeded=unseeded, draws=Draws()))


@pytest.mark.parametrize(("rule", "drawn"), [("per-device", 2 * 3), ("global", 3), ("whole", 3)])
def test_an_endless_sampler_is_drawn_from_as_far_as_needed(rule: str, drawn: int) -> None:
    seen = []

    def endless() -> Iterator[list[int]]:
        for number in itertools.count():
            seen.append(number)
            yield [number, number]

    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            return endless()

    iterator = iter(Shard(Sampler(), rule, 0, 2, seeded=unseeded, draws=Draws()))
    assert seen == []
    for _ in range(3):
        next(iterator)
    assert len(seen) == drawn


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_batches_of_any_kind_are_cut(kind: Callable[[list[int]], Any]) -> None:
    batches = [kind([1, 2, 3, 4, 5])]
    first, second = (iter(shard) for shard in shards(batches, "global", 2))
    parts = next(first), next(second)
    assert [[int(i) for i in part] for part in parts] == [[1, 2], [3, 4, 5]]
    assert [type(part) for part in parts] == [type(batches[0])] * 2
    assert isinstance(first, CountedIndices)
    assert next_size(first) == 2


@pytest.mark.parametrize("index", [7, "7", b"77", {"file": 7, "row": 1}, torch.tensor(7), np.array(7), np.int64(7)])
def test_an_index_alone_is_not_a_batch(index: Any) -> None:
    iterator = iter(Shard([index], "global", 1, 2, seeded=unseeded, draws=Draws()))
    assert next(iterator) is index
    assert isinstance(iterator, CountedIndices)
    assert next_size(iterator) == 0


@given(sizes.filter(bool), st.integers(1, 6))
def test_sizes_follow_the_batches_however_far_they_were_fetched_ahead(lengths: list[int], ahead: int) -> None:
    iterator = CountedIndices(iter(batches_of(lengths)))
    found = []
    for _ in lengths:
        for _ in range(ahead):
            next(iterator, None)
        found.append(next_size(iterator))
    assert found == lengths
    assert next_size(iterator) == 0


class ShufflesAtOnce:
    """A batch sampler whose `__iter__` is an ordinary function: it shuffles before the first batch is asked for."""

    def __iter__(self) -> Iterator[list[int]]:
        indices = list(range(12))
        random.shuffle(indices)
        np.random.shuffle(indices)
        return iter([indices[i : i + 3] for i in range(0, 12, 3)])


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    with random_numbers_kept():
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        yield


@pytest.mark.parametrize(
    "make",
    [lambda: BatchSampler(RandomSampler(range(12)), 3, drop_last=False), ShufflesAtOnce],
    ids=["shuffled when drawn from", "shuffled when iterated"],
)
def test_ranks_agree_on_the_order_whatever_their_random_numbers(make: Callable[[], Any]) -> None:
    taken: list[list[int]] = []
    for rank in range(2):
        for draw in (torch.manual_seed, np.random.seed, random.seed):
            draw(100 + rank)
        before = torch.rand(1), np.random.random(), random.random()
        for draw in (torch.manual_seed, np.random.seed, random.seed):
            draw(100 + rank)
        taken.extend(Shard(make(), "per-device", rank, 2, seeded=seeded, draws=Draws()))
        after = torch.rand(1), np.random.random(), random.random()
        assert before == after, "the script's own random numbers go on as if nothing had been drawn"
    assert sorted(itertools.chain(*taken)) == list(range(12))


class ShufflesByTorch:
    """A batch sampler that draws from torch's own random numbers when it is iterated."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(12).reshape(4, 3).tolist())


@pytest.mark.parametrize(
    "make",
    [ShufflesByTorch, lambda: BatchSampler(RandomSampler(range(12)), 3, drop_last=False)],
    ids=["shuffled when iterated", "shuffled when drawn from"],
)
def test_a_sampler_of_its_own_draws_before_and_after_torch_as_it_does_without(make: Callable[[], Any]) -> None:
    def drawn(sampler: Any) -> tuple[list[Any], float]:
        torch.manual_seed(1)
        batches = iter(sampler)
        seed = torch.rand(()).item()  # torch takes one for the workers
        return list(batches), seed

    draws = Draws()
    assert drawn(Shard(make(), OWN, 0, 2, seeded=seeded, draws=draws)) == drawn(make())
    assert draws.num == 4


def test_a_sequential_sampler_keeps_its_order() -> None:
    sampler = BatchSampler(SequentialSampler(range(6)), 2, drop_last=False)
    assert [list(shard) for shard in shards(sampler, "per-device", 3)] == [[[0, 1]], [[2, 3]], [[4, 5]]]


def drawn(batches: list[Any], rule: str, rank: int) -> tuple[int, int]:
    draws = Draws()
    list(Shard(batches, rule, rank, 2, seeded=unseeded, draws=draws))
    return draws.num, draws.digest


@pytest.mark.parametrize("rule", ["per-device", "global", "whole"])
def test_ranks_that_share_one_sequence_drew_alike(rule: str) -> None:
    assert drawn(batches_of([3, 2, 4, 4]), rule, 0) == drawn(batches_of([3, 2, 4, 4]), rule, 1)
    assert drawn([[0, 1], [2, 3]], rule, 0) != drawn([[0, 1], [3, 2]], rule, 1)


@pytest.mark.parametrize("index", [7, "7", ["a", "b"], torch.tensor([1, 2]), []])
def test_what_is_no_list_of_whole_numbers_is_not_compared(index: Any) -> None:
    assert drawn([index], "whole", 0) == (0, 0)


@pytest.mark.parametrize("kind", [list, np.array])
def test_a_sampler_that_fills_one_batch_again_gives_each_rank_its_own(kind: Callable[[list[int]], Any]) -> None:
    class Reusing:
        def __iter__(self) -> Iterator[Any]:
            batch = kind([0, 0])
            for first in range(0, 8, 2):
                batch[:] = [first, first + 1]
                yield batch

    taken = [[list(map(int, batch)) for batch in shard] for shard in shards(Reusing(), "per-device", 2)]
    assert taken == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize(("rule", "rest"), [("per-device", [[4, 5], [8, 9]]), ("global", [[2], [4], [6], [8], [10]])])
def test_what_is_drawn_before_anything_trains_goes_to_every_rank(rule: str, rest: list[list[int]]) -> None:
    begun, rank = list[bool](), int(rule == "per-device")
    batches = [[first, first + 1] for first in range(0, 12, 2)]
    iterator = iter(Shard(batches, rule, rank, 2, seeded=unseeded, draws=Draws(), is_whole=lambda: not begun))
    assert next(iterator) == [0, 1]
    begun.append(True)
    assert list(iterator) == rest


@pytest.mark.parametrize(
    ("batch", "collates", "size"),
    [((64, 128), False, 0), ([64, 128], False, 0), ([1, 2, 3], False, 3), ((64, 128), True, 2), ((1, 2, 3), False, 0)],
)
def test_an_index_of_two_numbers_may_be_any_number_of_samples(batch: Any, collates: bool, size: int) -> None:
    iterator = iter(Shard([batch], OWN, 0, 1, seeded=unseeded, draws=Draws(), collates=collates))
    next(iterator)
    assert isinstance(iterator, CountedIndices)
    assert next_size(iterator) == size


@pytest.mark.parametrize(("rule", "sizes"), [("per-device", [4]), ("global", [2, 2, 1]), ("whole", [4, 4, 2])])
def test_two_indices_of_a_batch_sampler_are_a_batch(rule: str, sizes: list[int]) -> None:
    sampler = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)
    iterator = iter(Shard(sampler, rule, 0, 2, seeded=unseeded, draws=Draws(), collates=False))
    assert isinstance(iterator, CountedIndices)
    assert [next_size(iterator) for _ in iterator] == sizes
