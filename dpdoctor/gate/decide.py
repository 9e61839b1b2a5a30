"""What a gate decides by the pairs of launches so far: of one mode, and of modes gated together; in words, too.

On a pass the words say what was seen and what would have been.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.analysis.base.stats import unknown
from dpdoctor.gate.design import MOST_PAIRS, POWER, Capability, Plan, capability, holm_alpha, is_fine, is_too_slow
from dpdoctor.gate.model import ModeNoise, Pair
from dpdoctor.gate.signed_rank import Array, Location, bound_rank, location

PairedOutcome = Literal["pass", "regressed", "inconclusive"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the pairs so far say of one mode.

    Attributes:
        final: no more pairs are to be launched for this mode; otherwise it is `inconclusive` only for now.
        reason: one sentence with the effect, its interval and, on pass, what would have been found.
        effect: head's seconds per step over base's, unit "x"; `low` is its bound at `fail_alpha`, `high` at `alpha`,
            one-sided; None where so few pairs have no bound.
        tolerance: the relative slowdown that is allowed, after the machine's noise; `asked` is what the user asked.
        mde: least relative slowdown that the plan finds with a probability of 0.8.
    """

    outcome: PairedOutcome
    final: bool
    reason: str
    effect: Figure
    tolerance: float
    asked: float
    alpha: float
    fail_alpha: float
    mde: float


def decide(
    log_ratios: Sequence[float],
    *,
    plan: Plan,
    noise: ModeNoise,
    asked: float,
    num_modes: int = 1,
    num_failed: int = 0,
) -> Verdict:
    """Return what the pairs of a mode say so far; `log_ratios` are their ln(head / base), in the order of the pairs.

    At a look of the plan it regressed where the Hodges-Lehmann estimate is not below the tolerance and the lower bound
    above a half of it, and passes where the upper bound is below the tolerance. `asked` is the relative slowdown to
    allow; of `num_modes` modes gated together `num_failed` have failed.

    Raises:
        ValueError: more pairs than planned, a ratio that is no number, or a tolerance that is not above 0.
    """
    values = _checked(log_ratios, plan, asked)
    look = plan.look_for(len(values))
    fail_alpha = holm_alpha(look.alpha, num_modes, num_failed)
    at = location(values, low_alpha=fail_alpha, high_alpha=look.alpha) if len(values) else None
    limits = capability(plan, noise.pair_sd, asked, num_modes)
    why_not = obstacle(plan, noise, asked, num_modes)
    outcome: PairedOutcome = "inconclusive"
    if at is not None and why_not is None and plan.is_due(len(values)):
        outcome = _outcome(at, limits)
    effect = _effect(at, len(values))
    return Verdict(
        outcome=outcome,
        final=outcome != "inconclusive" or why_not is not None or len(values) == plan.last.pairs,
        reason=why_not or _reason(outcome, effect, limits, plan, asked),
        effect=effect,
        tolerance=limits.tolerance,
        asked=asked,
        alpha=look.alpha,
        fail_alpha=fail_alpha,
        mde=limits.mde,
    )


def obstacle(plan: Plan, noise: ModeNoise, asked: float, num_modes: int = 1) -> str | None:
    """Return why a plan could not judge a mode on this machine whatever its pairs were, and what to do; None: it can.

    It can where it finds a slowdown of twice of what was asked with a probability of 0.8. A gate that cannot may pass
    what it should not, because its tolerance has to grow with the noise.
    """
    if plan.most_run_cv is not None and noise.run_cv > plan.most_run_cv:
        return not_for_quick(noise.run_cv, plan.most_run_cv)
    if not bound_rank(plan.last.pairs, plan.last.alpha / num_modes):
        return too_many_modes(plan, num_modes)
    limits = capability(plan, noise.pair_sd, asked, num_modes)
    if limits.pairs_needed is None:
        return None
    return unsupported(plan, limits, asked, limits.pairs_needed)


def _checked(log_ratios: Sequence[float], plan: Plan, asked: float) -> Array:
    values = np.asarray(log_ratios, dtype=float)
    if len(values) > plan.last.pairs:
        raise ValueError(f"{len(values)} pairs, but the plan ends after {plan.last.pairs}")
    if not np.isfinite(values).all():
        raise ValueError(f"the log ratios of pairs hold what is no number: {log_ratios}")
    if not 0 < asked < math.inf:
        raise ValueError(f"the tolerance is {asked}; it must be above 0")
    return values


