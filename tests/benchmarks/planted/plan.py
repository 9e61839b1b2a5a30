"""Draw the sizes of a benchmark and seal them before the first run."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .catalogue import Entry

PLAN = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run: its folder, whose name says nothing, the entry and its size; None: nothing is planted."""

    folder: str
    entry: str
    size: float | None


def draw(entries: Mapping[str, Entry], runs: int, seed: int) -> list[PlannedRun]:
    """Return `runs` runs of every entry in shuffled order, with sizes drawn evenly on a logarithmic scale."""
    dice = random.Random(seed)
    names = [name for name in entries for _ in range(runs)]
    dice.shuffle(names)
    return [_drawn(f"run-{number:03}", name, entries[name], dice) for number, name in enumerate(names)]


def _drawn(folder: str, name: str, entry: Entry, dice: random.Random) -> PlannedRun:
    return PlannedRun(folder=folder, entry=name, size=_size(entry, dice) if entry.sizes else None)


def _size(entry: Entry, dice: random.Random) -> float:
    """Return a size with three digits, so that the command line says it exactly."""
    least, most = entry.sizes or (1, 1)
    size = math.exp(dice.uniform(math.log(least), math.log(most)))
    return round(size) if entry.whole else float(f"{size:.3g}")


def seal(root: Path, runs: list[PlannedRun]) -> str:
    """Write the plan and return its SHA-256, which is printed before the first run."""
    data = msgspec.json.format(msgspec.json.encode(runs))
    (root / PLAN).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def unseal(root: Path) -> list[PlannedRun]:
    """Return the plan that `seal` wrote."""
    return msgspec.json.decode((root / PLAN).read_bytes(), type=list[PlannedRun])
