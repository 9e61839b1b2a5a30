"""The exact tier: what one step of head does against what one step of base does, without any statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dpdoctor import units
from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.base.summary import ModeSummary, why_withheld
from dpdoctor.analysis.comparison import Value
from dpdoctor.gate import counters
from dpdoctor.gate.model import Difference, ExactResult, GateResult, LeftOut, Outcome, result
from dpdoctor.gate.sides import Checkout, launch
from dpdoctor.launch.interruption import heeding
from dpdoctor.launch.progress import Progress

Change = Literal["more", "less", "other"]
Values = Mapping[str, Value]

# Fewer training passes in a step are no saving: it is other work.
_WORK = ("micro_batches",)
_WORST_FIRST = ("more", "other", "less")
_MOST_TOLD = 3
INTERRUPTED = "interrupted before all launches were done; those are kept, and nothing was judged"


def compare(
    base: ModeSummary, head: ModeSummary, again: ModeSummary | None, head_again: ModeSummary | None = None
) -> ExactResult:
    """Return which counters of one mode differ between two runs that were launched alike, from one run each.

    `again` is a second run of base: counters in which the two differ vary by nature and are left out by name. It shows
    most where it ran with another seed. `head_again` is a second run of head: what head did otherwise than base only
    once varies, too. A counter that grew is a regression; a batch of another kind, where nothing grew, cannot be
    judged; counters that fell are told and pass.
    """
    runs = {"base": base, "head": head, "base, run again": again, "head, run again": head_again}
    sides = {name: mode for name, mode in runs.items() if mode is not None}
    reason = next((f"{side}: {why}" for side, mode in sides.items() if (why := _why_not(mode))), None)
    if reason is not None:
        return ExactResult(outcome="inconclusive", reason=reason, compared=0)
    left_out = tuple(_left_out(base, counters.values(head), counters.values(again or base)))
    known = {item.name for item in left_out}
    left_out += tuple(item for item in _only_once(base, head, head_again or head) if item.name not in known)
    names = _comparable(counters.values(base), counters.values(head), {item.name for item in left_out})
    differences = _differences(base, head, names)
    outcome = _outcome(differences, len(names))
    return ExactResult(
        outcome=outcome,
        reason=_reason(base, differences, names),
        compared=len(names),
        differences=differences,
        left_out=left_out,
    )


def _why_not(mode: ModeSummary) -> str | None:
    """Return why a mode of a run is no evidence, or None."""
    withheld = why_withheld(mode)
    if withheld is not None:
        return withheld
    if mode.status == "inactive":
        return f"the mode was inactive: {mode.reason or 'no reason was recorded'}"
    return "no step was counted; the script must train longer" if mode.counters is None else None


def _left_out(base: ModeSummary, head: Values, repeated: Values) -> Iterator[LeftOut]:
    """Yield what one run alone knows, and what another run of base has otherwise."""
    known = counters.values(base)
    for name in dict.fromkeys((*known, *head, *repeated)):
        one, other = known.get(name, 0), repeated.get(name, 0)
        if (one is None) != (head.get(name, 0) is None):
            yield LeftOut(name=name, reason=f"{'base' if one is None else 'head'} does not have it")
        elif _change(name, one, other, counters.allowed(name, base)):
            found, again = (counters.value_text(name, value) for value in (one, other))
            yield LeftOut(name=name, reason=f"it varies by nature: {found} in base, {again} when base ran again")


def _only_once(base: ModeSummary, head: ModeSummary, repeated: ModeSummary) -> Iterator[LeftOut]:
    """Yield what head does otherwise than base in one of its two runs, and not so in the other."""
    before, after, again = counters.values(base), counters.values(head), counters.values(repeated)
    for name in dict.fromkeys((*before, *after, *again)):
        one, first, second = before.get(name, 0), after.get(name, 0), again.get(name, 0)
        margin = counters.allowed(name, base)
        if _change(name, one, first, margin) != _change(name, one, second, margin):
            found, repeat = (counters.value_text(name, value) for value in (first, second))
            yield LeftOut(name=name, reason=f"it varies by nature: {found} in head, {repeat} when head ran again")


def _comparable(base: Values, head: Values, left_out: set[str]) -> list[str]:
    """Return the counters that both know; what neither knows is no counter of these runs."""
    names = dict.fromkeys((*base, *head))
    return [name for name in names if name not in left_out and base.get(name, 0) is not None]


def _differences(base: ModeSummary, head: ModeSummary, names: Sequence[str]) -> tuple[Difference, ...]:
    """Return what differs, the worst first and of that what says most of the cause."""
    before, after = counters.values(base), counters.values(head)
    found = []
    for name in names:
        one, other, allowed = before.get(name, 0), after.get(name, 0), counters.allowed(name, base)
        change = _change(name, one, other, allowed)
        if change is not None:
            line = _line(name, base, head)
            found.append(Difference(name=name, base=one, head=other, change=change, allowed=allowed, line=line))
    return tuple(sorted(found, key=lambda item: (_WORST_FIRST.index(item.change), counters.place(item.name))))


def _change(name: str, base: Value, head: Value, allowed: float) -> Change | None:
    """Return how a counter stands to base's; None: as it was, within what is allowed, or unknown."""
    if None in (base, head) or base == head:
        return None
    if not isinstance(base, int) or not isinstance(head, int):
        return "other"
    if abs(head - base) <= allowed * base:
        return None
    if head > base:
        return "more"
    return "other" if name in _WORK else "less"


