from __future__ import annotations

import dataclasses
import time
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dpdoctor.loading import PAST_ITER
from dpdoctor.worker.base.agreement import Alone
from dpdoctor.worker.data.replay import (
    BEGAN,
    CHANGED,
    IN_THREADS,
    MOST_KEPT,
    MOST_VALUES,
    NO_LOADER,
    NONE_KEPT,
    NOTHING_COPIED,
    OTHER_LOADER,
    UNBATCHED,
    Kept,
    Replay,
    UnreplayableError,
    kept_bytes,
)
from dpdoctor.worker.data.workers import depths
from tests.builders.rig import Rig

FORKS = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
LOADER = frozenset({0})


class Numbers(Dataset[torch.Tensor]):
    """Gives its index, and counts how often it was asked."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return torch.tensor([index])


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(40))


class OtherRanks(Alone):
    """Another rank that throws away so many batches."""

    def __init__(self, dropped: int) -> None:
        self.dropped = dropped

    def gather(self, numbers: list[int]) -> list[list[int]]:
        return [numbers, [self.dropped]]


def take(iterator: Iterator[Any], num: int) -> list[list[int]]:
    return [next(iterator).flatten().tolist() for _ in range(num)]


def kept(replay: Replay, iterator: Iterator[Any], num: int) -> list[list[int]]:
    """Take batches that are kept."""
    replay.keep(on=True)
    taken = take(iterator, num)
    replay.keep(on=False)
    return taken


def test_kept_batches_come_again_and_again_without_the_loader(rig: Rig) -> None:
    replay, data = rig.loaders.replay, Numbers(100)
    iterator = iter(DataLoader(data, batch_size=2))
    ring = kept(replay, iterator, 3)
    assert replay.unfit(LOADER) is None
    replay.begin()
    asked = data.asked
    assert take(iterator, 7) == [*ring, *ring, ring[0]]
    assert data.asked == asked
    assert replay.end(LOADER) == (None, False)
    assert take(iterator, 1) == [[6, 7]], "the loader goes on where it was"


def test_what_is_to_be_waited_for_comes_before_each_replayed_batch(rig: Rig) -> None:
    replay, waited = rig.loaders.replay, []
    iterator = iter(DataLoader(Numbers(100), batch_size=2))
    kept(replay, iterator, 2)
    replay.begin(wait=lambda: waited.append(len(waited)))
    take(iterator, 3)
    replay.end(LOADER)
    take(iterator, 1)
    replay.begin()
    take(iterator, 1)
    replay.end(LOADER)
    assert waited == [0, 1, 2]


class Generators(Numbers):
    """Gives from its second index on what cannot be given twice."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) if not index else (number for number in [index])


def test_a_loader_is_left_alone_whose_later_batches_cannot_be_kept(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Generators(4), batch_size=1, collate_fn=lambda batch: batch[0]))
    next(iterator)
    replay.keep(on=True)
    next(iterator)
    replay.copied_to_device(torch.ones(1))
    replay.keep(on=False)
    assert "cannot be given to the script twice" in (replay.unfit(LOADER) or "")


def test_no_more_than_so_many_are_kept(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Numbers(100)))
    ring = kept(replay, iterator, MOST_KEPT + 2)[:MOST_KEPT]
    replay.begin()
    assert take(iterator, MOST_KEPT + 1) == [*ring, ring[0]]
    assert replay.num_bytes(LOADER) == MOST_KEPT * 8


@pytest.mark.parametrize("length", [10, 11])
def test_replays_count_towards_the_length_of_the_loader(rig: Rig, length: int) -> None:
    replay, loader = rig.loaders.replay, DataLoader(Numbers(length), batch_size=2)
    iterator = iter(loader)
    kept(replay, iterator, 2)
    replay.begin()
    take(iterator, 2)
    replay.end(LOADER)
    assert len(list(iterator)) == len(loader) - 4
    assert list(iterator) == [], "an iterator that is over stays so"
    assert len(list(loader)) == len(loader), "the next epoch is a whole one"


def test_an_epoch_may_end_inside_of_a_replay(rig: Rig) -> None:
    replay, loader = rig.loaders.replay, DataLoader(Numbers(6), batch_size=2)
    kept(replay, iter(loader), 2)
    replay.begin()
    assert [len(list(loader)) for _ in range(3)] == [3, 3, 3]
    assert replay.end(LOADER) == (None, False)


