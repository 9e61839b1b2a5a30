"""What made a launch slower than its code is: clocks that were lowered, cores that others took, a compilation."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.others import while_measured
from dpdoctor.analysis.throttling import QUOTA_USED_UP, Throttled, throttled, throttled_periods
from dpdoctor.gate.evidence.measured import recompilations


def disturbance(launch: LaunchFacts, cores: int) -> str | None:
    """Return why a launch on a machine of so many cores is not to be judged by, in clauses; None: it is."""
    if launch.record.status != "ok":
        return None
    clauses = (*_lowered_clocks(launch), *_quota(launch), *_compiled(launch), *_others(launch, cores))
    return "; ".join(clauses) or None


def _lowered_clocks(launch: LaunchFacts) -> tuple[str, ...]:
    if not any(rank.record.devices for rank in launch.ranks if rank.record):
        return ()
    found = throttled(launch)
    return (found.words,) if isinstance(found, Throttled) else ()


def _quota(launch: LaunchFacts) -> tuple[str, ...]:
    share = throttled_periods([launch]).value
    if share is None or share <= QUOTA_USED_UP:
        return ()
    return (f"a CPU quota held processes back in {units.share(share)} of its periods",)


def _compiled(launch: LaunchFacts) -> tuple[str, ...]:
    number = recompilations(launch)
    return (f"torch.compile compiled {units.count(number, 'graph')} while it was measured",) if number else ()


def _others(launch: LaunchFacts, cores: int) -> tuple[str, ...]:
    taken = while_measured(launch, cores)
    return () if taken is None else (taken,)