def _line(name: str, base: ModeSummary, head: ModeSummary) -> str | None:
    """Return a line of head's script at which more waits are called than at the same code in base.

    Lines are known by their text: their numbers move with what is written above them.
    """
    call = counters.sync_call(name)
    before, after = (_waits(mode, call) for mode in (base, head))
    syncs = head.counters.syncs if head.counters else ()
    grown = (sync for sync in syncs if sync.call == call and sync.code and after[sync.code] > before[sync.code])
    return next((sync.line for sync in grown), None)


def _waits(mode: ModeSummary, call: str) -> Counter[str]:
    """Return how often each line of the script makes this call, by the text of the line."""
    found = Counter[str]()
    for sync in mode.counters.syncs if mode.counters else ():
        if sync.call == call:
            found[sync.code] += sync.count
    return found


def _outcome(differences: Sequence[Difference], compared: int) -> Outcome:
    changes = {item.change for item in differences}
    if "more" in changes:
        return "regressed"
    return "inconclusive" if "other" in changes or not compared else "pass"


def _reason(base: ModeSummary, differences: Sequence[Difference], names: Sequence[str]) -> str:
    """Return the result in one sentence; where all is well, also what would have been seen."""
    if not names:
        return "no counter could be compared"
    compared = units.count(len(names), "counter")
    told = {change: _told([item for item in differences if item.change == change]) for change in _WORST_FIRST}
    if told["more"]:
        return f"a step does more than it did, by {compared} compared: {told['more']}"
    if told["other"]:
        return (
            f"a step does not work on what it did: {told['other']}. What it costs cannot be held against base; if the "
            "change is meant, take head for the new base"
        )
    if told["less"]:
        return f"none of {compared} of a step grew, and some fell: {told['less']}"
    return f"a step does what it did, by {compared}: {_sight(base, names)}"


def _told(differences: Sequence[Difference]) -> str:
    first = [counters.told(item) for item in differences[:_MOST_TOLD]]
    more = len(differences) - len(first)
    return ", ".join([*first, f"and {units.count(more, 'other')}"] if more > 0 else first)


def _sight(base: ModeSummary, names: Sequence[str]) -> str:
    """Return what would have been seen."""
    seen = "one more in any of them would have been seen"
    if counters.PEAK_MEMORY not in names:
        return seen
    return f"{seen}, of peak memory {units.share(counters.allowed(counters.PEAK_MEMORY, base))} more"


# A seed is 32 bits wide.
SEEDS = 2**32
Modes = Mapping[str, ModeSummary]


class CountedGate(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked; `root` is the directory of all launches."""

    root: Path
    base: Checkout
    head: Checkout


def gate(wanted: CountedGate, progress: Progress) -> GateResult:
    """Return what one step of head does against one of base; Ctrl-C, or SIGTERM, ends it without a judgement.

    Raises:
        OutputError: the directory of a launch cannot be written.
    """
    sides = wanted.base.side(), wanted.head.side()
    with heeding():
        try:
            return result("exact", *sides, exact=_judged(wanted, progress))
        except KeyboardInterrupt:
            untold = ExactResult(outcome="inconclusive", reason=INTERRUPTED, compared=0)
            return result("exact", *sides, exact=dict.fromkeys(wanted.base.modes, untold))


def _judged(wanted: CountedGate, progress: Progress) -> dict[str, ExactResult]:
    base = _counted(wanted, "base", wanted.base, progress)
    head = _counted(wanted, "head", wanted.head, progress)
    another_seed = wanted.base.changed(seed=(wanted.base.spec.seed + 1) % SEEDS)
    base_again = _counted(wanted, "base-again", another_seed, progress)
    found = {name: compare(base[name], head[name], base_again[name]) for name in base}
    if all(one.outcome == "pass" for one in found.values()):
        return found
    head_again = _counted(wanted, "head-again", wanted.head, progress)
    return {name: compare(base[name], head[name], base_again[name], head_again[name]) for name in base}


def _counted(wanted: CountedGate, name: str, checkout: Checkout, progress: Progress) -> Modes:
    """Return the modes of one launch, by name; KeyboardInterrupt where it was interrupted."""
    run = launch(wanted.root / name, checkout, 1, progress)
    if run is None:
        raise KeyboardInterrupt
    return analyse(run).summary.modes
