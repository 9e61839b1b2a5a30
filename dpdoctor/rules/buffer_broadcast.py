"""buffer_broadcast: DDP sends rank 0's buffers to all ranks before every forward."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.base.weighing import SMALL
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import ablation_words, core_words, weigh_part, wrapped_line

OPERATION = "broadcast"


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    # Of whom torch knows nothing broadcasts what is not DistributedDataParallel's to switch off.
    is_other = facts.name == "fsdp" or (facts.mode.native is not None and facts.wrapper != "ddp")
    if not facts.communicates or is_other:
        return None
    counted = facts.mode.counters.collectives.get(OPERATION) if facts.mode.counters else None
    found = facts.traces
    if (reason := facts.traces.why_unknown) is not None:
        return CannotTell(reason=reason)
    if not found.common.steps:
        if not counted:
            return None
        return CannotTell(
            reason="buffers are broadcast, and no traced step is whole on every device to show what it costs"
        )
    weighed = weigh_part(facts, facts.exposed_calls_share(lambda operation, _: operation == OPERATION))
    if weighed.value < SMALL or weighed.status == "refuted":
        return None
    evidence = [*ablation_words(facts), *core_words(facts)]
    if counted:
        calls = units.count(counted.count, "broadcast")
        evidence.insert(0, f"each step makes {calls} of {units.size(counted.num_bytes)} together")
    evidence.append(f"they take {units.share(weighed.value)} of a traced step while nothing computes")
    return Finding(
        rule="buffer_broadcast",
        mode=facts.name,
        severity=severity(weighed.value),
        status=weighed.status,
        title=f"broadcasting buffers before each forward takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=tuple(evidence),
        cause=None,
        remedy="switch the broadcast off if ranks may keep their own buffers: statistics of BatchNorm are read only in "
        "evaluation. Leave it on where training itself reads a buffer that ranks would change differently",
        short_remedy="set broadcast_buffers=False",
        code="DistributedDataParallel(model, broadcast_buffers=False)",
        line=wrapped_line(facts),
        speedup=faster_without(weighed.cost),
    )


RULE = Rule(
    name="buffer_broadcast",
    title="Buffers broadcast in every step",
    what="DistributedDataParallel sends rank 0's buffers, such as BatchNorm's statistics, to all ranks before each "
    "forward.",
    why="The forward cannot begin before they have arrived: nothing hides this.",
    how="Broadcasts are counted in one step; the trace shows what they take while nothing computes, on the rank that "
    "waits least. The ablation no_comm removes them together with the gradients' communication: of its gain they are "
    "given the part that they are of what is exposed.",
    remedy="DistributedDataParallel(model, broadcast_buffers=False), unless training itself reads a buffer that ranks "
    "change differently.",
    verified=True,
    check=_check,
)
