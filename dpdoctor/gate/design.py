"""When a gate looks at its pairs, and how sure it must be each time; fixed before the first pair.

A look costs confidence: whoever tests after every pair until the test says what he hopes for will be told so. The
looks of a plan share a chance of 5% of being wrong, which adds up over the looks whatever their data have in common
(Bonferroni's inequality), so the plan may stop at any of them.
"""

from __future__ import annotations

import math

import msgspec

from dpdoctor.gate.signed_rank import least_differences

# What the looks of a plan spend together, one-sided.
ALPHA = 0.05
USUAL_PAIRS = 20
# Longer plans are not offered: a machine that needs more is not one to gate on.
MOST_PAIRS = 200


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A number of pairs after which the gate judges, and the one-sided error that each of its bounds may have."""

    pairs: int
    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= ALPHA:
            raise ValueError(f"alpha is {self.alpha}; it must lie above 0 and not above {ALPHA}")
        least = least_differences(self.alpha)
        if self.pairs < least:
            raise ValueError(f"{self.pairs} pairs give no bound at alpha {self.alpha}; it takes {least}")


# 5 pairs cannot reach alpha 0.01.
_INTERIM = (Look(pairs=7, alpha=0.01), Look(pairs=12, alpha=0.015))
LEAST_PAIRS = _INTERIM[0].pairs


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The looks of a gate.

    Attributes:
        most_run_cv: the plan is only for machines whose launches spread by no more than this; None: for any.
    """

    looks: tuple[Look, ...]
    most_run_cv: float | None = None

    def __post_init__(self) -> None:
        pairs = [look.pairs for look in self.looks]
        if not pairs or pairs != sorted(set(pairs)):
            raise ValueError(f"looks are after {pairs} pairs; it takes one at least, each after more pairs")
        spent = math.fsum(look.alpha for look in self.looks)
        if spent > ALPHA and not math.isclose(spent, ALPHA):
            raise ValueError(f"the looks spend {spent}; together they may spend {ALPHA}")

    @property
    def last(self) -> Look:
        """Return the look after which the gate stops, whatever it sees."""
        return self.looks[-1]

    def is_due(self, pairs: int) -> bool:
        """Return whether the gate judges after so many pairs."""
        return any(look.pairs == pairs for look in self.looks)

    def look_for(self, pairs: int) -> Look:
        """Return the look that so many pairs lead to or, past the end of the plan, its last."""
        return next((look for look in self.looks if look.pairs >= pairs), self.last)


def sequence(most_pairs: int = USUAL_PAIRS) -> Plan:
    """Return the usual plan: looks after 7, 12 and 20 pairs with an alpha of 0.01, 0.015 and 0.025.

    Another number of pairs ends it earlier or later; its last look always spends what is left.

    Raises:
        ValueError: fewer than 7 pairs.
    """
    if most_pairs < LEAST_PAIRS:
        raise ValueError(f"a gate of {most_pairs} pairs cannot tell; it takes {LEAST_PAIRS} at least")
    before = tuple(look for look in _INTERIM if look.pairs < most_pairs)
    left = round(ALPHA - math.fsum(look.alpha for look in before), 6)
    return Plan(looks=(*before, Look(pairs=most_pairs, alpha=left)))


# One look at the fewest pairs that reach alpha 0.05. Two outliers among five can hide a slowdown or make one up, so it
# is for quiet machines.
QUICK = Plan(looks=(Look(pairs=5, alpha=ALPHA),), most_run_cv=0.01)


def holm_alpha(alpha: float, num_modes: int, num_failed: int) -> float:
    """Return the error that a look's lower bound may have in one of several modes gated together.

    Holm's procedure (Scandinavian Journal of Statistics 6, 1979): the modes share alpha; a mode that failed has
    rejected its hypothesis and leaves its share to the others. With looks it stays valid, as every mode splits what
    it has over the looks in the same proportions: by Bonferroni's inequality the error over all looks is at most the
    mode's share, whenever the gate stops, and shares only grow (Maurer and Bretz, Statistics in Biopharmaceutical
    Research 5, 2013). A mode fails only where it is slower by the tolerance, too, which is rarer than its rejection.

    The bound against "too slow" is not shared out: the gate passes only if all modes do, so to pass wrongly it must
    be wrong about a mode that is too slow, whichever that is (the intersection-union test of Berger, Technometrics
    24, 1982).
    """
    return alpha / (num_modes - num_failed)
