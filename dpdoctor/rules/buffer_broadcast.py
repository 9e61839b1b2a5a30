"""buffer_broadcast: DDP sends rank 0's buffers to all ranks before every forward."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding
from dpdoctor.rules._base import SMALL, CannotTell, Case, Rule, faster_without, severity
from dpdoctor.rules._communication import adopted_line, arm_words, communicates, core_words, weigh_part, why_untold
from dpdoctor.rules._traced import exposed_calls_share, traces

OPERATION = "broadcast"


def _check(case: Case) -> Finding | CannotTell | None:
    if not communicates(case) or case.name == "fsdp":
        return None
    counted = case.mode.counters.collectives.get(OPERATION) if case.mode.counters else None
    found = traces(case)
    if (reason := why_untold(case)) is not None:
        return CannotTell(reason=reason)
    if not found.common.steps:
        if not counted:
            return None
        return CannotTell(
            reason="buffers are broadcast, and no traced step is whole on every device to show what it costs"
        )
    weighed = weigh_part(case, exposed_calls_share(found, lambda operation, _: operation == OPERATION))
    if weighed.value < SMALL or weighed.status == "refuted":
        return None
    evidence = [*arm_words(case), *core_words(case)]
    if counted:
        calls = units.count(counted.count, "broadcast")
        evidence.insert(0, f"each step makes {calls} of {units.size(counted.num_bytes)} together")
    evidence.append(f"they take {units.share(weighed.value)} of a traced step while nothing computes")
    return Finding(
        rule="buffer_broadcast",
        mode=case.name,
        severity=severity(weighed.value),
        status=weighed.status,
        title=f"broadcasting buffers before each forward takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=tuple(evidence),
        cause=None,
        remedy="switch the broadcast off if ranks may keep their own buffers: statistics of BatchNorm are read only in "
        "evaluation. Leave it on where training itself reads a buffer that ranks would change differently",
        short="set broadcast_buffers=False",
        code="DistributedDataParallel(model, broadcast_buffers=False)",
        line=adopted_line(case),
        predicted=faster_without(weighed.cost),
    )


RULE = Rule(
    title="Buffers broadcast in every step",
    what="DistributedDataParallel sends rank 0's buffers, such as BatchNorm's statistics, to all ranks before each "
    "forward.",
    why="The forward cannot begin before they have arrived: nothing hides this.",
    how="Broadcasts are counted in one step; the trace shows what they take while nothing computes, on the rank that "
    "waits least. The arm no_comm removes them together with the gradients' communication: of its gain they are "
    "given the part that they are of what is exposed.",
    remedy="DistributedDataParallel(model, broadcast_buffers=False), unless training itself reads a buffer that ranks "
    "change differently.",
    verified=True,
    check=_check,
)