def test_drawn_samples_are_those_of_the_kept_batches(rig: Rig) -> None:
    replay, sizes = rig.loaders.replay, []
    rig.tally.fetched = lambda _, size, **__: sizes.append(size)  # type: ignore[method-assign]
    loader = DataLoader(Numbers(10), batch_size=4)
    iterator = iter(loader)
    kept(replay, iterator, 3)
    replay.begin()
    assert list(iterator) == []
    take(iter(loader), 3)
    assert sizes == [4, 4, 2, 4, 4, 2]


def test_a_loader_of_which_nothing_is_kept_spoils_the_window_only_if_it_trains(rig: Rig) -> None:
    replay = rig.loaders.replay
    kept(replay, iter(DataLoader(Numbers(8))), 2)
    for loaders, reason in ((LOADER, None), (frozenset({0, 1}), OTHER_LOADER)):
        replay.begin()
        take(iter(DataLoader(Numbers(9))), 2)
        assert replay.end(loaders) == (reason, False)


def test_an_evaluation_is_not_replayed(rig: Rig) -> None:
    replay, loader = rig.loaders.replay, DataLoader(Numbers(8))
    kept(replay, iter(loader), 2)
    replay.begin()
    with torch.no_grad():
        assert [batch.item() for batch in loader] == list(range(8))


def test_a_changed_batch_is_not_given_again(rig: Rig) -> None:
    replay, data = rig.loaders.replay, Numbers(100)
    iterator = iter(DataLoader(data))
    kept(replay, iterator, 2)
    replay.begin()
    next(iterator).add_(100)
    assert take(iterator, 3) == [[1], [2], [3]], "the second was not changed; then the loader is asked"
    assert replay.end(LOADER) == (CHANGED, True)


def test_a_change_of_the_last_batch_is_noticed_at_the_end(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Numbers(100)))
    kept(replay, iterator, 3)
    replay.begin()
    next(iterator).add_(100)
    assert replay.end(LOADER) == (CHANGED, True)


def test_nothing_kept_nothing_replayed(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Numbers(5)))
    replay.begin()
    assert take(iterator, 2) == [[0], [1]]
    assert replay.end(LOADER) == (NONE_KEPT, True)


def test_on_a_device_only_what_is_copied_there_can_be_replayed(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Numbers(9)))
    kept(replay, iterator, 2)
    replay.begin(torch.device("meta"))
    assert replay.end(LOADER) == (NOTHING_COPIED, True)
    replay = rig.loaders.replay = Replay()
    replay.keep(on=True)
    replay.copied_to_device(next(iterator))
    replay.keep(on=False)
    replay.begin(torch.device("meta"))
    assert next(iterator).device.type == "meta"
    assert replay.end(LOADER) == (None, False)


class Functions(Numbers):
    def __getitem__(self, index: int) -> Any:
        return lambda: index


def first(items: list[Any]) -> Any:
    return items[0]


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (lambda: DataLoader(Numbers(9), batch_size=None), UNBATCHED),
        (lambda: DataLoader(Functions(9), collate_fn=first), "a batch holds a function, which cannot be given"),
        (lambda: DataLoader(Stream(), batch_size=2), None),
    ],
)
def test_loaders_that_cannot_be_replayed(rig: Rig, loader: Callable[[], DataLoader[Any]], said: str | None) -> None:
    next(iter(loader()))
    reason = rig.loaders.replay.unfit(LOADER)
    assert (reason or "").startswith(said or "")
    assert (reason is None) == (said is None)


def test_training_without_a_loader_that_is_known(rig: Rig) -> None:
    assert rig.loaders.replay.unfit(frozenset()) == NO_LOADER
    assert rig.loaders.replay.unfit(LOADER) == PAST_ITER


def test_a_thread_that_fetches_ahead_cannot_be_replayed() -> None:
    class Iterator:
        dpdoctor_loader, dpdoctor_surplus, _auto_collation, _sampler_iter = 0, 0, True, None

    replay = Replay()
    replay.next(Iterator(), lambda _: torch.ones(1), ahead=True)
    assert replay.unfit(LOADER) == IN_THREADS


@FORKS
def test_workers_are_waited_for_and_their_queue_is_brought_back(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Numbers(100), num_workers=2, prefetch_factor=3))
    kept(replay, iterator, 2)
    while depths(iterator) != (6, 0):
        time.sleep(0.001)
    take(iterator, 4)
    replay._levels = {0: 0}  # as in a script that waits for its loader
    replay.begin()
    assert depths(iterator) == (6, 0), "nobody fetches"
    take(iterator, 10)
    assert depths(iterator) == (6, 0)
    replay.end(LOADER)
    replay.drain(OtherRanks(9))
    assert [[15]] <= take(iterator, 1) <= [[18]], "nine that another rank threw away; from a full queue twelve at most"


