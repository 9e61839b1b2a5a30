"""Launches of two sides by turns, base head head base: what drifts in time weighs on both alike.

Knows nothing of processes nor of statistics: it is given a function that launches and one that judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from dpdoctor import units
from dpdoctor.gate.model import SIDES, UNDISTURBED, Pair, Refusal, SideName

# Of the pairs that are planned at most, the share that may be replaced.
REPLACED_SHARE = 0.2


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one launch of one side gave.

    Attributes:
        seconds: per step, by mode, in the faster half of its windows.
        shown: the same in all of its windows.
        disturbed: why the launch is not to be judged by, though nothing failed; None: it is.
        refusals: why no further launch would help: a mode failed, or too few steps were taken.
        interrupted: Ctrl-C ended it.
    """

    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    shown: dict[str, float] = msgspec.field(default_factory=dict)
    disturbed: str | None = None
    refusals: tuple[Refusal, ...] = ()
    interrupted: bool = False

    @property
    def is_sound(self) -> bool:
        """Return whether the launch counts."""
        return self.disturbed is None and not self.refusals and not self.interrupted


class Decision(Protocol):
    """What the pairs so far say of a mode."""

    @property
    def final(self) -> bool:
        """Return whether no more pairs are needed."""


V = TypeVar("V", bound=Decision)
# Launches a side for the n-th time; 0 is the one that is discarded.
Launch = Callable[[SideName, int], Measured]
# From the log ratios so far, ln(head / base) by mode, and the verdicts of the call before.
Decide = Callable[[Mapping[str, Sequence[float]], Mapping[str, V]], Mapping[str, V]]