def _outcome(at: Location, limits: Capability) -> PairedOutcome:
    if is_too_slow(at, limits.tolerance):
        return "regressed"
    return "pass" if is_fine(at, limits.tolerance) else "inconclusive"


def _reason(outcome: PairedOutcome, effect: Figure, limits: Capability, plan: Plan, asked: float) -> str:
    if outcome == "pass":
        return passed(effect, limits, asked)
    if outcome == "regressed":
        return regressed(effect, limits, asked)
    is_last = effect.n == plan.last.pairs
    return undecided(effect, plan, limits, asked) if is_last else goes_on(effect, plan)


def _effect(at: Location | None, num_pairs: int) -> Figure:
    """Return head's time over base's, from logs; a bound that is not there is None."""
    if at is None:
        return unknown("x", "no pair of launches counts so far")
    return Figure(
        value=math.exp(at.value),
        low=math.exp(at.low) if at.low > -math.inf else None,
        high=math.exp(at.high) if at.high < math.inf else None,
        n=num_pairs,
        unit="x",
        scope="launches",
    )


def decide_all(
    log_ratios: Mapping[str, Sequence[float]],
    settled: Mapping[str, Verdict],
    *,
    plan: Plan,
    noise: Mapping[str, ModeNoise],
    asked: float,
) -> dict[str, Verdict]:
    """Return the verdict on every mode, given the log ratios of its pairs so far: ln(head / base), in their order.

    `settled` are the verdicts of the call before (empty at first): those that were final stay as they are. A mode
    that fails makes room for the others, which are then judged once more; see `holm_alpha`.

    Raises:
        ValueError: as `decide`.
    """
    kept = {mode: verdict for mode, verdict in settled.items() if verdict.final}
    num_failed = sum(verdict.outcome == "regressed" for verdict in kept.values())
    found = {
        mode: decide(
            ratios, plan=plan, noise=noise[mode], asked=asked, num_modes=len(log_ratios), num_failed=num_failed
        )
        for mode, ratios in log_ratios.items()
        if mode not in kept
    }
    failed = {mode: verdict for mode, verdict in found.items() if verdict.outcome == "regressed"}
    if failed:
        return decide_all(log_ratios, {**kept, **failed}, plan=plan, noise=noise, asked=asked)
    return {mode: kept.get(mode) or found[mode] for mode in log_ratios}


def by_all_windows(verdict: Verdict, pairs: Sequence[Pair], *, plan: Plan, noise: ModeNoise) -> Verdict:
    """Return a verdict that holds for slow steps that come only now and then, too: where they got slower, no pass.

    The faster half of the windows may have none of them. All windows are judged by the same test, and by how far they
    themselves spread. Other load is in them as well, so they make no regression.
    """
    if verdict.outcome != "pass":
        return verdict
    shown = [ratio for pair in pairs if (ratio := pair.shown_log_ratio) is not None][: verdict.effect.n]
    # Two launches that share nothing differ by sqrt(2) times as much as one varies.
    sd = math.sqrt(2) * noise.shown_cv if noise.shown_pair_sd is None else noise.shown_pair_sd
    at = location(np.asarray(shown), low_alpha=verdict.alpha, high_alpha=verdict.alpha)
    if not is_too_slow(at, capability(plan, sd, verdict.asked).tolerance):
        return verdict
    reason = now_and_then(_change(verdict.effect), _change(_effect(at, len(shown))))
    return replace(verdict, outcome="inconclusive", reason=reason)


def passed(effect: Figure, limits: Capability, asked: float) -> str:
    """Return why a mode passes: the effect, its interval, and what would have been found."""
    return (
        f"{_change(effect)}, which is surely less than the {units.share(limits.tolerance)} that is allowed"
        f"{widened(limits.tolerance, asked)}; {would_be_found(limits.mde)}"
    )


def regressed(effect: Figure, limits: Capability, asked: float) -> str:
    """Return why a mode fails: the effect, its interval, and what is allowed."""
    return f"{_change(effect)}; {units.share(limits.tolerance)} is allowed{widened(limits.tolerance, asked)}"