@FORKS
def test_all_ranks_throw_away_equally_many(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Numbers(100), num_workers=1))
    take(iterator, 1)
    replay.note_levels()
    replay.drain(OtherRanks(5))
    assert take(iterator, 1)[0][0] >= 6
    replay.drain(OtherRanks(200))
    assert len(list(iterator)) == 98, "what was taken away comes at the end: the script counts on its loader's length"


@FORKS
def test_what_is_taken_away_is_held_within_two_queues_and_the_loader_is_as_long_as_ever(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator: Any = iter(DataLoader(Numbers(100), num_workers=1, prefetch_factor=3))
    take(iterator, 1)
    replay.note_levels()
    for _ in range(5):
        replay.drain(OtherRanks(9))
    assert len(iterator.dpdoctor_held) == 6
    rest = [batch.item() for batch in iterator]
    assert len(rest) == 99
    assert rest[-45:] == [*(rest[-6:] * 8)][-45:], "the last ones come again"


def test_batches_are_not_looked_at_where_none_is_to_be_replayed(rig: Rig) -> None:
    replay = rig.loaders.replay
    replay.looks = False
    next(iter(DataLoader(Numbers(9))))
    assert not replay._looked


@FORKS
def test_what_replays_took_the_place_of_is_not_given_at_the_end(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Numbers(100), num_workers=1))
    kept(replay, iterator, 2)
    replay.note_levels()
    replay.drain(OtherRanks(5))
    replay.begin()
    take(iterator, 3)
    replay.end(LOADER)
    assert iterator.dpdoctor_surplus == len(iterator.dpdoctor_held) - 4 == -2
    assert len(list(iterator)) == 95, "a hundred with the five that were taken before"


@FORKS
def test_what_a_thread_of_the_scripts_reads_is_not_taken_away(rig: Rig) -> None:
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Numbers(20), num_workers=1))
    first = iterator.__class__.__next__
    replay.next(iterator, first, ahead=True)
    replay.drain(OtherRanks(5))
    assert iterator.dpdoctor_surplus == 0


def test_a_stream_of_known_length_ends_after_as_many_batches_as_it_says(rig: Rig) -> None:
    class Known(Stream):
        def __len__(self) -> int:
            return 40

    replay, loader = rig.loaders.replay, DataLoader(Known(), batch_size=4)
    iterator = iter(loader)
    kept(replay, iterator, 2)
    replay.begin()
    take(iterator, 3)
    replay.end(LOADER)
    assert len(list(iterator)) == len(loader) - 5


def test_a_loader_whose_batches_cannot_be_kept_takes_no_part_when_others_are_copied(rig: Rig) -> None:
    replay = rig.loaders.replay
    replay.keep(on=True)
    next(iter(DataLoader(Numbers(4), batch_size=2, collate_fn=lambda _: object())))
    replay.copied_to_device(torch.ones(1))
    assert not replay._kept


@FORKS
def test_an_epoch_that_begins_meanwhile_spoils_a_window_with_workers(rig: Rig) -> None:
    replay, loader = rig.loaders.replay, DataLoader(Numbers(100), num_workers=1)
    kept(replay, iter(loader), 2)
    replay.begin()
    iter(loader)  # at another line, but the same loader
    assert replay.end(LOADER) == (BEGAN, False)
    replay.begin()
    assert replay.end(LOADER) == (None, False), "the next one counts"


@FORKS
def test_a_worker_that_does_not_come_to_rest_spoils_the_window(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpdoctor.worker.data import replay as module

    monkeypatch.setattr(module, "QUIET_WITHIN_S", 0.0)
    replay = rig.loaders.replay
    iterator = iter(DataLoader(Slow(100), num_workers=1))
    kept(replay, iterator, 1)
    replay.begin()
    assert replay.end(LOADER) == (module.STILL_FETCHING, False)


class Slow(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.05)
        return super().__getitem__(index)


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
    assert kept_bytes({"x": torch.ones(3), "array": np.ones(2), "more": [torch.zeros(2)]}) == 12 + 16 + 8


@pytest.mark.parametrize("look", [kept_bytes, lambda batch: Kept(batch, 1)])
def test_a_batch_that_leads_to_all_of_the_data_is_not_copied(look: Any) -> None:
    batch = Plain()
    batch.dataset = list(range(MOST_VALUES + 1))  # type: ignore[attr-defined]
    with pytest.raises(UnreplayableError, match="more than 65,536 values"):
        look(batch)
