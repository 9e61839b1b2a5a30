"""What costs most and the change to make, in the clauses that a headline ends with."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from dpdoctor.analysis import Figure, Finding, RunSummary
from dpdoctor.report.text import clipped, listed, listed_figures, mode_label
from dpdoctor.report.words import diagnosis

# A name from the script may be of any length.
LONGEST_TITLE, LONGEST_REMEDY = 120, 80
# How a mode stands to one device is the first clause of every headline.
SAID = frozenset({"parallelism_not_worth_it"})


class _Change(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy in a few words, and what it gives in one mode; `basis` is Finding.speedup_basis."""

    mode: str
    rule: str
    short: str
    basis: str
    gain: Figure


def bottleneck(summary: RunSummary, mode: str) -> str | None:
    """Return the costliest bottleneck of a mode, but for what a headline begins with, in a clause; None: no other."""
    costly = (finding for finding in diagnosis.parts(summary).costly if finding.mode == mode)
    first = next((finding for finding in costly if finding.rule not in SAID), None)
    return None if first is None else clipped(first.title, LONGEST_TITLE)


def advice(summary: RunSummary, modes: Collection[str]) -> str | None:
    """Return what to change about the costliest bottleneck of these modes, and what that is predicted to give.

    None where both are not known in few words: of another bottleneck it would be taken for this one's. Modes that
    share bottleneck and remedy are told of together.
    """
    worst = _costliest(summary, modes)
    found = [change for change in _changes(summary, modes) if worst is not None and change.rule == worst.rule]
    if not found:
        return None
    first = found[0]
    same = {change.mode: change for change in found if _words(change) == _words(first)}
    where = "" if len(same) == len(modes) else f"for {listed([mode_label(mode) for mode in same])} "
    gains = [same[mode].gain for mode in modes if mode in same]
    is_bounded = all(gain.value is not None for gain in gains)
    given = f"{first.basis} {listed_figures(gains)} of today's throughput" if is_bounded else diagnosis.NO_BOUND
    # What was tried and does not help comes after what does.
    change, _, tried = first.short.partition("; ")
    also = f" ({clipped(tried, LONGEST_REMEDY)})" if tried else ""
    return f"{where}{clipped(change, LONGEST_REMEDY)}: {given}{also}"


def _words(change: _Change) -> tuple[str, str, str]:
    return change.rule, change.short, change.basis


def _costliest(summary: RunSummary, modes: Collection[str]) -> Finding | None:
    return next((finding for finding in diagnosis.parts(summary).costly if finding.mode in modes), None)


def _changes(summary: RunSummary, modes: Collection[str]) -> Iterator[_Change]:
    """Yield the changes that are predicted to give more than noise, that of the costliest finding first."""
    for finding in diagnosis.parts(summary).costly:
        speedup, gain = finding.speedup, finding.gain
        if finding.mode not in modes or not finding.short_remedy or speedup is None or gain is None:
            continue
        if _least(speedup) > 1:
            yield _Change(
                mode=finding.mode,
                rule=finding.rule,
                short=finding.short_remedy,
                basis=finding.speedup_basis,
                gain=gain,
            )


def _least(gain: Figure) -> float:
    """Return the least that a gain may be; 0 where it is unknown."""
    return (gain.value if gain.low is None else gain.low) or 0.0
