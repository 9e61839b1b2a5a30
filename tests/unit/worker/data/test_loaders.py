from __future__ import annotations

import inspect
import random
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from dpdoctor.loading import IN_PROCESS
from dpdoctor.worker.base.patches import Patches
from tests.builders.handclock import HandClock
from tests.builders.rig import FailedError, Recording, Rig

FORKS = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Numbers(Dataset[int]):
    def __init__(self, length: int, clock: HandClock | None = None) -> None:
        self.length = length
        self.clock = clock

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if self.clock:
            self.clock.tick(5)
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def taken(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_alone_every_batch_is_taken(rig: Rig) -> None:
    loader = DataLoader(Numbers(10), batch_size=4)
    assert len(loader) == 3
    assert taken(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    (record,) = rig.loaders.records()
    assert (record.rule, record.note, record.num_batches) == ("whole", "", 3)


def line_of(text: str) -> str:
    """Return where the only line of this file stands that ends like this."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(text))
    return f"{__file__}:{number}"


def test_a_loader_is_known_by_where_it_is_iterated_and_where_it_was_built(rig: Rig) -> None:
    for _ in range(2):
        loader = DataLoader(Numbers(10), batch_size=4)  # built
        for _ in loader:  # iterated
            pass
    (record,) = rig.loaders.records()
    assert (record.built, record.line) == (line_of("# built"), line_of("# iterated"))


@pytest.mark.parametrize(("built", "iterated", "rebuilt"), [(3, 1, True), (1, 3, False), (2, 4, False)])
def test_it_is_seen_whether_a_loader_is_built_anew_for_most_iterations(
    rig: Rig, built: int, iterated: int, *, rebuilt: bool
) -> None:
    for _ in range(built):
        loader = DataLoader(Numbers(10), batch_size=4)
        for _ in range(iterated):
            for _ in loader:
                pass
    (record,) = rig.loaders.records()
    assert record.rebuilt is rebuilt


def test_frameworks_read_the_names_of_a_loaders_arguments(patches: Patches) -> None:
    names = [*inspect.signature(DataLoader).parameters]
    Rig(patches)
    assert [*inspect.signature(DataLoader).parameters] == names


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=FORKS)])
def test_a_rank_takes_its_batches(patches: Patches, workers: int) -> None:
    rig = Rig(patches, rule="per-device", world_size=2)
    loader = DataLoader(Numbers(18), batch_size=4, num_workers=workers)
    assert len(loader) == 2
    assert taken(loader) == [[0, 1, 2, 3], [8, 9, 10, 11]]
    (record,) = rig.loaders.records()
    assert (record.dataset, record.sampler, record.rule) == ("Numbers", "SequentialSampler", "per-device")
    assert (record.batch_size, record.num_workers, record.num_batches, record.note) == (4, workers, 5, "")
    assert rig.loaders.batches_per_epoch(0) == 2
    assert rig.loaders.prefetch() == 2 * workers


class OfIndices(DataLoader[Any]):
    """Asks its dataset for a whole batch at once, as torchtuples' DataLoaderBatch does."""

    def __iter__(self) -> Any:
        self._has_begun = True
        return super().__iter__()

    @property
    def _auto_collation(self) -> bool:
        return not hasattr(self, "_has_begun")

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler


class OfLists(OfIndices):
    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler


class AsTorchSays(DataLoader[Any]):
    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler


class Around:
    """A sampler of the script's around another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


class Wraps(AsTorchSays):
    @property
    def _index_sampler(self) -> Any:
        return Around(super()._index_sampler)


class WrapsAnothers(Wraps):
    @property
    def _index_sampler(self) -> Any:
        return Around(Wraps(self.dataset, batch_size=self.batch_size)._index_sampler)


@pytest.mark.parametrize("kind", [OfIndices, OfLists, AsTorchSays, Wraps, WrapsAnothers])
def test_a_loader_with_an_index_sampler_of_its_own_is_shared_out(patches: Patches, kind: type[DataLoader[Any]]) -> None:
    rig = Rig(patches, rule="per-device", world_size=2)
    data = TensorDataset(torch.arange(18))
    for _ in range(2):
        loader = kind(data, batch_size=4, collate_fn=lambda given: given)
        assert len(loader) == 2
        batches = [[int(item) for (item,) in given] if type(given) is list else given[0].tolist() for given in loader]
        assert batches == [[0, 1, 2, 3], [8, 9, 10, 11]]
    (record,) = rig.loaders.records()
    sampler = "Around" if issubclass(kind, Wraps) else "SequentialSampler"
    assert (record.rule, record.num_batches, record.sampler) == ("per-device", 5, sampler)
    assert rig.loaders.batches_per_epoch(0) == 2
    patches.undo()
    assert len(kind(data, batch_size=4)) == 5


def test_a_rank_takes_its_part_of_every_batch(patches: Patches) -> None:
    rig = Rig(patches, rule="global", world_size=2)
    loader = DataLoader(Numbers(10), batch_size=4)
    assert len(loader) == 3
    assert taken(loader) == [[0, 1], [4, 5], [8]]
    assert rig.loaders.batches_per_epoch(0) == 3


@pytest.mark.parametrize("rule", ["per-device", "global"])
def test_an_evaluation_sees_all_of_its_data(patches: Patches, rule: str) -> None:
    rig = Rig(patches, rule=rule, world_size=2)
    loader = DataLoader(Numbers(10), batch_size=4)
    with torch.no_grad():
        assert len(loader) == 3
        assert len(taken(loader)) == 3
        assert len(taken(DataLoader(Stream(), batch_size=4))) == 3
    for record in rig.loaders.records()[:1]:
        assert record.rule == "whole"
        assert "an evaluation" in record.note


def test_a_loader_that_was_first_looked_through_is_shared_when_it_trains(patches: Patches) -> None:
    rig = Rig(patches, rule="per-device", world_size=2)
    loader = DataLoader(Numbers(16), batch_size=4)
    with torch.no_grad():
        taken(loader)
    for _ in range(2):
        taken(loader)
    assert [(r.rule, rig.loaders.batches_per_epoch(i)) for i, r in enumerate(rig.loaders.records())] == [
        ("whole", 4),
        ("per-device", 2),
    ]


@FORKS
@pytest.mark.parametrize("evaluated_first", [True, False])
def test_persistent_workers_take_the_share_of_each_iteration(patches: Patches, evaluated_first: bool) -> None:
    Rig(patches, rule="per-device", world_size=2)
    loader = DataLoader(Numbers(16), batch_size=4, num_workers=1, persistent_workers=True)
    for is_evaluation in (evaluated_first, not evaluated_first):
        with torch.set_grad_enabled(not is_evaluation):
            assert len(taken(loader)) == (4 if is_evaluation else 2)


def test_the_length_of_a_loader_for_evaluations_is_what_they_see(patches: Patches) -> None:
    rig = Rig(patches, rule="per-device", world_size=2)
    train, val = (DataLoader(Numbers(16), batch_size=4) for _ in range(2))
    assert (len(train), len(val)) == (2, 2)  # nothing tells them apart yet
    rig.loaders.is_evaluating = lambda: True
    assert len(val) == 4  # asked after model.eval()
    with torch.no_grad():
        assert len(taken(val)) == 4
    rig.loaders.is_evaluating = lambda: False
    assert len(val) == 4
    assert len(taken(train)) == len(train) == 2


class Undone(BatchSampler):
    """Inherits a length that torch never asks for."""

    def __init__(self) -> None:
        """Leave the base class's attributes out."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])


def test_a_sampler_whose_length_cannot_be_asked_is_read_as_without_us(patches: Patches) -> None:
    Rig(patches, rule="per-device", world_size=2)
    assert taken(DataLoader(Numbers(4), batch_sampler=Undone())) == [[0, 1]]


def test_fewer_batches_than_ranks_go_to_every_rank(patches: Patches) -> None:
    rig = Rig(patches, rule="per-device", world_size=4)
    loader = DataLoader(Numbers(4), batch_size=4)
    assert taken(loader) == [[0, 1, 2, 3]]
    note = rig.loaders.records()[0].note
    assert "1 batch " in note
    assert "4 ranks" in note


def test_an_iterable_data_set_is_read_whole(patches: Patches) -> None:
    rig = Rig(patches, rule="per-device", world_size=2)
    assert len(taken(DataLoader(Stream(), batch_size=4))) == 3
    record = rig.loaders.records()[0]
    assert (record.rule, record.num_batches) == ("whole", None)
    assert "read whole by every rank" in record.note
    assert rig.loaders.batches_per_epoch(0) is None


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (lambda: DataLoader(Stream(), batch_size=4), "cannot split an IterableDataset"),
        (lambda: DataLoader(Numbers(4), batch_size=None), "cannot split what a DataLoader with batch_size=None draws"),
    ],
)
def test_what_cannot_be_split_is_refused_with_its_line(patches: Patches, loader: Any, said: str) -> None:
    Rig(patches, rule="global", world_size=2)
    with pytest.raises(FailedError, match=said) as failed:
        taken(loader())
    assert f"{__file__}:" in str(failed.value)


