"""Batches on their way into the model: what loaders gave and nobody trained on yet, and which a forward pass takes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from dpdoctor.worker.base import structure

# Frameworks fetch one batch or two ahead; what is older when a step ends was passed over.
MOST_AHEAD = 2
# A batch may be an object that leads to anything, such as the whole data set: no more is looked at than this.
MOST_VALUES = 1024
# Of batches that are gone no more than so many are remembered in vain.
LEAST_GONE = 64
# Why the number of samples in rows is not known.
PARTS = (
    "no loader counts them, and several rows of what the model is called with may be one sample, as nodes of graphs, "
    "points and packed sequences are: it is given numbers that may say which belong together, or returns other rows"
)
VIEWS = (
    "no loader counts them, and rows that a model is called with resemble others of the step, each those in its place, "
    "as views of the same samples do, or these with noise added: of how many samples they are cannot be told"
)


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """What a loader gave. `storages`: where its tensors' data lies; `for_training`: fetched with gradients enabled.

    `references`: to the storages, where there are some: memory that was freed is no longer the batch's.
    `counted_in`: the last step that trained on it; None: none did.
    """

    loader: int
    size: int
    storages: set[int] = field(default_factory=set)
    for_training: bool = True
    references: dict[int, StorageReference] = field(default_factory=dict)
    counted_in: int | None = None

    def lies_at(self, storage: int) -> bool:
        """Return whether its data lies there, still."""
        reference = self.references.get(storage)
        return storage in self.storages and not (reference is not None and reference.expired())


class Look(NamedTuple):
    """What more there is to know of the tensors of a forward, where their rows are not the samples of the batches.

    `sizes`: dimensions that may be the batch's. `is_part`: one of them is not all of the data that lies there. Of such
    `across`: the second dimensions, which are the batch's where the part is one of time, and `wholes`: how many rows of
    theirs all of the data would be.
    """

    sizes: frozenset[int] = frozenset()
    is_part: bool = False
    across: frozenset[int] = frozenset()
    wholes: frozenset[int] = frozenset()


class Rows(NamedTuple):
    """Samples that a tensor holds: `number` of them along `dim`; `is_told`: by the model, not only by custom.

    `times`: how often each of them is there. `unknown`: why their number is not known, where it is 0.
    """

    number: int
    dim: int = 0
    is_told: bool = False
    times: int = 1
    unknown: str = PARTS


@dataclass(slots=True, kw_only=True, eq=False)
class Pass:
    """One training forward: on so many rows, with the batches that it took.

    Attributes:
        reached: whether a backward pass came to what it returned; None: nobody can tell.
        is_repeat: of a closure that runs again on the same samples.
        again: batches that were gone already and that it was called with; only where it took none.
        gave: loaders that had given batches in its step before it.
        fits: whether the samples of its batches are to be found in the shapes that it was called with.
        is_part: whether it was called with a part of a batch's own tensor.
        is_known: whether it took its batches by their tensors, not by numbers.
        is_of_views: whether its rows are taken for several of each sample of its batches.
        laps: steps that ended since.
        number: of backward passes that had ended before it.
        call: which model was called, and where its first tensor lies; None: any, or anywhere. `goes_on`: with what came
            out of a model before, as a recurrent one is. `changes_input`: a backward pass gives gradients to what it is
            called with, and to no parameter by that.
        samples: tells how many of them there are in those rows where no loader does; None: it cannot be told.
    """

    rows: int
    samples: Callable[[], Rows | None]
    elements: int
    batches: Sequence[Batch]
    again: Sequence[Batch]
    gave: Collection[int]
    is_repeat: bool
    fits: bool
    is_part: bool
    is_known: bool
    is_of_views: bool = False
    number: int = 0
    call: tuple[int, object] | None = None
    goes_on: bool = False
    changes_input: bool = False
    reached: bool | None = None
    laps: int = 0

    @property
    def is_of_nothing(self) -> bool:
        """Return whether it was called with rows of which no batch is known."""
        return self.rows > 0 and not self.batches and not self.again

    def followed(self) -> None:
        """It is told when a backward pass comes."""
        self.reached = False

    def reach(self, *_: object) -> None:
        """A backward pass came to what the forward returned; a hook of autograd's node."""
        self.reached = True


