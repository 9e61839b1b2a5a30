"""host_sync: the script asks the GPU for a value in every step, and waits."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding, HostSync, ModeFacts
from dpdoctor.analysis.base.weighing import SMALL
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    # On the CPU every operator is done when its call returns: there is nothing to wait for.
    if not facts.on_gpu:
        return None
    calls = sorted(facts.mode.counters.syncs, key=lambda call: -call.count) if facts.mode.counters else []
    found = facts.traces
    common = found.common
    if not common.steps:
        asked = f"a step waits for the GPU at {calls[0].line}, but " if calls else ""
        return CannotTell(
            reason=asked + (common.left_out if found else "no trace shows what waiting for the GPU costs")
        )
    cost = facts.idle_share("sync")
    if cost.value is None or cost.value < SMALL:
        return None
    return Finding(
        rule="host_sync",
        mode=facts.name,
        severity=severity(cost.value),
        status="confirmed" if calls else "inferred",
        title=f"the GPU runs empty while the host waits for its values: {units.share(cost.value)} of each step",
        cost=cost,
        evidence=(
            f"the GPU idles {units.share(cost.value)} of a traced step because the host waited for it before it "
            "launched more",
            *(_words(call) for call in calls),
        ),
        cause=_words(calls[0]) if len(calls) == 1 else None,
        remedy="keep values on the GPU and ask for them every few hundred steps: add up loss.detach() and call .item() "
        "on the sum",
        short_remedy="read values from the GPU every few hundred steps only",
        code="total += loss.detach()  # and total.item() only where it is printed",
        line=calls[0].line if calls else None,
        speedup=faster_without(cost),
        speedup_basis="at most",
    )


def _words(call: HostSync) -> str:
    return f"{call.line} calls {call.call} {units.count(call.count, 'time')} in a step"


RULE = Rule(
    name="host_sync",
    title="Waiting for the GPU",
    what="The script reads a value from the GPU in every step: .item(), print(loss), .cpu(), a tensor in an if.",
    why="The host waits until the GPU is done, and only then launches more: meanwhile the GPU has nothing to do.",
    how="Calls that wait are counted in one step with the script's line; the trace shows how long the GPU idles after "
    "them. On the CPU they cost nothing and nothing is said.",
    remedy="Keep running sums on the GPU and read them every few hundred steps.",
    verified=False,
    check=_check,
)