def test_batches_that_the_sampler_draws_whole_can_be_split(patches: Patches) -> None:
    Rig(patches, rule="global", world_size=2)
    sampler = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)

    class Rows(Numbers):
        def __getitem__(self, index: Any) -> Any:
            return index

    loader = DataLoader(Rows(10), sampler=sampler, batch_size=None, collate_fn=lambda batch: batch)
    assert list(loader) == [[0, 1], [4, 5], [8]]


def test_single_items_are_dealt_out_like_batches(patches: Patches) -> None:
    Rig(patches, rule="per-device", world_size=2)
    assert list(DataLoader(Numbers(5), batch_size=None)) == [0, 2]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=FORKS)])
def test_samples_are_counted_in_the_step_that_trains_on_them(rig: Rig, workers: int) -> None:
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        for batch in DataLoader(Numbers(10), batch_size=4, num_workers=workers):
            optimizer.zero_grad()
            module(batch.float().unsqueeze(1)).mean().backward()
            optimizer.step()
    counted = [(step.counted.samples_drawn, step.counted.epoch_edge) for step in rig.steps]
    assert counted == [(4, True), (4, False), (2, False)] * 2
    assert rig.tally.main_loader() == (0, 1)
    assert len(rig.loaders.records()) == 1, "built anew for every epoch, but the same by all that can be seen"