class Pending:
    """Batches that were fetched and not trained on yet, by loader and oldest first.

    A forward pass takes the batches whose tensors it is called with. Where the script made other tensors of them, only
    numbers can tell: the one batch that there is, those that have as many samples together as entered, the oldest that
    has as many alone, or the oldest that has more, of which the rest may follow.

    Attributes:
        num_known: batches that were taken by their tensors.
        num_taken: all that were taken.
        passed: batches by loader that the script fetched for training, but passed over.
        num_unsure: forward passes for which several batches were there and none fitted; they took all.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[Batch]] = {}
        self._holders: dict[int, Batch] = {}
        self.num_known = self.num_taken = self.num_unsure = 0
        self.passed: Counter[int] = Counter()
        # Batches that were taken or forgotten, by where they lie: a script that holds them may train on them again.
        self._gone: dict[int, Batch] = {}
        self._most_gone = LEAST_GONE
        # Rows of the batch that was taken last by its numbers, which did not enter yet.
        self._left: dict[int, int] = {}

    def add(self, batch: Batch) -> None:
        """A batch was handed to the script; memory of an older one that it lies in was free again."""
        self._queues.setdefault(batch.loader, deque()).append(batch)
        self._left.pop(batch.loader, None)
        self._holders.update(dict.fromkeys(batch.storages, batch))
        if not batch.for_training:
            self._shorten(batch.loader)

    @property
    def has_live(self) -> bool:
        """Return whether a batch is still here whose memory is still its own."""
        return _any_live(self._holders)

    @property
    def has_live_gone(self) -> bool:
        """Return whether a batch is gone from here whose memory is still its own: the script may hold it."""
        return _any_live(self._gone)

    def holds(self, storages: Iterable[int]) -> bool:
        """Return whether a batch that is still here lies at one of these."""
        return bool(_lying_at(storages, self._holders))

    @property
    def any_for_training(self) -> bool:
        """Return whether a batch is still here that was fetched for training."""
        return any(batch.for_training for queue in self._queues.values() for batch in queue)

    def gone_by(self, batch: Batch) -> None:
        """A batch was handed out, and trained on before anything else was."""
        self._left.pop(batch.loader, None)
        self.num_known += 1
        self.num_taken += 1
        for storage in batch.storages:
            self._holders.pop(storage, None)
        if any(map(batch.lies_at, batch.storages)):
            self._remember(batch, batch.storages)

    def copied(self, source: Iterable[int], target: Mapping[int, StorageReference]) -> None:
        """The script copied a tensor to a device: it may train on the copy."""
        for holders in (self._holders, self._gone):
            for batch in {holder for storage in source if (holder := holders.get(storage)) is not None}:
                batch.storages.update(target)
                batch.references.update(target)
                holders.update(dict.fromkeys(target, batch))

    def drop(self, loader: int) -> list[Batch]:
        """Nobody trains any more on what this loader gave, which is returned."""
        dropped = list(self._queues.pop(loader, ()))
        for batch in dropped:
            self._forget(batch)
        return dropped

    def clear(self) -> list[Batch]:
        """Nobody trains any more on anything that was fetched, which is returned."""
        return [batch for loader in list(self._queues) for batch in self.drop(loader)]

    def step_ended(self) -> None:
        """Keep what may have been fetched ahead, and no more."""
        for loader in self._queues:
            self._shorten(loader)

    def take(self, rows: int, storages: Iterable[int], *, is_first: bool) -> list[Batch]:
        """Return the batches of a forward pass on so many rows, which are gone from here then.

        `is_first`: since the last backward pass, or since a batch was fetched. A later one trains on the same batches,
        or on none: it takes only what it is called with. So does one that is called with a batch that is gone.
        """
        storages = set(storages)
        known = _lying_at(storages, self._holders)
        self.num_known += len(known)
        # The oldest first: none that is taken is passed over for a later one.
        taken = [batch for queue in self._queues.values() for batch in queue if batch in known]
        if not taken and is_first and not self.gone(storages):
            taken = [batch for loader in self._queues for batch in self._fitting(loader, rows)]
        for batch in taken:
            if known:
                self._pass_over(batch)
            self._queues[batch.loader].remove(batch)
            self._forget(batch)
        self.num_taken += len(taken)
        return taken

    def gone(self, storages: Iterable[int]) -> list[Batch]:
        """Return the batches that are gone from here and lie there, still: the script holds them."""
        return _lying_at(storages, self._gone)

    def _pass_over(self, batch: Batch) -> None:
        """Let go of what the loader gave before: a loader's batches are trained on in their order, or never."""
        queue = self._queues[batch.loader]
        while queue and queue[0] is not batch and queue[0].for_training:
            self._forget(queue.popleft())
            self.passed[batch.loader] += 1

    def _fitting(self, loader: int, rows: int) -> list[Batch]:
        """Return the batches of a loader that so many rows may have been made of; none: a part of the last one."""
        if 0 < rows <= self._left.get(loader, 0):
            self._left[loader] -= rows
            return []
        found = [batch for batch in self._queues[loader] if batch.for_training]
        if len(found) > 1 and sum(batch.size for batch in found) != rows:
            alike = [batch for batch in found if batch.size == rows]
            larger = [batch for batch in found if batch.size > rows > 0]
            self.num_unsure += not (alike or larger)
            found = alike[:1] or larger[:1] or found
        if rows:
            self._left[loader] = sum(batch.size for batch in found) - rows
        return found

    def _shorten(self, loader: int) -> None:
        queue = self._queues[loader]
        while len(queue) > MOST_AHEAD:
            batch = queue.popleft()
            self._forget(batch)
            self.passed[loader] += batch.for_training

    def _forget(self, batch: Batch) -> None:
        held = [storage for storage in batch.storages if self._holders.get(storage) is batch]
        for storage in held:
            del self._holders[storage]
        self._remember(batch, held)

    def _remember(self, batch: Batch, storages: Iterable[int]) -> None:
        """Keep what is known of a batch that is gone: the script may hold it."""
        self._gone.update(dict.fromkeys(storages, batch))
        if len(self._gone) > self._most_gone:
            self._gone = {storage: batch for storage, batch in self._gone.items() if batch.lies_at(storage)}
            self._most_gone = LEAST_GONE + 2 * len(self._gone)


