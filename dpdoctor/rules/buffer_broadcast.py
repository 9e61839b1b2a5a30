"""buffer_broadcast: DDP sends rank 0's buffers to all ranks before every forward."""

from __future__ import annotations

import re

from dpdoctor import units
from dpdoctor.analysis import TRACE_MODE, Finding, ModeFacts
from dpdoctor.analysis.weighing import SMALL
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import ablation_words, core_words, weigh_part, why_no_steps, wrapped_line

OPERATION = "broadcast"
# The option that switches it off, and the one that torch deprecates since then.
OPTION, OLDER_OPTION, SINCE = "forward_sync_buffers", "broadcast_buffers", (2, 13)


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    if not facts.communicates or facts.wrapper not in ("ddp", TRACE_MODE):
        return None
    wrappers = [way for way in facts.ways if way.name == "ddp"]
    if wrappers and all(way.buffers == 0 for way in wrappers):
        return None  # a library broadcasts, such as a flag in each step
    counted = facts.mode.counters.collectives.get(OPERATION) if facts.mode.counters else None
    if (reason := _why_unknown(facts, is_counted=counted is not None)) is not None:
        return CannotTell(reason=reason)
    # What others broadcast is not DistributedDataParallel's to switch off.
    is_others = facts.name == TRACE_MODE and not any(digest.buckets for digest in facts.traces.digests)
    if is_others or not facts.traces.with_calls.steps:
        return None
    weighed = weigh_part(facts, facts.exposed_calls_share(lambda operation, _: operation == OPERATION))
    if weighed.value < SMALL or weighed.status == "refuted":
        return None
    evidence = [*ablation_words(facts), *core_words(facts)]
    if counted:
        calls = units.count(counted.count, "broadcast")
        evidence.insert(0, f"each step makes {calls} of {units.size(counted.num_bytes)} together")
    option = _option(facts)
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
        short_remedy=f"set {option}=False",
        code=f"DistributedDataParallel(model, {option}=False)",
        line=wrapped_line(facts),
        speedup=faster_without(weighed.cost),
    )


def _why_unknown(facts: ModeFacts, *, is_counted: bool) -> str | None:
    """Return why it cannot be told what broadcasting buffers costs; None: it can, or there is nothing to tell."""
    own = next((way for way in facts.own_exchanges if OPERATION in way.facts), None)
    if own is not None:
        return f"the script broadcasts by itself, too, at {own.line}: which is whose cannot be told"
    if is_counted and not facts.traces.common.steps and facts.traces.why_unknown is None:
        return f"buffers are broadcast, and {why_no_steps(facts, 'what that costs')}"
    return facts.traces.why_unknown


def _option(facts: ModeFacts) -> str:
    """Return what the torch of the run calls it; of traces alone, which do not tell it, what all do."""
    told = "" if facts.name == TRACE_MODE else facts.fingerprint.packages.get("torch", "")
    version = re.match(r"(\d+)\.(\d+)", told)
    return OPTION if version and (int(version[1]), int(version[2])) >= SINCE else OLDER_OPTION


RULE = Rule(
    name="buffer_broadcast",
    title="Buffers broadcast in every step",
    what="DistributedDataParallel sends rank 0's buffers, such as BatchNorm's statistics, to all ranks before each "
    "forward.",
    why="The forward cannot begin before they have arrived: nothing hides this.",
    how="Broadcasts are counted in one step; the trace shows what they take while nothing computes, on the rank that "
    "waits least. The ablation no_comm removes them together with the gradients' communication: of its gain they are "
    "given the part that they are of what is exposed.",
    remedy=f"DistributedDataParallel(model, {OPTION}=False), whose name is {OLDER_OPTION} before torch "
    f"{'.'.join(map(str, SINCE))}, unless training itself reads a buffer that ranks change differently.",
    verified=True,
    check=_check,
)