class Alternated(msgspec.Struct, Generic[V], frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        pairs: by mode, all that were begun, those that were replaced among them; the discarded one is not.
        verdicts: by mode, on the pairs that count.
        refusals: why it stopped before the verdicts were final.
        interrupted: it stopped because of Ctrl-C.
    """

    pairs: dict[str, tuple[Pair, ...]]
    verdicts: Mapping[str, V]
    refusals: tuple[Refusal, ...] = ()
    interrupted: bool = False


def alternate(
    launch: Launch, decide: Decide[V], *, modes: Sequence[str], most_pairs: int, same_code: bool = False
) -> Alternated[V]:
    """Launch pairs until every verdict is final; the first pair is discarded, disturbed ones are replaced.

    At most a fifth of `most_pairs` is replaced. Nothing is launched where `decide` needs no pair to be sure. Of sides
    with the `same_code` neither can be why launches are disturbed.

    Raises:
        ValueError: `most_pairs` count and a verdict is not final.
    """
    done: list[_Both] = []
    verdicts = decide(_log_ratios(modes, done), {})
    if _all_final(verdicts):
        return Alternated(pairs=dict.fromkeys(modes, ()), verdicts=verdicts)
    interrupted, refusals = _began(launch)
    while not (interrupted or refusals or _all_final(verdicts)):
        done.append(pair := _launch_both(launch, len(done) + 1))
        interrupted = pair.interrupted
        refusals = pair.refusals or _too_many_replaced(done, most_pairs, same_code=same_code)
        verdicts = decide(_log_ratios(modes, done), verdicts)
        if sum(one.counts for one in done) >= most_pairs and not _all_final(verdicts):
            raise ValueError(f"after {most_pairs} pairs `decide` must have come to a decision")
    pairs = {mode: tuple(one.pair(mode) for one in done) for mode in modes}
    return Alternated(pairs=pairs, verdicts=verdicts, refusals=refusals, interrupted=interrupted)


def _began(launch: Launch) -> tuple[bool, tuple[Refusal, ...]]:
    """Launch the pair that is discarded: it fills caches of both sides and shows what cannot work."""
    first = _launch_both(launch, 0)
    return first.interrupted, first.refusals


def most_launches(most_pairs: int) -> int:
    """Return how often a side is launched at most for so many pairs, those that are replaced among them."""
    return most_pairs + int(REPLACED_SHARE * most_pairs) + 1


def order(number: int) -> Literal["AB", "BA"]:
    """Return which side of the n-th pair is launched first; with the discarded pair 0: BA AB BA AB."""
    return "AB" if number % 2 else "BA"


class _Both(msgspec.Struct, frozen=True, kw_only=True):
    """One pair as it was launched; a side is missing where its partner ended the pair."""

    order: Literal["AB", "BA"]
    sides: dict[SideName, Measured]

    @property
    def counts(self) -> bool:
        return len(self.sides) == len(SIDES) and all(side.is_sound for side in self.sides.values())

    @property
    def interrupted(self) -> bool:
        return any(side.interrupted for side in self.sides.values())

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(refusal for side in self.sides.values() for refusal in side.refusals)

    @property
    def replaced(self) -> str | None:
        """Return why the pair does not count."""
        if self.counts:
            return None
        if self.interrupted:
            return "interrupted"
        unsound = {name: side for name, side in self.sides.items() if not side.is_sound}
        return "; ".join(f"{name}: {side.disturbed or 'not to be compared'}" for name, side in unsound.items())

    def pair(self, mode: str) -> Pair:
        base, head = (self.sides.get(name, Measured()) for name in SIDES)
        return Pair(
            base_s=base.seconds.get(mode),
            head_s=head.seconds.get(mode),
            base_shown_s=base.shown.get(mode),
            head_shown_s=head.shown.get(mode),
            order=self.order,
            replaced=self.replaced,
        )

    def log_ratio(self, mode: str) -> float:
        return math.log(self.sides["head"].seconds[mode] / self.sides["base"].seconds[mode])


def _launch_both(launch: Launch, number: int) -> _Both:
    """Launch a pair; its second half only where the first counts, or none does: of pair 0."""
    first, second = SIDES if order(number) == "AB" else SIDES[::-1]
    sides: dict[SideName, Measured] = {first: (measured := launch(first, number))}
    if measured.is_sound or (not number and not measured.refusals and not measured.interrupted):
        sides[second] = launch(second, number)
    return _Both(order=order(number), sides=sides)


def _log_ratios(modes: Sequence[str], done: Sequence[_Both]) -> dict[str, list[float]]:
    return {mode: [pair.log_ratio(mode) for pair in done if pair.counts] for mode in modes}


def _all_final(verdicts: Mapping[str, Decision]) -> bool:
    return all(verdict.final for verdict in verdicts.values())


def _too_many_replaced(done: Sequence[_Both], most_pairs: int, *, same_code: bool) -> tuple[Refusal, ...]:
    replaced = [pair.replaced for pair in done if pair.replaced is not None]
    if len(replaced) <= REPLACED_SHARE * most_pairs:
        return ()
    reasons = "; ".join(dict.fromkeys(replaced))
    disturbed = {side: sum(_is_disturbed(pair, side) for pair in done) for side in SIDES}
    side = None if same_code else _to_blame(done)
    why = f"Each launch of {side} was disturbed, and no other: the code of {side} may be why. " if side else ""
    return (
        Refusal(
            field="disturbed launches",
            base=units.whole(disturbed["base"]),
            head=units.whole(disturbed["head"]),
            remedy=f"{units.count(len(replaced), 'pair')} of {units.whole(len(done))} had to be replaced ({reasons}). "
            f"{why}Run again {UNDISTURBED}",
        ),
    )


def _to_blame(done: Sequence[_Both]) -> SideName | None:
    """Return the side of which each launch was disturbed, where none of the other was; None: that may be chance."""
    launched = {(name, _is_disturbed(pair, name)) for pair in done for name in pair.sides}
    return next((side for side in SIDES if launched == {(name, name == side) for name in SIDES}), None)


def _is_disturbed(pair: _Both, side: SideName) -> bool:
    return side in pair.sides and pair.sides[side].disturbed is not None