def now_and_then(faster_half: str, all_windows: str) -> str:
    """Return why a mode does not pass whose step takes longer only by all windows; both are changes in words."""
    return (
        f"{faster_half} in the faster half of the windows, but by all of them {all_windows}: something that comes only "
        "now and then got slower. Compare runs of both (`dpdoctor compare`) to see in which phase"
    )


def goes_on(effect: Figure, plan: Plan) -> str:
    """Return why nothing is said yet: there was no look so far, or it left the question open."""
    due = next(look.pairs for look in plan.looks if look.pairs > effect.n)
    return f"{_change(effect)}; the next look is after {units.count(due, 'pair')}"


def undecided(effect: Figure, plan: Plan, limits: Capability, asked: float) -> str:
    """Return why the last look could not tell, and what to do."""
    return (
        f"{_change(effect)}, which is too close to the {units.share(limits.tolerance)} that is allowed to tell"
        f"{widened(limits.tolerance, asked)}. Plan more pairs ({_for_more(plan)}), quieten the machine, or allow more "
        "or less (--tolerance); the same gate again, until it passes, would tell nothing"
    )


def unsupported(plan: Plan, limits: Capability, asked: float, needed: int) -> str:
    """Return why a machine is too noisy for the tolerance that was asked for, and what it can support."""
    enough = f"About {units.count(needed, 'pair')} would ({_for_more(plan)}), or allow"
    way_out = enough if needed <= MOST_PAIRS else "Allow"
    return (
        f"launches on this machine differ too much to gate at {units.share(asked)}: {_pairs(plan)} find a slowdown of "
        f"{units.share(limits.mde)} or more with a probability of {units.share(POWER)}, and must find "
        f"{units.share(2 * asked)}. {way_out} {_rounded_up(limits.mde / 2)} (--tolerance), or use a quieter machine"
    )


def _rounded_up(share: float) -> str:
    """Return a share as text that is not below it, so that what is proposed is supported."""
    text = units.share(math.ceil(1000 * share) / 1000)
    return text if "." in text else units.share(math.ceil(100 * share) / 100)


def not_for_quick(run_cv: float, most_run_cv: float) -> str:
    """Return why a quick gate is not for this machine."""
    return (
        f"a quick gate is for machines whose launches differ by {units.share(most_run_cv)} or less; on this one they "
        f"differ by {units.share(run_cv)}. Leave out --quick"
    )


def too_many_modes(plan: Plan, num_modes: int) -> str:
    """Return why so few pairs are not enough for so many modes at once."""
    return (
        f"{_pairs(plan)} cannot show a regression in one of {units.count(num_modes, 'mode')} with the certainty that "
        "takes. Gate fewer modes at once, or more pairs: leave out --quick, or raise --max-pairs"
    )


def change(effect: Figure, counted: str) -> str:
    """Return how much longer or shorter head's step is than base's, with the bounds that there are, and of how many."""
    if effect.value is None:
        return effect.reason or ""
    longer = effect.value - 1
    size = f"{units.share(longer)} longer" if longer >= 0 else f"{units.share(-longer)} shorter"
    return f"the step takes {size} ({_bounds(effect)}{counted})"


def _change(effect: Figure) -> str:
    return change(effect, units.count(effect.n, "pair"))


def _bounds(effect: Figure) -> str:
    """Return the interval of the change; what is shorter is negative."""
    if effect.high is None:
        return ""
    high = units.share(effect.high - 1)
    if effect.low is None:
        return f"at most {high}, "
    return f"{units.span(units.share(effect.low - 1), high)}, "


def would_be_found(mde: float) -> str:
    """Return what a gate that passes would not have passed: what slows fewer windows shows less in the faster half."""
    return (
        f"a slowdown of all windows by {units.share(mde)} or more would have been found with a probability of "
        f"{units.share(POWER)}"
    )


def widened(tolerance: float, asked: float) -> str:
    """Return why another slowdown is allowed than the one that was asked for; empty where it is that one."""
    if tolerance <= asked:
        return ""
    return f" ({units.share(asked)} was asked for, but the noise of this machine hides more)"


def _for_more(plan: Plan) -> str:
    """Return how to have more pairs than a plan's."""
    return "leave out --quick" if plan.most_run_cv is not None else "--max-pairs"


def _pairs(plan: Plan) -> str:
    return units.count(plan.last.pairs, "pair")