def test_a_loader_that_is_iterated_at_two_lines_is_one(rig: Rig) -> None:
    loader = DataLoader(Numbers(10), batch_size=4)
    list(loader)
    list(loader)
    assert len(rig.loaders.records()) == 1


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=FORKS)])
def test_loaders_that_are_alike_and_read_side_by_side_are_two(rig: Rig, workers: int) -> None:
    for _ in range(3):
        pair = [DataLoader(Numbers(10), batch_size=4, num_workers=workers) for _ in range(2)]
        assert len(list(zip(*pair, strict=True))) == 3
    assert len(rig.loaders.records()) == 2


def test_an_iterable_data_set_leaves_the_counting_to_the_forward(rig: Rig) -> None:
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in DataLoader(Stream(), batch_size=4):
        module(batch.float().unsqueeze(1)).mean().backward()
        optimizer.step()
    assert [(s.counted.samples_drawn, s.counted.samples_entered) for s in rig.steps] == [(0, 4), (0, 4), (0, 2)]


def test_time_in_the_loader_is_data_wait(rig: Rig) -> None:
    batches = iter(DataLoader(Numbers(8, rig.clock), batch_size=4))
    next(batches)
    rig.clock.tick(1)
    next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    assert rig.phases.lap().phases_ns() == (40, 0, 0, 0, 0, 1)


def test_a_thread_that_fetches_ahead_is_counted_but_not_timed(rig: Rig) -> None:
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batches: list[torch.Tensor] = []
    for _ in range(2):
        module(torch.zeros(4, 1)).mean().backward()
        optimizer.step()
        thread = threading.Thread(target=lambda: batches.extend(DataLoader(Numbers(8, rig.clock), batch_size=4)))
        thread.start()
        thread.join()
    module(torch.zeros(4, 1)).mean().backward()
    optimizer.step()
    assert len(batches) == 4
    assert [step.counted.samples_drawn for step in rig.steps] == [0, 8, 8]
    assert all("data_wait" not in step.ticks for step in rig.steps)


def test_what_a_thread_only_fetches_is_for_what_the_iteration_began_for(rig: Rig) -> None:
    class Background(DataLoader[int]):
        def __iter__(self) -> Any:
            batches: list[Any] = []
            thread = threading.Thread(target=batches.extend, args=(super().__iter__(),))
            thread.start()
            thread.join()
            return iter(batches)

    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    training, validation = (Background(Numbers(length), batch_size=4) for length in (8, 12))
    for _ in range(3):
        for batch in training:
            module(batch.float().unsqueeze(1)).mean().backward()
            optimizer.step()
        with torch.no_grad():
            for batch in validation:
                module(batch.float().unsqueeze(1))
    assert sum(step.counted.samples_drawn for step in rig.steps) == 3 * 8
    assert [record.rule for record in rig.loaders.records()] == ["whole"] * 2
    assert rig.tally.loaders() == {0}


