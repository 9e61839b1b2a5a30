"""How much of a step goes to waiting for other ranks that are late now and then, from the traces."""

from __future__ import annotations

from dpdoctor.analysis import stats
from dpdoctor.analysis.communication import exposed_share
from dpdoctor.analysis.cross_rank.model import CrossRank
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.traces import Traces


def rotating_wait(cross_rank: CrossRank | None, traces: Traces) -> Figure:
    """Return the share of a traced step that the rank which waits least spends on waiting for the others.

    A rank that is always the last never waits: what others wait for it is not in here. Waiting beside compute costs
    nothing, so it is at most what that rank communicates without computing.
    """
    if cross_rank is None or len(cross_rank.ranks) < 2:
        return stats.unknown("ratio", "no two ranks left a trace")
    steps = cross_rank.steps
    if not len(steps.steps) or not steps.step_ns:
        return stats.unknown("ratio", cross_rank.verdict.reason or "no whole step with common calls is in the traces")
    least = int(steps.wait_ns.mean(axis=0).argmin())
    waited = stats.mean_interval((steps.wait_ns[:, least] / steps.step_ns).tolist(), "ratio")
    known = [figure for figure in (waited, exposed_share(traces)) if figure.value is not None]
    return min(known, key=lambda figure: figure.value or 0.0)
