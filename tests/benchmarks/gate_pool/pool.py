"""A pool of real launches on disk: JSON lines, the first of which says what was launched and where."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Literal

import msgspec
from msgspec.structs import replace

from dpdoctor.gate.model import Pair

POOL = Path(__file__).with_name("pool.jsonl")
# The other was recorded on a machine of the same name that is little more than half as fast.
POOLS = (POOL, POOL.with_name("slower_machine.jsonl"))
# By how much head is slower. Calibration's pairs say how noisy the machine is, and take part in no gate.
KINDS = {"calibration": 0.0, "same": 0.0, "slower_5": 0.05, "slower_10": 0.10}
STEP_UNIT_S = 1e-5
Side = Literal["base", "head"]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """How the launches of a pool were made.

    Attributes:
        command: of the script, without its fault.
        step_s: seconds per step of the script as it is, when the sizes were chosen.
        sizes: of the fault, by kind, in ms per image; 0: none.
    """

    created: str
    command: tuple[str, ...]
    dpdoctor: str
    cpu: str | None
    cores: int
    system: str
    python: str
    torch: str
    rounds: int
    step_s: float
    sizes: dict[str, float]


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """One launch.

    Attributes:
        session: launches of one session followed each other without a break.
        pair: counts the pairs of a kind.
        step_s: the launch's seconds per step, as a gate takes them.
        windows: of all its windows, per step, each in units of STEP_UNIT_S.
        steps: of its last steps on rank 0, in the same units.
    """

    kind: str
    session: int
    pair: int
    side: Side
    step_s: float
    windows: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def shown_s(self) -> float:
        """Return the seconds per step in all of its windows."""
        return STEP_UNIT_S * fmean(self.windows)


class PoolPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two launches next to each other, in the order in which they ran."""

    first: Launched
    second: Launched

    @property
    def base(self) -> Launched:
        """Return the launch of base."""
        return self.first if self.first.side == "base" else self.second

    @property
    def head(self) -> Launched:
        """Return the launch of head."""
        return self.second if self.first.side == "base" else self.first

    def for_gate(self) -> Pair:
        """Return the pair as the gate keeps it."""
        order: Literal["AB", "BA"] = "AB" if self.first.side == "base" else "BA"
        return Pair(
            base_s=self.base.step_s,
            head_s=self.head.step_s,
            base_shown_s=self.base.shown_s,
            head_shown_s=self.head.shown_s,
            order=order,
        )


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs that were recorded, in their order."""

    origin: Origin
    pairs: tuple[PoolPair, ...]

    def of(self, kind: str) -> list[PoolPair]:
        """Return the pairs of one kind."""
        return [pair for pair in self.pairs if pair.first.kind == kind]

    def blocks(self, kind: str, length: int) -> list[list[PoolPair]]:
        """Return every run of so many pairs of a kind that followed each other without a break."""
        pairs = self.of(kind)
        runs = (pairs[begin : begin + length] for begin in range(len(pairs) - length + 1))
        return [run for run in runs if run[0].first.session == run[-1].first.session]

    @property
    def last_session(self) -> int:
        """Return the number of the newest session; 0 where there is none."""
        return max((pair.first.session for pair in self.pairs), default=0)


def read(path: Path) -> Pool:
    """Return the pool in a file."""
    first, *lines = path.read_bytes().splitlines()
    launches = [msgspec.json.decode(line, type=Launched) for line in lines]
    together = zip(launches[::2], launches[1::2], strict=True)
    return Pool(
        origin=msgspec.json.decode(first, type=Origin),
        pairs=tuple(PoolPair(first=one, second=other) for one, other in together),
    )


def create(path: Path, origin: Origin) -> None:
    """Begin a pool; FileExistsError where there is one."""
    with path.open("xb") as file:
        file.write(msgspec.json.encode(origin) + b"\n")


def append(path: Path, pair: Iterable[Launched]) -> None:
    """Add a pair in one write."""
    with path.open("ab") as file:
        file.write(b"".join(msgspec.json.encode(launched) + b"\n" for launched in pair))


def renamed(launched: Launched, side: Side) -> Launched:
    """Return a launch as that of the other side."""
    return replace(launched, side=side)
