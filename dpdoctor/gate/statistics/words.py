"""A gate's verdicts in words; on pass, too, what was seen and what would have been."""

from __future__ import annotations

import math

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.gate.statistics.design import MOST_PAIRS, Plan
from dpdoctor.gate.statistics.power import POWER, Capability


def passed(effect: Figure, limits: Capability, asked: float) -> str:
    """Return why a mode passes: the effect, its interval, and what would have been found."""
    return (
        f"{_change(effect)}, which is surely less than the {units.share(limits.tolerance)} that is allowed"
        f"{_widened(limits, asked)}; {units.share(limits.mde)} or more would have been found with a probability of "
        f"{units.share(POWER)}"
    )


def regressed(effect: Figure, limits: Capability, asked: float) -> str:
    """Return why a mode fails: the effect, its interval, and what is allowed."""
    return f"{_change(effect)}; {units.share(limits.tolerance)} is allowed{_widened(limits, asked)}"


def goes_on(effect: Figure, plan: Plan) -> str:
    """Return why nothing is said yet: there was no look so far, or it left the question open."""
    due = next(look.pairs for look in plan.looks if look.pairs > effect.n)
    return f"{_change(effect)}; the next look is after {units.count(due, 'pair')}"


def undecided(effect: Figure, plan: Plan, limits: Capability, asked: float) -> str:
    """Return why the last look could not tell, and what to do."""
    return (
        f"{_change(effect)}, which is too close to the {units.share(limits.tolerance)} that is allowed to tell"
        f"{_widened(limits, asked)}. Plan more pairs ({_for_more(plan)}), quieten the machine, or allow more or less "
        "(--tolerance); the same gate again, until it passes, would tell nothing"
    )


def unsupported(plan: Plan, limits: Capability, asked: float, needed: int) -> str:
    """Return why a machine is too noisy for the tolerance that was asked for, and what it can support."""
    # Rounded up, so that what is proposed is supported.
    supported = math.ceil(1000 * limits.mde / 2) / 1000
    enough = f"About {units.count(needed, 'pair')} would ({_for_more(plan)}), or allow"
    way_out = enough if needed <= MOST_PAIRS else "Allow"
    return (
        f"launches on this machine differ too much to gate at {units.share(asked)}: {_pairs(plan)} find a slowdown of "
        f"{units.share(limits.mde)} or more with a probability of {units.share(POWER)}, and must find "
        f"{units.share(2 * asked)}. {way_out} {units.share(supported)} (--tolerance), or use a quieter machine"
    )


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


def _widened(limits: Capability, asked: float) -> str:
    """Return why another slowdown is allowed than the one that was asked for; empty where it is that one."""
    if limits.tolerance <= asked:
        return ""
    return f" ({units.share(asked)} was asked for, but the noise of this machine hides more)"


def _for_more(plan: Plan) -> str:
    """Return how to have more pairs than a plan's."""
    return "leave out --quick" if plan.most_run_cv is not None else "--max-pairs"


def _pairs(plan: Plan) -> str:
    return units.count(plan.last.pairs, "pair")
