"""host_sync: the script asks the GPU for a value in every step, and waits."""

from __future__ import annotations

from typing import NamedTuple

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, HostSync, ModeFacts
from dpdoctor.analysis.weighing import SMALL
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import TRACED_STEPS, rank_words


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
    idle, replayed = facts.untraced_lost_to("sync"), facts.waiting_share
    cost = idle if replayed is None else replayed
    if cost.value is None or cost.value < SMALL:
        return None
    advice = _BY_CALL.get(calls[0].call, _VALUES) if calls else _UNKNOWN
    return Finding(
        rule="host_sync",
        mode=facts.name,
        severity=severity(cost.value),
        status="confirmed" if calls else "inferred",
        title=_title(advice.waits_for, cost.value, is_replayed=replayed is not None),
        cost=cost,
        evidence=(
            *_idle(facts, idle),
            *([] if replayed is None else [_runs_ahead(cost.value, facts.mode.step.value)]),
            *(_words(call) for call in calls),
            *([] if facts.mode.step.value else [TRACED_STEPS]),
        ),
        cause=_words(calls[0]) if len(calls) == 1 else None,
        remedy=advice.remedy,
        short_remedy=advice.short,
        code=advice.code,
        line=calls[0].line if calls else None,
        speedup=faster_without(cost),
        speedup_basis="at most",
    )


def _title(waits_for: str, cost: float, *, is_replayed: bool) -> str:
    if is_replayed:
        return f"the host cannot run ahead of the GPU, as it waits for {waits_for}: {units.share(cost)} of each step"
    return f"the GPU runs empty while the host waits for {waits_for}: {units.share(cost)} of each step"


def _idle(facts: ModeFacts, idle: Figure) -> list[str]:
    if not idle.value:
        return []
    idles = f"the GPU idles {units.share(idle.value)} of a step"
    return [f"{idles} because the host waited for it before it launched more{rank_words(facts)}"]


def _runs_ahead(cost: float, step_s: float | None) -> str:
    shorter = (
        f"{units.share(cost)} shorter"
        if step_s is None
        else f"{units.seconds(step_s * (1 - cost))} instead of {units.seconds(step_s)}"
    )
    return (
        "without waiting the host runs ahead, and what it does later, such as loading and launching, hides behind "
        f"kernels that are queued: replayed from the trace without these waits, a step is {shorter}"
    )


class _Remedy(NamedTuple):
    """What the host waits for, and what to do about it."""

    waits_for: str
    remedy: str
    short: str | None = None
    code: str | None = None


_VALUES = _Remedy(
    "its values",
    "keep values on the GPU and ask for them every few hundred steps: add up loss.detach() and call .item() on the sum",
    "read values from the GPU every few hundred steps only",
    "total += loss.detach()  # and total.item() only where it is printed",
)
_ALL_OF_IT = _Remedy(
    "all of its work",
    "take synchronize() out of the loop; to time steps, take the time of many at once, or record events",
    "take synchronize() out of the training loop",
)
_SHAPES = _Remedy(
    "a shape that depends on values",
    "keep shapes that do not depend on values: weigh by the mask, or choose with torch.where, instead of selecting",
    "use torch.where in the place of a selection by values",
    "torch.where(mask, x, 0)",
)
_OVERFLOW = _Remedy(
    "GradScaler to know whether gradients overflowed",
    "train in bfloat16, which needs no GradScaler; or let the optimizer be fused, which asks on the GPU",
    "train in bfloat16, without a GradScaler",
    'torch.autocast("cuda", dtype=torch.bfloat16)  # or torch.optim.AdamW(parameters, fused=True)',
)
_UNKNOWN = _Remedy(
    "it",
    "find what waits: .item(), .cpu(), a tensor that is printed or asked for in an if, synchronize(), copies without "
    "non_blocking=True; nothing of the kind was counted with a line of the script",
)
# By the call that HostSync names; all others ask for values.
_BY_CALL = {
    "synchronize": _ALL_OF_IT,
    "nonzero": _SHAPES,
    "masked_select": _SHAPES,
    "[mask]": _SHAPES,
    "GradScaler.step": _OVERFLOW,
}


def _words(call: HostSync) -> str:
    return f"{call.line} calls {call.call} {units.count(call.count, 'time')} in a step"


RULE = Rule(
    name="host_sync",
    title="Waiting for the GPU",
    what="The script reads a value from the GPU in every step: .item(), print(loss), .cpu(), a tensor in an if.",
    why="The host waits until the GPU is done, and only then launches more: meanwhile the GPU has nothing to do. It "
    "never runs ahead, so that loading and launching do not hide behind kernels either.",
    how="Calls that wait are counted in one step with the script's line. The traced steps are replayed without waits "
    "for values and for all of the GPU's work, with a host as fast as in the step without a profiler; waits for copies "
    "to the GPU stay. Where no such wait can be replayed, it is how long the GPU idles after waits, scaled to the step "
    "without a profiler; of several ranks the one with most counts. On the CPU they cost nothing and nothing is said.",
    remedy="Keep running sums on the GPU and read them every few hundred steps; take synchronize() out of the loop; "
    "keep shapes that do not depend on values.",
    verified=True,
    check=_check,
)
