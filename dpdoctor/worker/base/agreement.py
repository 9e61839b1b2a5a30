"""How ranks meet at a window edge: everyone tells, rank 0 decides, everyone hears.

dpdoctor's own ranks meet over a group of their own; those that somebody else started through the store of the script's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from msgspec.structs import astuple

from dpdoctor import units
from dpdoctor.records import FULL
from dpdoctor.worker.base.director import KINDS, Segment

_PREFIX = "dpdoctor"
# How long a rank waits for the others: so many times as long as it went without them, and no less than this: one of
# them may be evaluating or saving meanwhile.
MOST_WAIT_TIMES, LEAST_WAIT_S = 3, 30.0
# Between two looks, as a share of the time waited so far, at most so long.
LOOK_SHARE, MOST_LOOK_S = 0.1, 0.02


class Agreement(Protocol):
    """What the conductor needs of the other ranks."""

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Return every rank's numbers, in the order of the ranks; all ranks pass as many."""

    def share(self, segment: Segment | None) -> Segment:
        """Return rank 0's segment on every rank."""


class Alone:
    """One process: nobody to ask."""

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Return the only rank's numbers."""
        return [numbers]

    def share(self, segment: Segment | None) -> Segment:
        """Return the segment."""
        assert segment is not None
        return segment


class Ranks:
    """All ranks over a gloo group of their own, with a timeout, apart from the script's collectives.

    `fail` is called when they do not meet: an error must not rise through the script as if it were its own.
    """

    def __init__(self, ablations: tuple[str, ...], timeout_s: float, fail: Callable[[str], NoReturn]) -> None:
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        assert isinstance(group, dist.ProcessGroup), "every rank is a member of this group"
        self._group = group
        self._world_size = dist.get_world_size()
        self._ablations = ablations
        self._timeout_s = timeout_s
        self._fail = fail

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Return every rank's numbers; blocks until all ranks are here."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(self._world_size)]
        with self._meeting():
            dist.all_gather(everyone, mine, group=self._group)
        return [tensor.tolist() for tensor in everyone]

    def share(self, segment: Segment | None) -> Segment:
        """Return rank 0's segment on every rank."""
        ablations = (FULL, *self._ablations)
        message = torch.zeros(5, dtype=torch.int64)
        if segment is not None:
            kind, ablation, *numbers = astuple(segment)
            message = torch.tensor([KINDS.index(kind), ablations.index(ablation), *numbers], dtype=torch.int64)
        with self._meeting():
            dist.broadcast(message, src=0, group=self._group)
        kind, ablation, round_, skip, num_steps = message.tolist()
        return Segment(kind=KINDS[kind], ablation=ablations[ablation], round=round_, skip=skip, num_steps=num_steps)

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            first_line = _first_line(error)
            limit = units.seconds(self._timeout_s)
            self._fail(f"the other ranks did not come to the end of this window within {limit}, or died: {first_line}")


class LostError(Exception):
    """The ranks do not meet any more; the message says why."""


class Stored:
    """All ranks of a world that dpdoctor did not start, each with a connection of its own to the store of their group.

    No group and no collective, so that the script's own keep their numbers; no wait without a bound, and one that
    leaves says so: whoever waits for it learns at once that it will not come. `store` has set, get, check and
    delete_key as torch's stores do.

    Raises LostError, from every method, where the ranks do not meet.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._clock = clock
        self._sleep = sleep
        self._number = 0
        self._met_s = clock()
        self._mine: list[str] = []

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Return every rank's numbers, in the order of the ranks."""
        self._number += 1
        self._tell(numbers)
        found = self._hear(range(self._world_size))
        self._forget()
        return found

    def share(self, segment: Segment | None) -> Segment:
        """Return rank 0's segment on every rank."""
        self._number += 1
        if segment is not None:
            self._tell(list(astuple(segment)))
        ((kind, ablation, round_, skip, num_steps),) = self._hear([0])
        return Segment(kind=kind, ablation=ablation, round=round_, skip=skip, num_steps=num_steps)

    def leave(self, num_steps: int) -> None:
        """Say that this rank will not come again, after so many steps."""
        try:
            self._store.set(f"{_PREFIX}/left/{self._rank}", str(num_steps))
        except (RuntimeError, ValueError):  # whoever hosts the store is gone, and with it everybody who could hear it
            return

    def _tell(self, values: list[Any]) -> None:
        key = self._key(self._rank)
        try:
            self._store.set(key, json.dumps(values))
        except (RuntimeError, ValueError) as error:
            raise LostError(_store_failed(error)) from error
        self._mine.append(key)

    def _forget(self) -> None:
        """Delete what all have read: whoever has come to this meeting is done with those before it."""
        try:
            while len(self._mine) > 1:
                self._store.delete_key(self._mine.pop(0))
        except (RuntimeError, ValueError) as error:
            raise LostError(_store_failed(error)) from error

    def _hear(self, ranks: Sequence[int]) -> list[Any]:
        keys = [self._key(rank) for rank in ranks]
        begin_s = self._clock()
        limit_s = max(LEAST_WAIT_S, MOST_WAIT_TIMES * (begin_s - self._met_s))
        try:
            while not self._store.check(keys):
                waited_s = self._clock() - begin_s
                self._give_up(ranks, waited_s, limit_s)
                self._sleep(min(MOST_LOOK_S, LOOK_SHARE * waited_s))
            found = [json.loads(self._store.get(key)) for key in keys]
        except (RuntimeError, ValueError) as error:
            raise LostError(_store_failed(error)) from error
        self._met_s = self._clock()
        return found

    def _give_up(self, ranks: Sequence[int], waited_s: float, limit_s: float) -> None:
        for rank in ranks:
            if not self._store.check([self._key(rank)]) and self._store.check([f"{_PREFIX}/left/{rank}"]):
                steps = units.count(int(self._store.get(f"{_PREFIX}/left/{rank}")), "step")
                # It may have told and then left, in between.
                if not self._store.check([self._key(rank)]):
                    raise LostError(f"rank {rank} left after {steps}")
        if waited_s > limit_s:
            missing = [rank for rank in ranks if not self._store.check([self._key(rank)])]
            if not missing:
                return  # they have just come, and may read what is told here already
            if self._mine:  # who comes later is to learn that this one has left
                self._store.delete_key(self._mine.pop())
            raise LostError(f"rank {missing[0]} did not come within {units.seconds(limit_s)}")

    def _key(self, rank: int) -> str:
        return f"{_PREFIX}/{self._number}/{rank}"


def gather_texts(agreement: Agreement, text: str) -> list[str]:
    """Return every rank's text, in the order of the ranks."""
    mine = text.encode()
    sizes = [numbers[0] for numbers in agreement.gather([len(mine)])]
    padded = list(mine) + [0] * (max(sizes) - len(mine))
    everyone = agreement.gather(padded) if padded else [[] for _ in sizes]
    return [bytes(numbers[:size]).decode() for numbers, size in zip(everyone, sizes, strict=True)]


def world_name(store: Any, candidate: str) -> str:
    """Return the name of this world: the candidate of whichever rank asks first; nobody waits."""
    return bytes(store.compare_set(f"{_PREFIX}/world", "", candidate)).decode()


def _store_failed(error: Exception) -> str:
    return f"the store of the script's process group failed: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
