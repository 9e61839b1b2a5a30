"""cpu_oversubscription: more threads than cores."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.machine import QUOTA_USED_UP, Cores
from dpdoctor.analysis.weighing import SMALL, above_zero
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity

ABLATION = "fair_threads"
FEWER_RANKS = "start no more ranks than cores"


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    found = facts.cores
    if found is None:
        return None
    return _throttled(facts, found) or _too_many_threads(facts, found)


def _too_many_threads(facts: ModeFacts, found: Cores) -> Finding | CannotTell | None:
    """Return what it costs that torch computes with more threads than there are cores; the ablation has as many."""
    if found.threads <= found.cores:
        return None
    if found.threads == found.ranks:
        # Nothing is left to take from them: the ablation would change nothing.
        shared = f"{units.count(found.ranks, 'rank')} of one thread each on {units.count(found.cores, 'core')}"
        return CannotTell(reason=f"{shared}, and no ablation runs with fewer: {FEWER_RANKS}")
    ablation = facts.ablation(ABLATION)
    if ablation is None or ablation.share.value is None or ablation.gain.value is None:
        threads = f"{units.whole(found.threads)} threads on {units.count(found.cores, 'core')}"
        skipped = facts.mode.ablations.get(ABLATION)
        why = f", and was not measured: {skipped.share.reason}" if skipped else ""
        told = f"the ablation {ABLATION} would tell what that costs{why}"
        return CannotTell(reason=f"torch computes with {threads}; {told}")
    if not above_zero(ablation.share) or ablation.share.value < SMALL:
        return None
    share = _share(facts, found)
    threads, gained = units.count(share, "thread"), units.seconds(ablation.gain.value)
    gain = f"With {threads} for each rank (ablation {ABLATION}) a step is {gained}"
    return Finding(
        rule="cpu_oversubscription",
        mode=facts.name,
        severity=severity(ablation.share.value),
        status="confirmed",
        title=f"more threads than cores: {units.share(ablation.share.value)} of each step",
        cost=ablation.share,
        evidence=(_demand(found), *_switches(found), f"{gain} shorter."),
        cause=f"torch computes with {units.whole(found.threads)} threads on {units.count(found.cores, 'core')}",
        remedy="leave each rank its share of the cores",
        short_remedy=f"call torch.set_num_threads({share})",
        code=f"torch.set_num_threads({share})",
        speedup=faster_without(ablation.share),
        speedup_basis="measured",
    )


def _share(facts: ModeFacts, found: Cores) -> int:
    """Return how many threads the ablation leaves each rank; how many ranks a launcher starts the plan did not know."""
    return facts.spec.threads_per_device if facts.mode.native is None else max(1, found.cores // found.ranks)


def _throttled(facts: ModeFacts, found: Cores) -> Finding | None:
    """Return that a container's CPU quota is used up; how much of a step that takes, no counter says."""
    periods = facts.throttled_periods
    if periods.value is None or periods.value <= QUOTA_USED_UP:
        return None
    return Finding(
        rule="cpu_oversubscription",
        mode=facts.name,
        severity="warning",
        status="inferred",
        title=f"a CPU quota holds processes back in {units.share(periods.value)} of its periods",
        cost=stats.unknown("ratio", "the kernel counts throttled periods, not what a step loses by them"),
        evidence=(
            f"The cgroup's quota was used up before the end of {units.share(periods.value)} of its periods.",
            _demand(found),
            *_switches(found),
        ),
        cause="the container's CPU quota is less than its threads and loader processes use",
        remedy="raise the quota, or use fewer threads and loader processes",
    )


def _demand(found: Cores) -> str:
    workers = f" and {units.count(found.workers, 'loader process')}" if found.workers else ""
    threads = f"{units.count(found.threads, 'thread')} of {units.count(found.ranks, 'rank')}"
    return f"{units.count(found.cores, 'core')} for {threads}{workers}."


def _switches(found: Cores) -> tuple[str, ...]:
    if found.switches is None:
        return ()
    return (f"Threads had to leave their core to another {units.rate(found.switches, 'times per second')}.",)


RULE = Rule(
    name="cpu_oversubscription",
    title="More threads than cores",
    what="The threads of all ranks, and their loader processes, are more than the cores that they may use.",
    why="Threads that work on one operation wait for each other; when some have no core, the others wait for them.",
    how="Threads, loader processes and cores are counted. The ablation fair_threads gives torch, in each rank, the "
    "share of the cores; what that gains is the cost. A container's CPU quota is read from the kernel's own count.",
    remedy="Set torch.set_num_threads, OMP_NUM_THREADS or num_workers so that all ranks together fit into the cores.",
    verified=True,
    check=_check,
)
