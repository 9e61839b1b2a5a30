"""How ranks meet at a window edge: everyone tells, rank 0 decides, everyone hears."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn, Protocol

import torch
import torch.distributed as dist
from msgspec.structs import astuple

from dpdoctor import units
from dpdoctor.records import FULL
from dpdoctor.worker.base.director import KINDS, Segment


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
            first_line = str(error).strip().partition("\n")[0]
            limit = units.seconds(self._timeout_s)
            self._fail(f"the other ranks did not come to the end of this window within {limit}, or died: {first_line}")


def gather_texts(agreement: Agreement, text: str) -> list[str]:
    """Return every rank's text, in the order of the ranks."""
    mine = text.encode()
    sizes = [numbers[0] for numbers in agreement.gather([len(mine)])]
    padded = list(mine) + [0] * (max(sizes) - len(mine))
    everyone = agreement.gather(padded) if padded else [[] for _ in sizes]
    return [bytes(numbers[:size]).decode() for numbers, size in zip(everyone, sizes, strict=True)]
