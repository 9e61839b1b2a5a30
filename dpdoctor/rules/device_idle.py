"""device_idle: the GPU idles for much of a step, and no other finding says why."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding
from dpdoctor.digest import IDLE_CAUSES
from dpdoctor.rules import data_starved, gc_pauses, host_sync, launch_bound, memory_pressure, own_code, straggler
from dpdoctor.rules._base import CannotTell, Case, Rule, main_part
from dpdoctor.rules._traced import idle_share, on_gpu, traces, untraced_idle, why_no_steps

# No peer has a threshold for idle time of any cause; a profiler alone makes a GPU idle for a tenth and more.
WARNING = 0.25
# A cause with less of a step is not worth naming.
NAMED = 0.05
# Rules that tell of idle time, with the causes that they tell of.
TOLD = (
    (data_starved, ("data",)),
    (gc_pauses, ("gc",)),
    (host_sync, ("sync",)),
    (launch_bound, launch_bound.CAUSES),
    (memory_pressure, ("allocator",)),
    (own_code, own_code.CAUSES),
    (straggler, ("comm_wait",)),
)
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


def _check(case: Case) -> Finding | CannotTell | None:
    found = traces(case)
    if not on_gpu(case):
        return None
    if not found.common.steps:
        return CannotTell(reason=why_no_steps(found, "how long the GPU idles"))
    causes = _untold(case)
    cost = untraced_idle(case, found, *causes)
    if cost.value is None or cost.value < WARNING:
        return None
    parts = {cause: untraced_idle(case, found, cause).value or 0.0 for cause in causes}
    main = main_part(parts, cost.value)
    return Finding(
        rule="device_idle",
        mode=case.name,
        severity="warning",
        status="inferred",
        title=f"the device idles in {units.share(cost.value)} of each step",
        cost=cost,
        evidence=(*_words(parts), *_of_traces(case, idle_share(found, *causes))),
        cause=WORDS[main] if main is not None and main != "unknown" else None,
        remedy=REMEDIES.get(max(parts, key=lambda cause: parts[cause])),
    )


def _untold(case: Case) -> list[str]:
    """Return the causes of idle time that no other finding tells of."""
    told = {cause for rule, causes in TOLD if isinstance(rule.RULE.check(case), Finding) for cause in causes}
    return [cause for cause in IDLE_CAUSES if cause not in told]


def _words(parts: dict[str, float]) -> list[str]:
    largest = sorted(parts, key=lambda cause: -parts[cause])
    named = [cause for cause in largest if parts[cause] >= NAMED]
    return [f"in {units.share(parts[cause])} of a step it idles while {WORDS[cause]}" for cause in named or largest[:1]]


def _of_traces(case: Case, traced: Figure) -> tuple[str, ...]:
    if case.mode.step.value is None:
        return ("these are traced steps: without a profiler the host is faster",)
    return (f"in the traced steps, which a profiler slows, it is {units.share(traced.value or 0.0)}",)


RULE = Rule(
    title="The device idles",
    what="For much of a step nothing runs on the GPU, neither computing nor communicating nor copying, and none of the "
    "other findings says why.",
    why="What the GPU does not do meanwhile is lost; mostly the host does not launch work in time, or kernels wait for "
    "each other.",
    how="From the trace: time in which the GPU idles, by what the launching thread did meanwhile, scaled to the step "
    "without a profiler; without the causes that other findings tell of.",
    remedy="Look at the largest cause in the timeline: fewer and larger launches, no waiting between streams.",
    verified=False,
    check=_check,
)
