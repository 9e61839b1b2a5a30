"""The script's DataLoaders: which batches this rank takes, how long it waits for them, how many samples they hold."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dpdoctor import units
from dpdoctor.loading import HandOff, TransformTime
from dpdoctor.records import Loader
from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data import indices
from dpdoctor.worker.data.apart import ApartLoader
from dpdoctor.worker.data.companion import Companion
from dpdoctor.worker.data.inside import Inside, Log
from dpdoctor.worker.data.replay import Replay
from dpdoctor.worker.data.shard import OWN, Draws, Shard, length_of
from dpdoctor.worker.data.workers import inherits
from dpdoctor.worker.timing.phases import DATA_WAIT, ELSEWHERE, PhaseClock
from dpdoctor.worker.timing.tally import Tally

UNMET = -1
_NUMBERS = "dpdoctor_numbers"
_BUILT = "dpdoctor_built"


class Loaders:
    """Shares out every loader that is iterated with gradients enabled; evaluations under no_grad see all their data.

    `reseeds`: every rank draws the same order; else the script's own samplers draw as they do without, and nothing is
    shared out (rule `own`).

    Attributes:
        is_evaluating: tells whether the script's models are in eval mode, for a loader that was never iterated.
    """

    def __init__(self, rule: str, rank: int, world_size: int, seed: int, *, reseeds: bool = True) -> None:
        self._rule = rule
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self.reseeds = reseeds
        self._iterations = 0
        # A script may build a new DataLoader for every epoch: what looks alike at one line is one loader, unless both
        # are read at the same time, as by zip(); then the second has another place.
        self._numbers: dict[tuple[Loader, int], int] = {}
        self._read: dict[int, weakref.ref[Any]] = {}
        self._num_built: Counter[int] = Counter()
        self._num_begun: Counter[int] = Counter()
        self._prefetch = 0
        self._inside: Inside | None = None
        self.draws = Draws()
        self.is_evaluating: Callable[[], bool] = lambda: False
        self.replay = Replay()
        self.companion = Companion(self._loader, self._open_apart, self._longest_fetch_s)

    def watch(
        self,
        patches: Patches,
        phases: PhaseClock,
        tally: Tally,
        check: Callable[[], None],
        fail: Callable[[str], NoReturn],
        *,
        clock: Callable[[], int],
        log: Log,
    ) -> None:
        """Take part in every loader's length, iteration and fetch; `log` gets a record of each training batch."""
        inside = self._inside = Inside(clock, log)
        index_sampler = vars(DataLoader)["_index_sampler"].fget
        build = vars(DataLoader)["__init__"]
        begin = vars(DataLoader)["__iter__"]
        fetch = vars(_BaseDataLoaderIter)["__next__"]
        recorded = inside.recorded(fetch)

        @functools.wraps(build)  # frameworks ask for its arguments' names
        def noted_init(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            vars(loader)[_BUILT] = lines.caller()
            build(loader, *args, **kwargs)

        def shared_index_sampler(loader: DataLoader[Any]) -> Any:
            return self._share(loader, index_sampler(loader))

        def begun(loader: DataLoader[Any]) -> Any:
            if loader._iterator is not None:  # of persistent workers: torch asks for the sampler but once
                loader._iterator._index_sampler = loader._index_sampler
            return begin(loader)

        def timed_iter(loader: DataLoader[Any]) -> Any:
            depth = phases.push(DATA_WAIT)
            try:
                number = self._meet(loader, index_sampler(loader), fail)
                tally.epoch_began(number)
                iterator = inside.begin(loader, number, begun)
                iterator.dpdoctor_loader, iterator.dpdoctor_is_over = number, False
                iterator.dpdoctor_began = get_ident(), torch.is_grad_enabled()
                self._read[number] = weakref.ref(iterator)
                self.replay.began(iterator, number, _told_length(loader))
            finally:
                phases.pop(depth)
            return iterator

        def timed_next(iterator: Any) -> Any:
            check()
            depth = phases.push(DATA_WAIT)
            ahead, for_training = depth == ELSEWHERE, _is_for_training(iterator)
            try:
                # Nobody waits for what another thread than the one that trains takes.
                batch, size = self.replay.next(
                    iterator, fetch if ahead else recorded, ahead=ahead, for_training=for_training
                )
            except StopIteration:
                iterator.dpdoctor_is_over = True
                raise
            finally:
                phases.pop(depth)
            # An iterator that a subclass of DataLoader built past __iter__ was never met.
            tally.handed(
                getattr(iterator, "dpdoctor_loader", UNMET), size, batch, ahead=ahead, for_training=for_training
            )
            return batch

        patches.replace(DataLoader, "__init__", noted_init)
        patches.replace(DataLoader, "_index_sampler", property(shared_index_sampler))
        patches.replace(DataLoader, "__iter__", timed_iter)
        patches.replace(_BaseDataLoaderIter, "__next__", timed_next)
        inside.watch(patches)

    def _share(self, loader: DataLoader[Any], sampler: Any) -> Any:
        if isinstance(loader.dataset, IterableDataset):
            return sampler
        rule = "whole" if self._is_for_evaluation(loader) else self._rule_for(sampler)
        given = indices.given(loader)
        return Shard(sampler, rule, self._rank, self._world_size, seeded=self._seeded, draws=self.draws, given=given)

    def _is_for_evaluation(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader that is asked for its length, perhaps with gradients on, is one for evaluations.

        It was only ever iterated without gradients, or never yet, while the script's models are in eval mode.
        """
        if not self.reseeds or self._world_size == 1:
            return False
        rules = vars(loader).get(_NUMBERS)
        return set(rules) == {"whole"} if rules else self.is_evaluating()

    def _rule_for(self, sampler: Any) -> str:
        if not self.reseeds:
            return OWN
        if self._world_size == 1 or not torch.is_grad_enabled():
            return "whole"
        length = length_of(sampler)
        if self._rule == "per-device" and length is not None and length < self._world_size:
            return "whole"
        return self._rule

    @contextlib.contextmanager
    def _seeded(self) -> Iterator[None]:
        """Give torch, numpy and random the state that this iteration has on every rank; put theirs back after."""
        self._iterations += 1
        seed = (self._seed * 1_000_003 + self._iterations) % 2**32
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])

    def _meet(self, loader: DataLoader[Any], sampler: Any, fail: Callable[[str], NoReturn]) -> int:
        """Return the number of a loader whose iteration begins; note it at its first."""
        line = lines.caller()
        iterable = isinstance(loader.dataset, IterableDataset)
        rule = self._rule_for(sampler)
        if rule == "global" and (iterable or _draws_one_by_one(loader)):
            what = "an IterableDataset" if iterable else "what a DataLoader with batch_size=None draws one by one"
            fail(f"--batch global cannot split {what} ({line}); use --batch per-device")
        rule = "whole" if iterable and rule != OWN else rule
        record = Loader(
            line=line,
            dataset=type(loader.dataset).__name__,
            sampler=type(getattr(sampler, "sampler", sampler)).__name__,
            batch_size=loader.batch_size,
            num_workers=loader.num_workers,
            num_batches=None if iterable else length_of(sampler),
            rule=rule,
            note="; ".join(filter(None, [self._note(rule, loader, sampler, iterable=iterable), _unseen(loader)])),
            prefetch_factor=loader.prefetch_factor,
            pin_memory=loader.pin_memory,
            persistent_workers=loader.persistent_workers,
            in_order=loader.in_order,
            built=vars(loader).get(_BUILT, ""),
        )
        self._prefetch = max(self._prefetch, loader.num_workers * (loader.prefetch_factor or 0))
        # One that the script iterates at two lines is one; with another rule it gives other batches.
        known: dict[str, int] = vars(loader).setdefault(_NUMBERS, {})
        if rule not in known:
            known[rule] = self._number(record)
            self._num_built[known[rule]] += 1
        self._num_begun[known[rule]] += 1
        return known[rule]

    def _number(self, record: Loader) -> int:
        """Return the number of a loader that is new to us: that of one it takes the place of, else the next."""
        place = 0
        while self._is_read(self._numbers.get((record, place))):
            place += 1
        return self._numbers.setdefault((record, place), len(self._numbers))

    def _is_read(self, number: int | None) -> bool:
        iterator = self._read[number]() if number in self._read else None
        return iterator is not None and not iterator.dpdoctor_is_over

    def _note(self, rule: str, loader: DataLoader[Any], sampler: Any, *, iterable: bool) -> str:
        if self._world_size == 1:
            return ""
        if iterable:
            return "an IterableDataset is read whole by every rank: splitting it would make each rank pay for all items"
        if rule == "global" and loader.batch_size and loader.batch_size % self._world_size:
            parts = units.count(self._world_size, "part")
            return f"batches of {loader.batch_size} are cut into {parts} of unequal size; averaging weighs them alike"
        if rule != "whole":
            return ""
        if not torch.is_grad_enabled():
            return "iterated without gradients: an evaluation, every rank sees all of it"
        batches, ranks = units.count(length_of(sampler) or 0, "batch"), units.count(self._world_size, "rank")
        return f"{batches} cannot be shared by {ranks}: every rank takes all"

    def records(self) -> tuple[Loader, ...]:
        """Return the loaders that were iterated, in order; their places are the numbers that `Tally` knows them by."""
        return tuple(
            dataclasses.replace(record, rebuilt=self._is_rebuilt(number))
            for (record, _), number in self._numbers.items()
        )

    def _is_rebuilt(self, number: int) -> bool:
        return self._num_built[number] > 1 and 2 * self._num_built[number] > self._num_begun[number]

    def transforms(self) -> tuple[TransformTime, ...]:
        """Return what the callables in their chains of transforms took; their `loader` is a place in `records()`."""
        return self._inside.transforms() if self._inside else ()

    def _loader(self, number: int) -> DataLoader[Any] | None:
        """Return the loader of a number that was iterated last, while the script holds it."""
        return self._inside.loader(number) if self._inside else None

    def _open_apart(self, loader: ApartLoader, number: int) -> tuple[Any, Callable[[], Any]]:
        assert self._inside is not None
        return self._inside.open_apart(loader, number)

    def _longest_fetch_s(self, number: int) -> float:
        return self._inside.longest_fetch_ns[number] * 1e-9 if self._inside else 0.0

    def measure_hand_offs(self, limit_s: float = 1.0) -> None:
        """Find out what moving a batch from a worker costs, within `limit_s`.

        Of a loader without workers also whether its dataset works in one, within TRIAL_S more.
        """
        if self._inside:
            self._inside.measure_hand_offs(limit_s)

    def hand_offs(self) -> tuple[HandOff, ...]:
        """Return what was found out; empty before, and for batches that cannot be sent."""
        return self._inside.hand_offs if self._inside else ()

    def batches_per_epoch(self, number: int) -> int | None:
        """Return this rank's batches in one pass over a loader; None: no end known."""
        if number == UNMET:
            return None
        record = self.records()[number]
        if record.num_batches is None or record.rule != "per-device":
            return record.num_batches
        return record.num_batches // self._world_size

    def prefetch(self) -> int:
        """Return the most batches that a loader's workers may hold ready."""
        return self._prefetch


def _unseen(loader: DataLoader[Any]) -> str:
    if loader.num_workers == 0 or inherits(loader):
        return ""
    return "its workers are fresh interpreters, not forked: what they do is not seen from inside"


def _is_for_training(iterator: Any) -> bool:
    """Return whether a batch is fetched with gradients enabled.

    In a thread of the script's they always are: where it only fetches, the mode in which the iteration began counts.
    """
    thread, for_training = getattr(iterator, "dpdoctor_began", (None, True))
    return for_training if thread not in {None, get_ident()} else torch.is_grad_enabled()


def _draws_one_by_one(loader: DataLoader[Any]) -> bool:
    return loader.batch_sampler is None and not isinstance(loader.sampler, BatchSampler)


def _told_length(loader: DataLoader[Any]) -> int | None:
    """Return the length that the script is told of a loader that reads an IterableDataset; None: another, or unknown.

    As torch has it, but without its note that the script was told.
    """
    if not isinstance(loader.dataset, IterableDataset) or (length := length_of(loader.dataset)) is None:
        return None
    if loader.batch_size is None:
        return length
    return length // loader.batch_size if loader.drop_last else math.ceil(length / loader.batch_size)
