"""device_idle: the GPU idles for much of a step, and no other finding says why."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts, breakdown
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.weighing import main_part
from dpdoctor.digest import IDLE_CAUSES
from dpdoctor.rules.rule import CannotTell, Rule, Said
from dpdoctor.rules.wording import TRACED_STEPS, why_no_steps

# No peer has a threshold for idle time of any cause; a profiler alone makes a GPU idle for a tenth and more.
WARNING = 0.25
# A cause with less of a step is not worth naming.
NAMED = 0.05
# Rules that tell of idle time, with the causes that they tell of.
TOLD = {
    "data_starved": ("data",),
    "gc_pauses": ("gc",),
    "host_sync": ("sync",),
    "launch_bound": breakdown.LAUNCHING,
    "memory_pressure": ("allocator",),
    "own_code": breakdown.OWN_CODE,
    "straggler": ("comm_wait",),
}
WORDS = {
    "data": "the host waits for the loader",
    "sync": "the host waits for the device before it launches more",
    "allocator": "the allocator works",
    "gc": "Python collects garbage",
    "comm_wait": "the host waits for a collective",
    "annotation": "the host is in a span that the script named",
    "optimizer": "the host launches the update",
    "dispatch": "the host runs operators",
    "script": "the host is in code of the loop",
    "python": "the host runs Python between operators",
    "launch_latency": "a kernel was launched and has not begun",
    "dependency": "kernels wait for other work of the device, such as another stream",
    "unknown": "the trace does not say what the host did",
}
REMEDIES = {
    "dependency": "look in the timeline at what kernels wait for, such as events of other streams or a collective that "
    "another rank joins late",
    "python": "look in the timeline at what the host does between operators, and launch the same work by fewer calls",
    "dispatch": "launch the same work by fewer operators, such as by torch.compile, or give each one more by a larger "
    "batch",
}

OVER_GLOO = (
    'let NCCL exchange what is on GPUs, init_process_group("nccl"): gloo copies it to the host, exchanges it there and '
    "copies it back"
)


def _check(facts: ModeFacts, parts: Sequence[Finding] = ()) -> Said:
    if not facts.on_gpu:
        return None
    if not facts.traces.common.steps:
        return CannotTell(reason=why_no_steps(facts, "how long the GPU idles"))
    told = {cause for part in parts if part.cost.value is not None for cause in TOLD[part.rule]}
    causes = [cause for cause in IDLE_CAUSES if cause not in told]
    cost = facts.untraced_idle(*causes)
    hidden = _hidden(facts, parts)
    if hidden is not None:
        cost = stats.combination([(1, cost), (-1, hidden)], "ratio")
    if cost.value is None or cost.value < WARNING:
        return None
    by_cause = {cause: facts.untraced_idle(cause).value or 0.0 for cause in causes}
    # Any of the causes may be what is hidden.
    less = 0.0 if hidden is None else hidden.value or 0.0
    main = main_part({cause: share - less for cause, share in by_cause.items()}, cost.value)
    return Finding(
        rule="device_idle",
        mode=facts.name,
        severity="warning",
        status="inferred",
        title=f"the device idles in {units.share(cost.value)} of each step",
        cost=cost,
        evidence=(
            *_words(by_cause),
            *_of_traces(facts, facts.idle_share(*causes)),
            *([f"without the waits of the finding host_sync it is {units.share(less)} of a step less"] if less else []),
        ),
        cause=WORDS[main] if main is not None and main != "unknown" else None,
        remedy=_remedy(facts, max(by_cause, key=lambda cause: by_cause[cause])),
    )


def _hidden(facts: ModeFacts, parts: Sequence[Finding]) -> Figure | None:
    """Return the idle time of other causes that goes away with the waits of host_sync, too; None: there is none."""
    if all(part.rule != "host_sync" for part in parts):
        return None
    hidden = stats.combination([(1, facts.mean_waiting_share), (-1, facts.untraced_idle("sync"))], "ratio")
    return hidden if (hidden.value or 0.0) > 0 else None


def _remedy(facts: ModeFacts, largest: str) -> str | None:
    """Return what to do about the largest cause; None: nothing that holds for every script."""
    if largest == "comm_wait" and any(digest.backend == "gloo" for digest in facts.traces.digests):
        return OVER_GLOO
    return REMEDIES.get(largest)


def _words(parts: dict[str, float]) -> list[str]:
    largest = sorted(parts, key=lambda cause: -parts[cause])
    named = [cause for cause in largest if parts[cause] >= NAMED]
    return [f"in {units.share(parts[cause])} of a step it idles while {WORDS[cause]}" for cause in named or largest[:1]]


def _of_traces(facts: ModeFacts, traced: Figure) -> tuple[str, ...]:
    if facts.mode.step.value is None:
        return (TRACED_STEPS,)
    return (f"in the traced steps, which a profiler slows, it is {units.share(traced.value or 0.0)}",)


RULE = Rule(
    name="device_idle",
    title="The device idles",
    what="For much of a step nothing runs on the GPU, neither computing nor communicating nor copying, and none of the "
    "other findings says why.",
    why="What the GPU does not do meanwhile is lost; mostly the host does not launch work in time, or kernels wait for "
    "each other.",
    how="From the trace: time in which the GPU idles, by what the launching thread did meanwhile, scaled to the step "
    "without a profiler, the mean of all devices; without the causes that other findings tell of, and what hides "
    "behind kernels without the waits of host_sync.",
    remedy="Look at the largest cause in the timeline: fewer and larger launches, no waiting between streams.",
    verified=False,
    check=_check,
    parts=tuple(TOLD),
    beside=_check,
)