class Repeated:
    """As many batches as are asked for, an epoch after the other."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        while True:
            yield from self.batches


class Kept(DataLoader[int]):
    """Keeps its iterator, and workers, over epochs, as Ultralytics' loaders do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator: Any = None

    def __len__(self) -> int:
        return len(self.batch_sampler.batches)

    def __iter__(self) -> Any:
        if self.iterator is None:
            self.iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.iterator)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterator_that_a_loader_keeps_over_epochs_is_seen_from_inside(rig: Rig, num_workers: int) -> None:
    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    context = "fork" if num_workers else None
    loader = Kept(Numbers(8), batch_size=4, num_workers=num_workers, multiprocessing_context=context)
    for _ in range(3):
        for batch in loader:
            module(batch.float().unsqueeze(1)).mean().backward()
            optimizer.step()
    assert [step.counted.samples_drawn for step in rig.steps] == 6 * [4]
    assert [(record.rule, record.num_workers, record.num_batches) for record in rig.loaders.records()] == [
        ("whole", num_workers, None)
    ]
    by = 0 if num_workers else IN_PROCESS
    assert [(batch.loader, batch.batch, batch.worker) for batch in rig.batches] == [(0, n, by) for n in range(6)]
    assert rig.tally.main_loader() == (0, 1.0)
    assert rig.loaders.replay.unfit(frozenset({0})) is None
    iterator = weakref.ref(loader.iterator)
    del loader
    assert iterator() is None, "it goes when the script lets go of it"


def test_an_iterator_that_no_loader_made_is_counted_all_the_same(rig: Rig) -> None:
    class Own(DataLoader[int]):
        def __iter__(self) -> Any:
            return _SingleProcessDataLoaderIter(self)

    module = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in Own(Numbers(8), batch_size=4):
        module(batch.float().unsqueeze(1)).mean().backward()
        optimizer.step()
    assert [step.counted.samples_drawn for step in rig.steps] == [4, 4]
    main = rig.tally.main_loader()
    assert main is not None
    assert rig.loaders.batches_per_epoch(main[0]) is None


def test_shuffling_is_alike_on_ranks_and_leaves_their_random_numbers_alone() -> None:
    orders = []
    for number in range(2):
        patches = Patches()
        Rig(patches, rule="per-device", world_size=1)
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(number)
        loader = DataLoader(Numbers(12), batch_size=3, shuffle=True)
        orders.append([taken(loader), taken(loader)])
        patches.undo()
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1], "another order in every epoch"


def test_every_fetch_asks_whether_the_script_must_end(rig: Rig) -> None:
    before = rig.checks
    taken(DataLoader(Numbers(8), batch_size=4))
    assert rig.checks - before == 3


