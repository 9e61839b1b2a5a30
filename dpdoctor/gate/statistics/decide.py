"""What a gate decides by the pairs of launches so far: of one mode, and of modes that are gated together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpdoctor.analysis import Figure
from dpdoctor.analysis.stats import unknown
from dpdoctor.gate.model import ModeNoise
from dpdoctor.gate.statistics import words
from dpdoctor.gate.statistics.design import Plan, holm_alpha
from dpdoctor.gate.statistics.power import Capability, capability
from dpdoctor.gate.statistics.rule import is_fine, is_too_slow
from dpdoctor.gate.statistics.signed_rank import Array, Location, bound_rank, location

PairedOutcome = Literal["pass", "regressed", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
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
        return words.not_for_quick(noise.run_cv, plan.most_run_cv)
    if not bound_rank(plan.last.pairs, plan.last.alpha / num_modes):
        return words.too_many_modes(plan, num_modes)
    limits = capability(plan, noise.pair_sd, asked, num_modes)
    if limits.pairs_needed is None:
        return None
    return words.unsupported(plan, limits, asked, limits.pairs_needed)


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
        return words.passed(effect, limits, asked)
    if outcome == "regressed":
        return words.regressed(effect, limits, asked)
    is_last = effect.n == plan.last.pairs
    return words.undecided(effect, plan, limits, asked) if is_last else words.goes_on(effect, plan)


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
