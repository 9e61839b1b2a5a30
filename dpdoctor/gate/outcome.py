"""What the parts of a gate come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dpdoctor.gate.model import (
    Calibration,
    ExactResult,
    GateResult,
    Kind,
    ModeResult,
    Outcome,
    Refusal,
    Side,
)
from dpdoctor.version import __version__

# Who saw a regression has seen it, whatever else could not be judged; nothing else may pass beside a part that did not.
_WORST: tuple[Outcome, ...] = ("regressed", "refused", "inconclusive", "pass")
# 0 and 3 say that the gate could tell; 4, that it could not.
EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "regressed": 3, "inconclusive": 4, "refused": 4}


def result(
    kind: Kind,
    base: Side,
    head: Side,
    *,
    modes: Mapping[str, ModeResult] | None = None,
    exact: Mapping[str, ExactResult] | None = None,
    refusals: Sequence[Refusal] = (),
    calibration: Calibration | None = None,
    remarks: Sequence[str] = (),
) -> GateResult:
    """Return the result of a gate; its outcome is the worst of its parts, and never a pass where nothing was judged."""
    times, counters = dict(modes or {}), dict(exact or {})
    parts = [*(mode.outcome for mode in times.values()), *(mode.outcome for mode in counters.values())]
    if any(refusal.hard for refusal in refusals):
        parts.append("refused")
    return GateResult(
        dpdoctor=__version__,
        kind=kind,
        outcome=worst(parts),
        modes=times,
        exact=counters,
        refusals=tuple(refusals),
        calibration=calibration,
        base=base,
        head=head,
        remarks=tuple(remarks),
    )


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome that decides; of none: inconclusive."""
    return min(outcomes, key=_WORST.index, default="inconclusive")