def test_loaders_are_ordinary_again_after_undo(patches: Patches) -> None:
    Rig(patches, rule="per-device", world_size=2)
    loader = DataLoader(Numbers(8), batch_size=4)
    assert len(loader) == 1
    patches.undo()
    assert len(loader) == 2
    assert taken(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def trained(loader: DataLoader[Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[int]]:
    """Train on a loader; return what it gave."""
    given = []
    for batch in loader:
        given.append(batch.tolist())
        model(batch.float().unsqueeze(1)).mean().backward()
        optimizer.step()
    return given


def training(patches: Patches) -> tuple[Rig, nn.Module, torch.optim.Optimizer]:
    """Return the first of two ranks, whose loaders know of models and optimizers as in a rank."""
    rig = Rig(patches, Recording(), rule="per-device", world_size=2)
    rig.loaders.has_begun = lambda: rig.optimizers.any_seen or rig.wrapping.without_optimizer
    model = nn.Linear(1, 1)
    return rig, model, torch.optim.SGD(model.parameters(), lr=0.1)


def evaluated(model: nn.Module, loader: DataLoader[Any]) -> list[list[int]]:
    """Evaluate as many scripts do, with gradients disabled in the loop's body alone."""
    model.eval()
    given = []
    for batch in loader:
        given.append(batch.tolist())
        with torch.no_grad():
            model(batch.float().unsqueeze(1))
    model.train()
    return given


@pytest.mark.parametrize("is_first", [False, True])
def test_an_evaluation_whose_body_disables_gradients_sees_all_of_its_data(patches: Patches, is_first: bool) -> None:
    rig, model, optimizer = training(patches)
    train, validation = (DataLoader(Numbers(length), batch_size=4) for length in (16, 12))
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    if is_first:
        assert evaluated(model, validation) == whole
        assert (len(train), len(validation)) == (2, 3)
    for _ in range(2):
        assert trained(train, model, optimizer) == [[0, 1, 2, 3], [8, 9, 10, 11]]
        assert evaluated(model, validation) == whole
        assert (len(train), len(validation)) == (2, 3)
    notes = [record.note for record in rig.loaders.records() if record.rule == "whole"]
    assert len(notes) == 1
    assert "an evaluation" in notes[0]


def test_a_loader_that_is_built_anew_is_shared_though_the_models_are_still_in_eval_mode(patches: Patches) -> None:
    rig, model, optimizer = training(patches)
    for _ in range(3):
        assert trained(DataLoader(Numbers(16), batch_size=4), model, optimizer) == [[0, 1, 2, 3], [8, 9, 10, 11]]
        model.eval()
        model.register_forward_pre_hook(lambda module, _: module.train() and None)
    assert [record.rule for record in rig.loaders.records()] == ["per-device"]


def test_models_that_are_trained_in_eval_mode_do_not_evaluate(patches: Patches) -> None:
    rig, model, optimizer = training(patches)
    model.eval()
    first, second = (DataLoader(Numbers(length), batch_size=4) for length in (24, 16))
    assert trained(first, model, optimizer)[1:] == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert len(first) == 3
    assert trained(second, model, optimizer) == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert [record.rule for record in rig.loaders.records()] == ["per-device"] * 2


class Endless(BatchSampler):
    """Has no length."""

    def __init__(self) -> None:
        """Leave the base class's attributes out."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3], [4, 5], [6, 7]])

    def __len__(self) -> int:
        raise TypeError


def test_a_pass_over_the_data_before_there_is_an_optimizer_sees_all_of_it(patches: Patches) -> None:
    rig = Rig(patches, rule="per-device", world_size=2)
    rig.loaders.has_begun = lambda: rig.optimizers.any_seen
    loader = DataLoader(Numbers(8), batch_size=2)
    assert len(loader) == 2, "before it is read, it is for training"
    assert len(taken(loader)) == len(loader) == 4
    opened, endless = iter(loader), DataLoader(Numbers(8), batch_sampler=Endless())
    assert taken(endless) == [[0, 1], [4, 5]]
    assert next(opened).tolist() == [0, 1]
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    assert len(loader) == 2
    assert [batch.tolist() for batch in opened] == [[2, 3]], "an iterator that is still open is shared from then on"
    assert taken(loader) == [[0, 1], [4, 5]]
    assert [record.rule for record in rig.loaders.records()] == ["per-device"] * 2


def test_who_takes_more_batches_than_a_rank_has_is_told_their_number(patches: Patches) -> None:
    rig = Rig(patches, rule="per-device", world_size=2)

    def generator() -> Iterator[Any]:
        batches = iter(DataLoader(Numbers(20), batch_size=4))
        for _ in range(20 // 4):
            yield next(batches)

    with pytest.raises(RuntimeError) as raised:
        list(generator())
    said = rig.loaders.ran_out(raised.value)
    assert said.startswith("; the loader (")
    assert "it has 5 batches, and each of 2 ranks takes 2. Take their number from len(loader), or give --batch" in said
    assert rig.loaders.ran_out(ValueError("another")) == ""


def test_fewer_batches_than_ranks_are_read_whole_by_all(patches: Patches) -> None:
    for samples, is_whole in ((4, True), (16, False)):
        rig, model, optimizer = training(patches)
        loader = DataLoader(Numbers(samples), batch_size=4)
        trained(loader, model, optimizer)
        assert not rig.loaders.are_read_whole(), "it may have given the data once, of which the script makes batches"
        trained(loader, model, optimizer)
        assert (rig.loaders.are_read_whole(), rig.loaders.is_any_shared()) == (is_whole, not is_whole)


@pytest.mark.parametrize("by_method", [False, True])
def test_a_loader_that_is_read_in_each_step_and_feeds_no_call_is_named(patches: Patches, by_method: bool) -> None:
    rig, model, optimizer = training(patches)
    called, other = (DataLoader(TensorDataset(torch.ones(128, 1)), batch_size=4) for _ in range(2))
    for (batch,), (beside,) in zip(called, other, strict=True):
        losses = model(batch).mean(), (model.forward(beside) if by_method else model(beside)).mean()
        sum(losses).backward()
        optimizer.step()
    assert ["where a method of the model trains" in text for text in rig.loaders.remarks()] == [True] * by_method


def test_a_loader_that_seemed_to_be_for_evaluations_and_is_trained_on_is_named(patches: Patches) -> None:
    rig, model, optimizer = training(patches)
    trained(DataLoader(Numbers(16), batch_size=4), model, optimizer)
    evaluated(model, DataLoader(Numbers(12), batch_size=4))
    assert rig.loaders.trained_in_vain() is None
    model.eval()
    for batch in DataLoader(TensorDataset(torch.ones(24, 1)), batch_size=4):
        model.train()
        model(batch[0]).mean().backward()
        optimizer.step()
    assert "call model.train() before its loop begins" in (rig.loaders.trained_in_vain() or "")
