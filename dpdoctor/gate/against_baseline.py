"""A gate of a run that exists against a baseline in a file: whether it is comparable and, if so, worse.

Launches of the two were not made by turns: what changed on the machine in between is in the difference, and no
interval can hold it. So it takes several launches on both sides and a calibrated machine, and a pass says less than
that of a pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.analysis.base.stats import unknown
from dpdoctor.gate import calibration, decide
from dpdoctor.gate.baselines import Baseline
from dpdoctor.gate.calibration import degrees_of_freedom
from dpdoctor.gate.comparable import differences, uncounted, unsound
from dpdoctor.gate.exact import compare
from dpdoctor.gate.model import Calibration, GateResult, ModeNoise, ModeResult, Outcome, Refusal, Side, result
from dpdoctor.gate.paired import moved
from dpdoctor.gate.recorded import Recorded, recorded
from dpdoctor.records import Run

Array = NDArray[np.float64]

# Of one launch or two, one that something held up decides.
LEAST_LAUNCHES = 3
# One-sided, of each bound; of all modes together.
ALPHA = 0.01
POWER = 0.8
# The correlation of neighbouring launches that is allowed for at most.
MOST_CORRELATION = 0.9


def against(
    base: Sequence[float], head: Sequence[float], noise: ModeNoise, asked: float, *, num_modes: int = 1
) -> ModeResult:
    """Return the verdict on one mode from its seconds per step, one of each launch; `asked` is relative.

    `num_modes` are judged together, and share the error that each bound may have.

    It regressed where the ratio of the medians of both sides lies above 1 for certain and not below the tolerance; it
    passes where it lies below the tolerance for certain and a slowdown of twice what was asked would have been found.

    Raises:
        ValueError: a tolerance that is not above 0.
    """
    if not 0 < asked < math.inf:
        raise ValueError(f"the tolerance is {asked}; it must be above 0")
    alpha, fewest = ALPHA / num_modes, min(len(base), len(head))
    if fewest < LEAST_LAUNCHES:
        return _too_few(len(base), len(head), asked)
    limits = _limits(np.log(base), np.log(head), noise, asked, alpha)
    shift = float(np.median(np.log(head)) - np.median(np.log(base)))
    effect = Figure(
        value=math.exp(shift),
        low=math.exp(shift - limits.half_width),
        high=math.exp(shift + limits.half_width),
        n=fewest,
        unit="x",
        scope="launches",
    )
    outcome = _outcome(effect, limits, asked)
    return ModeResult(
        outcome=outcome,
        reason=_reason(outcome, effect, limits, asked),
        effect=effect,
        tolerance=limits.tolerance,
        asked=asked,
        alpha=alpha,
        mde=limits.mde,
    )


class _Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`half_width` is in log ratios, the others are relative."""

    half_width: float
    tolerance: float
    mde: float


def _limits(base: Array, head: Array, noise: ModeNoise, asked: float, alpha: float) -> _Limits:
    """Return what so many launches can tell: by Student's t for the ratio of two medians.

    The variance of a median is at most pi / 2 times that of a mean (of normal values; less of few), and that of
    correlated launches (1 + r) / (1 - r) times as large. Launches that spread more than the calibrated ones count as
    they are.
    """
    from scipy import stats

    rho = min(max(noise.autocorrelation, 0.0), MOST_CORRELATION)
    spread, degrees = noise.run_cv, degrees_of_freedom(noise)
    pooled = _pooled(base, head)
    if pooled > spread:
        spread, degrees = pooled, min(degrees, len(base) + len(head) - 2)
    sizes = 1 / len(base) + 1 / len(head)
    error = spread * math.sqrt(math.pi / 2 * sizes * (1 + rho) / (1 - rho))
    half = float(stats.t.ppf(1 - alpha, degrees)) * error
    tolerance = max(asked, math.expm1(2 * half))
    mde = math.expm1(max(math.log1p(tolerance), half) + float(stats.norm.ppf(POWER)) * error)
    return _Limits(half_width=half, tolerance=tolerance, mde=mde)


def _pooled(base: Array, head: Array) -> float:
    """Return the standard deviation of the launches of both sides, each about its own mean."""
    squares = sum(float(np.sum((side - np.mean(side)) ** 2)) for side in (base, head))
    return math.sqrt(squares / (len(base) + len(head) - 2))


def _outcome(effect: Figure, limits: _Limits, asked: float) -> Outcome:
    assert effect.value is not None
    assert effect.low is not None
    assert effect.high is not None
    if effect.low > 1 and effect.value >= 1 + limits.tolerance:
        return "regressed"
    return "pass" if effect.high < 1 + limits.tolerance and limits.mde <= 2 * asked else "inconclusive"


def _too_few(base: int, head: int, asked: float) -> ModeResult:
    reason = (
        f"the baseline has {units.count(base, 'launch')} and the run {units.count(head, 'launch')}; it takes "
        f"{units.whole(LEAST_LAUNCHES)} of both to tell. Profile with --repeat {units.whole(LEAST_LAUNCHES)} or more"
    )
    return ModeResult(
        outcome="inconclusive",
        reason=reason,
        effect=unknown("x", "too few launches"),
        tolerance=asked,
        asked=asked,
        alpha=ALPHA,
        mde=None,
    )


