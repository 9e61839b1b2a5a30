"""Do the trace and the experiment say the same? Where they do not, a report shows both instead of choosing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.figure import Figure
from dpdoctor.analysis.base.launch_facts import LaunchFacts
from dpdoctor.analysis.base.summary import AblationSummary, CrossCheck
from dpdoctor.analysis.base.weighing import allowed
from dpdoctor.analysis.communication import removable


def cross_checks(ablations: Mapping[str, AblationSummary], launch: LaunchFacts, cores: int) -> tuple[CrossCheck, ...]:
    """Return for every ablation whose gain can also be seen without it, what the launch's trace or clock says of it.

    `cores` are those of each machine.
    """
    return tuple(_compared(ablations, launch, cores))


def _compared(ablations: Mapping[str, AblationSummary], launch: LaunchFacts, cores: int) -> Iterator[CrossCheck]:
    if "no_comm" in ablations:
        found = removable(launch, cores)
        what = (
            "calls of collectives, on the host's clock" if found.is_clocked else "exposed communication, in the trace"
        )
        beside = ", and what they take of the cores that compute" if found.on_cores else ""
        yield _check(f"{what}{beside}", "no_comm", found.total, ablations)
    if "cached_batches" in ablations:
        yield _check("waiting for data, on the host's clock", "cached_batches", _waited_share(launch), ablations)


def _waited_share(launch: LaunchFacts) -> Figure:
    """Return the share of the ranks' steady time in full windows that waits for data."""
    windows = launch.windows()
    parts = [(window.phase("data_wait")[0], sum(rank.steady_s for rank in window.ranks)) for window in windows]
    return stats.ratio_of_totals(parts, "ratio")


def _check(what: str, ablation: str, seen: Figure, ablations: Mapping[str, AblationSummary]) -> CrossCheck:
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
