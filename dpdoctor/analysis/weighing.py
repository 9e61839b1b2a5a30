"""What is to be believed of a share of the step: the claim of trace or clock, and the experiment beside it.

Where the two do not say the same, a report shows both instead of choosing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import AblationSummary, CrossCheck
from dpdoctor.analysis.communication import removable

Status = Literal["confirmed", "refuted", "inferred"]

# Share of a step below which nothing is said: input-bound begins at 5% in tb_plugin 0.4 and xprof.
SMALL = 0.05
# Share of the cost that a cause must explain before it is named: TraceML 0.5's policy for stragglers.
COVERAGE = 0.80
# Two measurements of one share of a step agree within this much of the step, or within their 95% intervals.
TOLERANCE = 0.05


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """A cost as a share of the step, and how far it is proved."""

    cost: Figure
    status: Status

    @property
    def value(self) -> float:
        """The cost; 0 where it is unknown."""
        return self.cost.value or 0.0


def weigh(claim: Figure, ablation: AblationSummary | None) -> Weighed:
    """Return what is to be believed of a claimed share of the step, given the ablation that removes what is claimed.

    The ablation's share where it is clearly above zero: confirmed. The ablation's, too, where it is not and lies
    clearly below the claim: refuted. The claim where there is no ablation, or it cannot tell: inferred. It cannot where
    it is too noisy, or where steps are clearly longer without what is claimed: something else changed with it.
    """
    return weigh_against(claim, ablation.share) if ablation is not None else Weighed(cost=claim, status="inferred")


def weigh_against(claim: Figure, gained: Figure) -> Weighed:
    """Return the same, given the share of the step that an experiment gains without what is claimed."""
    if gained.value is None or is_loss(gained):
        return Weighed(cost=claim, status="inferred")
    if above_zero(gained):
        return Weighed(cost=gained, status="confirmed")
    above = claim.value is not None and gained.low is not None and claim.value > gained.value
    refuted = above and not agree(claim, gained)
    return Weighed(cost=gained, status="refuted") if refuted else Weighed(cost=claim, status="inferred")


def is_loss(gained: Figure) -> bool:
    """Return whether a step is longer with less to do, by more than measurements of one share may differ."""
    return gained.high is not None and gained.high < 0 and (gained.value or 0.0) < -TOLERANCE


def above_zero(figure: Figure) -> bool:
    """Return whether a figure has an interval and all of it lies above zero."""
    return figure.low is not None and figure.low > 0


def agree(a: Figure, b: Figure) -> bool:
    """Return whether two known shares of a step differ by no more than trace and ablation may: 5% or their
    intervals.
    """
    assert a.value is not None
    assert b.value is not None
    return abs(a.value - b.value) <= allowed(a, b)


def is_more_exact(a: Figure, b: Figure) -> bool:
    """Return whether `a` measures what `b` does, and has an interval that is narrower than that of `b`."""
    if a.value is None or a.low is None or b.value is None or not agree(a, b):
        return False
    return stats.half_width(a) < stats.half_width(b)


def more_exact(weighed: Weighed, claim: Figure) -> Weighed:
    """Return a proved cost as it was claimed, where that agrees with the ablation and is known more exactly.

    A claim is measured in every step, an ablation takes the difference of two windows.
    """
    if weighed.status == "confirmed" and is_more_exact(claim, weighed.cost):
        return replace(weighed, cost=claim)
    return weighed


def share_beside(seconds: Figure, others_s: float) -> Figure:
    """Return the share that something of these seconds has of all time, when `others_s` pass from one to the next."""

    def share(value: float | None) -> float | None:
        return None if value is None else max(0.0, value) / (max(0.0, value) + others_s)

    value, low, high = share(seconds.value), share(seconds.low), share(seconds.high)
    return replace(seconds, value=value, low=low, high=high, unit="ratio")


def allowed(a: Figure, b: Figure) -> float:
    """Return by how much two measurements of one share of a step may differ; ratio.

    Half the 95% interval of their difference: two standard errors where each is the mean of many windows, and as many
    more as Student's t asks for where it is one of few.
    """
    return max(TOLERANCE, math.hypot(stats.half_width(a), stats.half_width(b)))


def main_part(parts: Mapping[str, float], cost: float) -> str | None:
    """Return the name of the part that explains at least COVERAGE of a cost; None: no single one does."""
    if not parts:
        return None
    name = max(parts, key=lambda part: parts[part])
    return name if parts[name] > 0 and parts[name] >= COVERAGE * cost else None


def cross_checks(ablations: Mapping[str, AblationSummary], launch: LaunchFacts, cores: int) -> tuple[CrossCheck, ...]:
    """Return for every ablation whose gain can also be seen without it, what the launch's trace or clock says of it.

    `cores` are those of each machine.
    """
    return tuple(_cross_checked(ablations, launch, cores))


def _cross_checked(ablations: Mapping[str, AblationSummary], launch: LaunchFacts, cores: int) -> Iterator[CrossCheck]:
    if "no_comm" in ablations:
        found = removable(launch, cores)
        what = (
            "calls of collectives, on the host's clock" if found.is_clocked else "exposed communication, in the trace"
        )
        beside = ", and what they take of the cores that compute" if found.on_cores else ""
        yield _cross_check(f"{what}{beside}", "no_comm", found.total, ablations)
    if "cached_batches" in ablations:
        yield _cross_check("waiting for data, on the host's clock", "cached_batches", _waited_share(launch), ablations)


def _waited_share(launch: LaunchFacts) -> Figure:
    """Return the share of the ranks' steady time in full windows that waits for data."""
    windows = launch.windows()
    parts = [(window.phase("data_wait")[0], sum(rank.steady_s for rank in window.ranks)) for window in windows]
    return stats.ratio_of_totals(parts, "ratio")


def _cross_check(what: str, ablation: str, seen: Figure, ablations: Mapping[str, AblationSummary]) -> CrossCheck:
    gained = ablations[ablation].share
    limit, agrees = allowed(seen, gained), None
    reason = next((figure.reason or "" for figure in (seen, gained) if figure.value is None), "")
    if seen.value is not None and gained.value is not None:
        agrees = abs(seen.value - gained.value) <= limit
        if not agrees and gained.low is None:
            agrees, reason = None, "one round gives no interval: they differ by more than chance is known to explain"
    return CrossCheck(
        what=what, ablation=ablation, observed=seen, gain=gained, agrees=agrees, tolerance=limit, reason=reason
    )