def _any_live(holders: Mapping[int, Batch]) -> bool:
    return any(batch.lies_at(storage) for storage, batch in holders.items())


def _lying_at(storages: Iterable[int], holders: Mapping[int, Batch]) -> list[Batch]:
    found: list[Batch] = []
    for storage in storages:
        batch = holders.get(storage)
        if batch is not None and batch not in found and batch.lies_at(storage):
            found.append(batch)
    return found


def storages(value: Any) -> set[int]:
    """Return where the data of the tensors in nested containers and objects lies, by address; the nearest ones."""
    return {address for storage in _storages(value) if (address := storage.data_ptr())}


class StorageReference:
    """What torch's StorageWeakRef is, of a storage without a type: that one takes twice the calls, in each step."""

    __slots__ = ("_number",)
    _expired: Callable[[int], bool] = torch.UntypedStorage._expired  # type: ignore[assignment]
    _free: Callable[[int], None] = torch.UntypedStorage._free_weak_ref

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._number: int = storage._weak_ref()  # type: ignore[assignment]

    def __del__(self) -> None:
        self._free(self._number)

    def expired(self) -> bool:
        """Return whether the memory is free for others."""
        return self._expired(self._number)


def live_storages(value: Any) -> dict[int, StorageReference]:
    """Return what `storages` does, with references that tell when the memory is free for others."""
    return {address: StorageReference(storage) for storage in _storages(value) if (address := storage.data_ptr())}


def _storages(value: Any) -> list[torch.UntypedStorage]:
    found, values = [], [value]
    for nearest in values:  # it grows meanwhile
        # Nearly everything that is given is a short list, and to ask one whether it is a tensor takes long.
        is_list = type(nearest) in {list, tuple}
        if not is_list and isinstance(nearest, torch.Tensor):
            storage = _storage(nearest)
            if storage is not None:
                found.append(storage)
        elif (room := MOST_VALUES - len(values)) > 0:
            values += nearest[:room] if is_list else islice(_held(nearest), room)
    return found


def address(tensor: torch.Tensor) -> int:
    """Return where a tensor's data lies; 0: nowhere, or in several places."""
    storage = _storage(tensor)
    return 0 if storage is None else storage.data_ptr()


def identity(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what tells a tensor from others, though they lie where it was freed, and once it is changed."""
    if not (tensor.is_nested or structure.is_dense(tensor)):
        return tuple(map(identity, structure.parts(tensor)))
    storage = _storage(tensor)
    if storage is None:
        return (object(),)
    lies = () if tensor.is_nested else (tensor.storage_offset(), tensor.shape, tensor.stride())
    reference = StorageWeakRef(storage)  # compared last: it is equal to others, and refuses what is none
    return (reference.cdata, None if tensor.is_inference() else tensor._version, lies, reference)


def live_storage(tensor: torch.Tensor) -> dict[int, StorageReference]:
    """Return what `live_storages` does, of one tensor."""
    storage = _storage(tensor)
    if storage is None or not (place := storage.data_ptr()):
        return {}
    return {place: StorageReference(storage)}


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return where a tensor's data lies; None: sparse ones, and those inside of torch.func's transforms, have none."""
    try:
        return (tensor.values() if tensor.is_nested else tensor).untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _held(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (str, bytes, int, float, torch.nn.Module)):
        return ()
    if isinstance(value, (dict, Mapping)):
        return value.values()
    return getattr(value, "__dict__", {}).values()
