"""One part of many files, the same on every machine, so that an array of jobs can share them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from dpdoctor.errors import UsageError

_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"shard {self.index} of {self.count}")


def parse(text: str) -> Shard:
    """Return what I/N says, as in 2/8.

    Raises:
        UsageError: it is not I/N with I from 1 to N.
    """
    match = _SHARD.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard {text}: not I/N with I from 1 to N, as in 1/8 to 8/8")
    return Shard(index=int(match[1]), count=int(match[2]))


def select(sizes: Sequence[int], shard: Shard) -> list[int]:
    """Return the positions of one shard's files, in order; every file is in one shard, and shards are of like size.

    The largest file that is left goes to the shard that has least (longest-processing-time rule, Graham 1969).
    """
    held = [0] * shard.count
    chosen = []
    for position in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        lightest = held.index(min(held))
        held[lightest] += max(sizes[position], 1)  # empty files are spread, too
        if lightest == shard.index - 1:
            chosen.append(position)
    return sorted(chosen)
