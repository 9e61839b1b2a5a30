"""The script's DataLoaders: which batches this rank takes, how long it waits for them, how many samples they hold."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from msgspec.structs import replace
from torch import is_grad_enabled
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dpdoctor import units
from dpdoctor.loading import FRESH_WORKERS, HandOff, TransformTime
from dpdoctor.records import Loader
from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data.apart import ApartLoader, given_indices, random_numbers_kept
from dpdoctor.worker.data.batch_records import Inside, Log
from dpdoctor.worker.data.companion import Companion
from dpdoctor.worker.data.replay import Fetch, Replay
from dpdoctor.worker.data.shard import OWN, Draws, Shard, length_of
from dpdoctor.worker.data.workers import inherits
from dpdoctor.worker.facts.events import Evaluations
from dpdoctor.worker.timing.phases import DATA_WAIT, ELSEWHERE, PhaseClock
from dpdoctor.worker.timing.tally import Tally

UNMET = -1
SHARED = frozenset({"per-device", "global"})
IN_EVAL_MODE = "iterated with the models in eval mode: an evaluation, every rank sees all of it"
TRAINED_ON = (
    "the loader ({}) was begun while the models were in eval mode, as for an evaluation, so that every rank takes all "
    "of it, and it is trained on: call model.train() before its loop begins"
)
UNFED = (
    "the loader ({}) gives batches in most steps, and no module is seen to be called with them for training: their "
    "samples do not count; where a method of the model trains on them, give --samples-per-step"
)
RAN_OUT = (
    "; the loader ({}) had no batch left: it has {}, and each of {} takes {}. Take their number from len(loader){}"
)
_NUMBERS = "dpdoctor_numbers"
_BUILT = "dpdoctor_built"
_RULE = "dpdoctor_rule"
_RAN_OUT = "dpdoctor_ran_out"


class Loaders:
    """Shares out every loader that is iterated with gradients enabled; evaluations under no_grad see all their data.

    `reseeds`: every rank draws the same order; else the script's own samplers draw as they do without, and nothing is
    shared out (rule `own`).

    What is drawn before anything trains goes to every rank, which may compute a mean of the data set or class weights;
    so does what is drawn while the models evaluate, from loaders that never fed training: many loops disable gradients
    in their body alone. Models that are trained in eval mode do not evaluate.

    Attributes:
        is_evaluating: tells whether the script's models are in eval mode.
        has_begun: tells whether the script has built an optimizer or run a backward pass.
        handed: is given what a loader gives for training, and whether that may be ahead of it; None: nobody is.
        draws_apart: tells whether processes of the script's own would draw other numbers by torch on each rank.
        evaluations: is told when the thread that trains asks a loader for a batch; None: nobody is.
    """

    def __init__(self, rule: str, rank: int, world_size: int, seed: int, *, reseeds: bool = True) -> None:
        self._rule = rule
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self.reseeds = reseeds
        self._iterations = 0
        self._sharing: set[type] = {ApartLoader}  # whose batches are nobody's share
        self._asking = threading.local()
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
        self.has_begun: Callable[[], bool] = lambda: True
        self.draws_apart: Callable[[], bool] = lambda: False
        self.handed: Callable[..., None] | None = None
        self._begins: Callable[[], None] | None = None
        self.evaluations: Evaluations | None = None
        self._tally = Tally()
        self._num_steps: Callable[[], int] = lambda: 0
        # Loaders that were only iterated before anything trained; and of those that were read to their end, whether it
        # was an evaluation: there was an optimizer. Without one it was a look at the data.
        self._early: set[int] = set()
        self._read_early: dict[int, bool] = {}
        # Those that were iterated with gradients on, and the models in eval mode.
        self._in_eval_mode: set[int] = set()
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
        self._tally, self._num_steps = tally, lambda: log.num_steps
        inside = self._inside = Inside(clock, log)
        tally.item_per_row = inside.item_per_row
        build, begin, make = (vars(DataLoader)[name] for name in ("__init__", "__iter__", "_get_iterator"))
        fetch = vars(_BaseDataLoaderIter)["__next__"]

        @functools.wraps(build)  # frameworks ask for its arguments' names
        def noted_init(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            vars(loader)[_BUILT] = lines.caller()
            self._share_by(patches, next(kind for kind in type(loader).__mro__ if "_index_sampler" in vars(kind)))
            build(loader, *args, **kwargs)

        def begun(loader: DataLoader[Any]) -> Any:
            if loader._iterator is not None:  # of persistent workers: torch asks for the sampler but once
                loader._iterator._index_sampler = loader._index_sampler
            with self._stream_apart(loader):
                iterator = begin(loader)
            if loader._iterator is None:
                # `for batch in DataLoader(...)` holds the iterator alone; one with persistent workers is held by its
                # loader.
                iterator.dpdoctor_made_by = loader
            return iterator

        def made(loader: DataLoader[Any]) -> Any:
            with self._stream_apart(loader):
                return make(loader)

        def timed(loader: DataLoader[Any], begins: Callable[[DataLoader[Any]], Any]) -> Any:
            if self._begins is not None:
                self._begins()
            depth = phases.push(DATA_WAIT)
            try:
                number = self._meet(loader, _unshared(loader._index_sampler), fail)
                tally.epoch_began(number)
                iterator = inside.begin(loader, number, begins)
                iterator.dpdoctor_loader, iterator.dpdoctor_is_over = number, False
                iterator.dpdoctor_began = threading.get_ident(), is_grad_enabled()
                self._read[number] = weakref.ref(iterator)
                self.replay.began(iterator, number, _told_length(loader))
            finally:
                vars(loader).pop(_RULE, None)
                phases.pop(depth)
            return iterator

        def timed_iter(loader: DataLoader[Any]) -> Any:
            return timed(loader, begun)

        def timed_make(loader: DataLoader[Any]) -> Any:
            # One that was not met has an __iter__ of its own, as Ultralytics' loaders do to keep workers over epochs.
            is_met = _RULE in vars(loader) or isinstance(loader, ApartLoader)
            return make(loader) if is_met else timed(loader, made)

        patches.replace(DataLoader, "__init__", noted_init)
        self._share_by(patches, DataLoader)
        patches.replace(DataLoader, "__iter__", timed_iter)
        patches.replace(DataLoader, "_get_iterator", timed_make)
        patches.replace(_BaseDataLoaderIter, "__next__", self._timed(fetch, inside.recorded(fetch), phases, check))
        inside.watch(patches)

    def _timed(
        self, fetch: Fetch, recorded: Fetch, phases: PhaseClock, check: Callable[[], None]
    ) -> Callable[[Any], Any]:
        """Return what stands for an iterator's own `fetch`; `recorded` does that, and leaves a record of it."""
        tally = self._tally

        def timed_next(iterator: Any) -> Any:
            if phases.lets_pass:
                return self._passed(iterator, fetch)
            check()
            depth = phases.push(DATA_WAIT)
            # One that a subclass of DataLoader built past __iter__ was never met.
            number = getattr(iterator, "dpdoctor_loader", UNMET)
            ahead, for_training = depth == ELSEWHERE, self._is_for_training(iterator, number)
            evaluations = None if ahead else self.evaluations
            if evaluations is not None:
                evaluations.fetches(id(iterator))
            try:
                # Nobody waits for what another thread than the one that trains takes.
                batch, size = self.replay.next(
                    iterator, fetch if ahead else recorded, ahead=ahead, for_training=for_training
                )
            except StopIteration as end:
                iterator.dpdoctor_is_over = True
                self._ran_out(number, end)
                if evaluations is not None:
                    evaluations.ran_out(id(iterator))
                raise
            finally:
                phases.pop(depth)
            if self.handed is not None and for_training:
                # Before its first forward it is not known which thread trains.
                self.handed(batch, ahead=ahead or phases.thread is None)
            tally.handed(number, size, batch, ahead=ahead, for_training=for_training)
            return batch

        return timed_next

    def let_pass(self, begins: Callable[[], None] | None) -> None:
        """Let batches pass unseen from now on, and call `begins` when a loader begins; None: see them again."""
        self._begins = begins
        if self._inside is not None:
            self._inside.let_pass(on=begins is not None)

    def _passed(self, iterator: Any, fetch: Fetch) -> Any:
        """Return the next batch of an iterator while they pass unseen."""
        try:
            batch, _ = self.replay.next(iterator, fetch, for_training=is_grad_enabled())
        except StopIteration as end:
            iterator.dpdoctor_is_over = True
            self._ran_out(getattr(iterator, "dpdoctor_loader", UNMET), end)
            raise
        return batch

    def _share_by(self, patches: Patches, kind: type) -> None:
        """Share out what a class's own `_index_sampler` gives: a subclass's passes DataLoader's by.

        It may ask the class that it comes from, and put a sampler around what that gives: only the outermost is shared.
        """
        own = vars(kind)["_index_sampler"]

        def shared(loader: DataLoader[Any]) -> Any:
            if getattr(self._asking, "is_on", False):
                return own.__get__(loader, type(loader))
            self._asking.is_on = True
            try:
                sampler = own.__get__(loader, type(loader))
            finally:
                self._asking.is_on = False
            return self._share(loader, sampler)

        if kind not in self._sharing:
            self._sharing.add(kind)
            patches.replace(kind, "_index_sampler", property(shared))

    def _share(self, loader: DataLoader[Any], sampler: Any) -> Any:
        # A subclass may have kept what it was given, shared out, earlier.
        if isinstance(loader.dataset, IterableDataset) or isinstance(sampler, Shard):
            return sampler
        return Shard(
            sampler,
            vars(loader).get(_RULE) or ("whole" if self._is_for_evaluation(loader) else self._rule_for(sampler)),
            self._rank,
            self._world_size,
            seeded=self._seeded,
            draws=None if self.reseeds and self._world_size == 1 else self.draws,  # no rank draws beside this one
            given=given_indices(loader),
            is_whole=functools.partial(self._is_early, sampler),
            collates=loader._auto_collation,
        )

    def _is_early(self, sampler: Any) -> bool:
        """Return whether nothing trains yet: there is no optimizer, or the models evaluate before their first step.

        Samplers without an end are none for a look at the data.
        """
        if self.has_begun() and (self._num_steps() or not self._are_evaluating()):
            return False
        return self._world_size > 1 and length_of(sampler) is not None

    def _are_evaluating(self) -> bool:
        return self.is_evaluating() and not self._tally.trains_in_eval_mode

    def _is_for_evaluation(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader that is asked for its length, perhaps with gradients on, is one for evaluations.

        It was only ever iterated without gradients, or never yet, while the script's models are in eval mode. Or it was
        read to its end before anything trained: what was computed is divided by its length.
        """
        if not self.reseeds or self._world_size == 1:
            return False
        known: dict[str, int] = vars(loader).get(_NUMBERS, {})
        shared = known.get(self._rule, UNMET)
        rules = set(known) - ({self._rule} if shared in self._early else set())
        if rules:
            return rules == {"whole"}
        was_evaluation = self._read_early.get(shared)
        return self._are_evaluating() or (was_evaluation is not None and (was_evaluation or not self.has_begun()))

    def _rule_for(self, sampler: Any) -> str:
        if not self.reseeds:
            return OWN
        if self._world_size == 1 or not is_grad_enabled():
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
        with random_numbers_kept():
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield

    @contextlib.contextmanager
    def _stream_apart(self, loader: DataLoader[Any]) -> Iterator[None]:
        """Have workers that read a stream begin with a seed of this rank's own, as those of the script's own would."""
        begins = loader.num_workers and loader._iterator is None and isinstance(loader.dataset, IterableDataset)
        if not (begins and self._rank and self.reseeds and loader.generator is None and self.draws_apart()):
            yield
            return
        seed = int(torch.empty((), dtype=torch.int64).random_())  # torch draws one, too
        loader.generator = torch.Generator().manual_seed(seed + self._rank)
        try:
            yield
        finally:
            loader.generator = None

    def _meet(self, loader: DataLoader[Any], sampler: Any, fail: Callable[[str], NoReturn]) -> int:
        """Return the number of a loader whose iteration begins; note it at its first."""
        line = lines.caller()
        iterable = isinstance(loader.dataset, IterableDataset)
        rule = self._rule_for(sampler)
        if rule == "global" and (iterable or _draws_one_by_one(loader)):
            what = "an IterableDataset" if iterable else "what a DataLoader with batch_size=None draws one by one"
            fail(f"--batch global cannot split {what} ({line}); use --batch per-device")
        rule = "whole" if iterable and rule != OWN else rule
        record = self._record(loader, sampler, rule, line)
        evaluates = rule == self._rule and self._evaluates(loader, record)
        if evaluates:
            rule = "whole"
            record = replace(record, rule=rule, note=IN_EVAL_MODE)
        vars(loader)[_RULE] = rule
        self._prefetch = max(self._prefetch, loader.num_workers * (loader.prefetch_factor or 0))
        # One that the script iterates at two lines is one; with another rule it gives other batches.
        known: dict[str, int] = vars(loader).setdefault(_NUMBERS, {})
        if rule not in known:
            known[rule] = self._number(record)
            self._num_built[known[rule]] += 1
        self._num_begun[known[rule]] += 1
        if rule == self._rule and self._is_early(sampler):
            self._early.add(known[rule])
        else:
            self._early.discard(known[rule])
            self._read_early.pop(known[rule], None)
        if evaluates:
            self._in_eval_mode.add(known[rule])
        return known[rule]

    def _record(self, loader: DataLoader[Any], sampler: Any, rule: str, line: str) -> Loader:
        iterable = isinstance(loader.dataset, IterableDataset)
        return Loader(
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

    def _evaluates(self, loader: DataLoader[Any], record: Loader) -> bool:
        """Return whether the models evaluate on what a loader gives: they are in eval mode, and it never fed training.

        One that a script builds anew for every epoch is known by its record.
        """
        if self._world_size == 1 or not (self._num_steps() and self._are_evaluating()):
            return False
        numbers = set(vars(loader).get(_NUMBERS, {}).values())
        numbers |= {number for (alike, _), number in self._numbers.items() if alike == record}
        return not numbers & self._tally.loaders()

    def _is_for_training(self, iterator: Any, number: int) -> bool:
        """Return whether a loader's batch is fetched with gradients enabled, and not while the models evaluate.

        They always are in a thread of the script's: where it only fetches, that counts with which the iteration began.
        """
        thread, began_with = getattr(iterator, "dpdoctor_began", (None, True))
        if not (is_grad_enabled() if thread is None or thread == threading.get_ident() else began_with):
            return False
        if number in self._in_eval_mode:
            return False
        comes_first = number in self._early and self.has_begun() and not self._num_steps()
        return not (comes_first and self._are_evaluating())

    def _number(self, record: Loader) -> int:
        """Return the number of a loader that is new to us: that of one it takes the place of, else the next."""
        place = 0
        while self._is_read(self._numbers.get((record, place))):
            place += 1
        return self._numbers.setdefault((record, place), len(self._numbers))

    def _is_read(self, number: int | None) -> bool:
        iterator = self._read[number]() if number in self._read else None
        return iterator is not None and not iterator.dpdoctor_is_over

    def _ran_out(self, number: int, end: StopIteration) -> None:
        if number in self._early and not self._num_steps():
            self._read_early[number] = self.has_begun()
        setattr(end, _RAN_OUT, number)

    def ran_out(self, error: BaseException) -> str:
        """Return, as the end of a sentence, which loader had fewer batches than the script took; or nothing.

        None was asked for more where the script raises something else. A generator raises RuntimeError in its place.
        """
        records = self.records()
        for raised in (error, error.__cause__):
            number = getattr(raised, _RAN_OUT, UNMET)
            if number != UNMET and records[number].rule == "per-device" and records[number].num_batches:
                record, taken = records[number], self.batches_per_epoch(number) or 0
                batches, ranks = units.count(record.num_batches or 0, "batch"), units.count(self._world_size, "rank")
                way_out = ", or give --batch global" if record.batch_size else ""
                return RAN_OUT.format(record.line, batches, ranks, taken, way_out)
        return ""

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
        if not is_grad_enabled():
            return "iterated without gradients: an evaluation, every rank sees all of it"
        batches, ranks = units.count(length_of(sampler) or 0, "batch"), units.count(self._world_size, "rank")
        return f"{batches} cannot be shared by {ranks}: every rank takes all"

    def records(self) -> tuple[Loader, ...]:
        """Return the loaders that were iterated, in order; their places are the numbers that `Tally` knows them by."""
        return tuple(replace(record, rebuilt=self._is_rebuilt(number)) for (record, _), number in self._numbers.items())

    def trained_in_vain(self) -> str | None:
        """Return which loader is trained on that seemed to be one for evaluations; None: there is none."""
        taken = sorted(self._in_eval_mode & self._tally.loaders())
        return TRAINED_ON.format(self.records()[taken[0]].line) if taken else None

    def remarks(self) -> tuple[str, ...]:
        """Return which loaders are read all the time whose samples do not count, while others' do."""
        unfed = self._tally.unfed() if self._tally.loaders_count else ()
        found = [self.records()[number] for number in unfed if number != UNMET]
        return tuple(UNFED.format(loader.built or loader.line) for loader in found)

    def is_any_shared(self) -> bool:
        """Return whether ranks share out a loader that fed training."""
        records = self.records()
        return any(records[number].rule in SHARED for number in self._tally.loaders() if number != UNMET)

    def are_read_whole(self) -> bool:
        """Return whether every rank takes all batches of all loaders that feed training, too few to share."""
        records, fed = self.records(), self._tally.feeding()
        return bool(fed) and all(
            number != UNMET and records[number].rule == "whole" and records[number].num_batches for number in fed
        )

    def is_any_whole(self) -> bool:
        """Return whether every rank takes all of a loader that feeds training."""
        records = self.records()
        return any(records[number].rule == "whole" for number in self._tally.feeding() if number != UNMET)

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

    def measure_hand_offs(self, limit_s: float = 2.0) -> None:
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
    return FRESH_WORKERS


def _unshared(sampler: Any) -> Any:
    return sampler.sampler if isinstance(sampler, Shard) else sampler


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