def _reason(outcome: Outcome, effect: Figure, limits: _Limits, asked: float) -> str:
    change, allowed = _change(effect), units.share(limits.tolerance)
    widened, found = decide.widened(limits.tolerance, asked), decide.would_be_found(limits.mde)
    if outcome == "regressed":
        return f"{change}; {allowed} is allowed{widened}"
    if outcome == "pass":
        return f"{change}, which is surely less than the {allowed} that is allowed{widened}; {found}"
    if limits.mde > 2 * asked:
        return (
            f"{change}; so many launches on this machine cannot judge by {units.share(asked)}: {found}, which is more "
            "than twice of that. Profile with a higher --repeat, allow more with --tolerance, or gate two checkouts "
            "by turns with --base and --head"
        )
    return (
        f"{change}, which is too close to the {allowed} that is allowed to tell{widened}. Profile with a higher "
        "--repeat, or gate two checkouts by turns with --base and --head"
    )


def _change(effect: Figure) -> str:
    return decide.change(effect, f"{units.count(effect.n, 'launch')} at least on each side")


NOT_BY_TURNS = (
    "Base was measured on another day: what changed on the machine since then is in the difference. --base and --head "
    "launch two checkouts by turns, and leave it out"
)


def gate(run: Run, baseline: Baseline, name: str, *, asked: float, calibrations: Path) -> GateResult:
    """Return whether a run is slower than a baseline allows, by its launches; `asked` is relative.

    Raises:
        BaselineError: the calibration is damaged.
    """
    base, head = baseline.recorded, recorded(run)
    modes, sides = base.asked_for, _sides(baseline, name, run)
    unlike = differences(base, head, modes, "time")
    unfit = [refusal for mode in modes for refusal in unsound("head", mode, head.modes.get(mode))]
    found = calibration.find(calibrations, run.header.spec, run.header.fingerprint)
    if found is None or not set(modes) <= set(found.modes):
        unfit += calibration.missing(calibrations, run.header.spec, run.header.fingerprint, found, modes)
    if found is not None:
        unfit += calibration.of_other_pace(found, {mode: base.modes[mode].seconds for mode in modes})
    remarks = [NOT_BY_TURNS, *_left_alone(base, head)]
    if found is None or _forbid(unfit, unlike):
        return result("baseline", *sides, refusals=(*unfit, *unlike), calibration=found, remarks=remarks[1:])
    judged = {mode: _judged(mode, base, head, found, asked, num_modes=len(modes)) for mode in modes}
    return result("baseline", *sides, modes=judged, refusals=unlike, calibration=found, remarks=remarks)


def gate_exactly(run: Run, baseline: Baseline, name: str) -> GateResult:
    """Return whether a step of a run does more than one of a baseline did, by its counters."""
    base, head = baseline.recorded, recorded(run)
    modes, sides = base.asked_for, _sides(baseline, name, run)
    unlike = differences(base, head, modes, "exact")
    unfit = [refusal for mode in modes for refusal in uncounted("head", mode, head.modes.get(mode))]
    remarks = (*_left_alone(base, head), *_never_repeated(base))
    if _forbid(unfit, unlike):
        return result("exact", *sides, refusals=(*unfit, *unlike), remarks=remarks)
    found = {
        mode: compare(before.summary, after.summary, before.again, after.again)
        for mode, before, after in ((mode, base.modes[mode], head.modes[mode]) for mode in modes)
    }
    return result("exact", *sides, exact=found, refusals=unlike, remarks=remarks)


def _forbid(*refusals: Sequence[Refusal]) -> bool:
    return any(refusal.hard for found in refusals for refusal in found)


def _left_alone(base: Recorded, head: Recorded) -> Iterator[str]:
    """Yield that modes of the run are not judged, as the baseline has none of them."""
    more = [mode for mode in head.asked_for if mode not in base.asked_for]
    if more:
        yield f"Not judged, for the baseline does not have it: {', '.join(more)}"


def _never_repeated(base: Recorded) -> Iterator[str]:
    """Yield of which modes it is not known what varies from launch to launch."""
    once = [mode for mode in base.asked_for if base.modes[mode].again is None]
    if once:
        yield (
            f"The baseline has one launch of {', '.join(once)}, so a counter that varies by nature looks changed. Save "
            "one of a run with --repeat 2"
        )


def _sides(baseline: Baseline, name: str, run: Run) -> tuple[Side, Side]:
    header = baseline.recorded.header
    return (
        Side(label=f"{name}, of {header.created}", command=header.command, fingerprint=header.fingerprint),
        Side(label=str(run.path), command=run.header.command, fingerprint=run.header.fingerprint),
    )


def _judged(
    mode: str, base: Recorded, head: Recorded, found: Calibration, asked: float, *, num_modes: int
) -> ModeResult:
    before, after, noise = base.modes[mode], head.modes[mode], found.modes[mode]
    verdict = against(before.seconds, after.seconds, noise, asked, num_modes=num_modes)
    if verdict.outcome == "pass":
        # As between pairs: slow steps that come only now and then need not be in the faster half of the windows.
        of_all = replace(noise, run_cv=noise.shown_cv)
        shown = against(before.shown, after.shown, of_all, asked, num_modes=num_modes)
        if shown.outcome == "regressed":
            reason = decide.now_and_then(_change(verdict.effect), _change(shown.effect))
            return replace(verdict, outcome="inconclusive", reason=reason)
    if verdict.outcome != "regressed":
        return verdict
    return replace(verdict, moved=moved(base.analysis(), head.analysis(), mode))
