"""The shape of a gate's result, which `dpdoctor gate --format json` writes as it is.

{"schema": 1, "kind": "paired", "outcome": "regressed", "modes": {"ddp": {
   "outcome": "regressed", "reason": "the step takes 9.8% longer ...", "effect": {"value": 1.098, ...},
   "tolerance": 0.05, "alpha": 0.01, "mde": 0.031, "pairs": [{"base_s": 0.0121, "head_s": 0.0133, ...}, ...],
   "moved": [{"kind": "phase", "name": "data_wait", ...}]}},
 "exact": {"ddp": {"outcome": "pass", "differences": [], "left_out": [], ...}},
 "refusals": [], "calibration": {...}, "base": {...}, "head": {...}, "remarks": []}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from dpdoctor.analysis.base.stats import Figure
from dpdoctor.spec import Fingerprint
from dpdoctor.version import __version__

SCHEMA = 1

Outcome = Literal["pass", "regressed", "inconclusive", "refused"]
Kind = Literal["paired", "baseline", "exact"]
SideName = Literal["base", "head"]
SIDES: tuple[SideName, SideName] = ("base", "head")
# A calibration and a baseline are of one way to measure, the warm-up included.
LONGER_WARMUP = "a longer --warmup (the same for calibration, baseline and gate)"
# How to measure again what was disturbed.
UNDISTURBED = (
    "where nothing else runs and nothing is throttled; what torch.compile compiles while it is measured needs "
    f"{LONGER_WARMUP}, or shapes that are marked as dynamic"
)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of base and one of head, next to each other in time.

    Attributes:
        base_s, head_s: seconds per step of the launch, in the faster half of its windows; None: it is not to be judged
            by.
        base_shown_s, head_shown_s: the same in all of its windows, as reports show it.
        order: which ran first, "AB" (base) or "BA".
        replaced: why the pair does not count (throttled, out of memory, recompiled, cores taken); None: it counts.
    """

    base_s: float | None
    head_s: float | None
    order: Literal["AB", "BA"]
    base_shown_s: float | None = None
    head_shown_s: float | None = None
    replaced: str | None = None

    @property
    def shown_log_ratio(self) -> float | None:
        """Return ln(head / base) by all windows; None: the pair does not count."""
        if self.replaced is not None or self.base_shown_s is None or self.head_shown_s is None:
            return None
        return math.log(self.head_shown_s / self.base_shown_s)


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Something that differs between base and head: a phase, a counter or a finding.

    `base` and `head` are the figures where it is measured; `text` says it in words, for counters and findings alone.
    """

    kind: Literal["phase", "counter", "finding"]
    name: str
    text: str
    base: Figure | None = None
    head: Figure | None = None


class ModeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One mode judged by its time.

    Attributes:
        reason: one sentence, also on pass: effect, interval, and what could have been seen.
        effect: head's seconds per step over base's, unit "x"; low and high are the bounds that decided, one-sided, high
            at `alpha` and low at `fail_alpha`; None where so few pairs have no bound.
        tolerance: the relative slowdown that is allowed, after the machine's noise; `asked` is what the user asked.
        fail_alpha: less than `alpha` where several modes are gated together; None: alpha.
        mde: least relative slowdown that the gate, gone through to its last look, finds with a probability of 0.8;
            None: nothing is known of the noise, or no slowdown is found so.
        pairs: all that were launched, in their order; empty against a stored baseline.
    """

    outcome: Outcome
    reason: str
    effect: Figure
    tolerance: float
    asked: float
    alpha: float
    mde: float | None
    fail_alpha: float | None = None
    pairs: tuple[Pair, ...] = ()
    moved: tuple[Moved, ...] = ()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One counter that is not what it was.

    Attributes:
        change: more, head's step costs more by it; less, it costs less; other, it is no cost but another thing to do,
            such as a batch of another shape.
        allowed: relative; 0 is exactly.
        line: of head's script, where known.
    """

    name: str
    base: int | str | None
    head: int | str | None
    change: Literal["more", "less", "other"]
    allowed: float = 0.0
    line: str | None = None


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A counter that is not compared, and why: it varies by nature, or one of the runs does not have it."""

    name: str
    reason: str


class ExactResult(msgspec.Struct, frozen=True, kw_only=True):
    """One mode judged by its counters. `compared`: how many were."""

    outcome: Outcome
    reason: str
    compared: int
    differences: tuple[Difference, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why base and head may not be compared.

    Attributes:
        field: what differs or is missing, such as "torch", "world_size", "calibration".
        base, head: its values as text; None: it has none.
        remedy: what to do about it.
        hard: the gate refuses; otherwise it only says so.
    """

    field: str
    base: str | None
    head: str | None
    remedy: str
    hard: bool = True


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared: a label (a path, a commit or a baseline's name) and the machine that it ran on."""

    label: str
    command: tuple[str, ...]
    fingerprint: Fingerprint | None


class ModeNoise(msgspec.Struct, frozen=True, kw_only=True):
    """What A/A pairs of one mode show of a machine and a workload.

    Attributes:
        run_cv: robust relative spread of the launches' seconds per step (1.4826 times the median absolute deviation of
            their logs).
        shown_cv: the same of the seconds per step that reports show, those of all windows.
        pair_sd: the same of the log ratios of pairs, about 0: what of run_cv two neighbouring launches do not share.
        shown_pair_sd: the same of what reports show; None in files from before it was kept.
        autocorrelation: of one launch and the next, lag 1.
        median_s: seconds per step of the median launch.
        log_ratios: of the pairs, for whoever judges them anew.
        log_seconds: of the launches, in their order.
        sharing: how the mode's devices share batches, and where they are.
        created, fingerprint: when and where it was measured; empty in files from before they were kept by mode, where
            those of the file are of all its modes.
    """

    run_cv: float
    shown_cv: float
    pair_sd: float
    autocorrelation: float
    median_s: float
    log_ratios: tuple[float, ...]
    log_seconds: tuple[float, ...]
    shown_pair_sd: float | None = None
    sharing: str = ""
    created: str = ""
    fingerprint: Fingerprint | None = None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The noise of one machine with one workload, by mode. `workload` is what identifies the latter.

    `created` and `fingerprint` are of the last time that a mode was measured; each mode has its own.
    """

    schema: int = SCHEMA
    created: str
    dpdoctor: str
    workload: str
    fingerprint: Fingerprint
    modes: dict[str, ModeNoise]


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate found. The worst of its parts is its outcome: regressed, then refused, inconclusive, pass."""

    schema: int = SCHEMA
    dpdoctor: str
    kind: Kind
    outcome: Outcome
    modes: dict[str, ModeResult]
    exact: dict[str, ExactResult]
    refusals: tuple[Refusal, ...]
    calibration: Calibration | None
    base: Side
    head: Side
    remarks: tuple[str, ...] = ()


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
