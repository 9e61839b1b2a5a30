"""What rules read from the traces of a mode: shares of the steps that count for all of its devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from dpdoctor.analysis import TRACE_MODE, Figure, stats
from dpdoctor.analysis.launch_facts import LaunchFacts, shown
from dpdoctor.analysis.trace_budget import CAUSE, part_share, share
from dpdoctor.analysis.traces import Traces
from dpdoctor.analysis.unknown_communication import exposed_ns
from dpdoctor.digest import DeviceStep, Digest
from dpdoctor.rules._base import Case

NS = 1e-9
# A few whole steps more than are lost at the ends.
TRACE_STEPS = 12
# A mode that ended like this trained nothing that a rule could judge.
_NOTHING_TRAINED = frozenset({"failed", "skipped", "inactive"})


def launch_of(case: Case) -> LaunchFacts | None:
    """Return the launch that speaks for the mode; None where it trained nothing."""
    launches = case.analysis.run.modes.get(case.name, ())
    return shown(launches) if launches and case.mode.status not in _NOTHING_TRAINED else None


def traces(case: Case) -> Traces:
    """Return the traces of the mode's ranks; empty where there are none."""
    launch = launch_of(case)
    return launch.traces if launch else Traces(())


def why_no_steps(found: Traces, shows: str) -> str:
    """Return why traces have no step to look at, or that there is none that `shows` what is asked."""
    return found.common.left_out if found else f"without a trace nothing shows {shows}"


def how_to_trace(case: Case) -> str:
    """Return in a clause what would give a trace of enough whole steps; never an option that was given already."""
    asked = case.analysis.run.header.spec.recording.trace_steps
    if case.name == TRACE_MODE:
        return "give traces of more ranks or steps"
    if case.mode.no_trace:
        return case.mode.no_trace
    if asked and not traces(case):
        return "a longer --time-budget leaves time for one"
    return f"profile with --trace-steps {2 * asked or TRACE_STEPS}"


def on_gpu(case: Case) -> bool:
    """Return whether the mode trained on a GPU: its traces or its ranks say so."""
    return any(digest.has_device for digest in traces(case).digests) or any(
        rank.device_type == "cuda" for rank in case.mode.ranks
    )


def idle_share(found: Traces, *causes: str) -> Figure:
    """Return the share of a step in which a device idles for one of these causes; mean over devices."""
    return part_share(found, *map(CAUSE.format, causes))


def untraced_idle(case: Case, found: Traces, *causes: str) -> Figure:
    """Return the share of a step in which the device idles for one of these causes, as it is without a profiler.

    A profiler slows the host and hardly the device: where the untraced step is known, what it leaves beside the
    device's work is the idle time, and the trace says only what part of it is of these causes.
    """
    traced, idle, step_s = idle_share(found, *causes), part_share(found, "idle"), case.mode.step.value
    if not step_s or not idle.value or traced.value is None:
        return traced
    untraced = max(0.0, 1 - _busy_s(found) / step_s)
    return stats.scaled(traced, min(1.0, untraced / idle.value))


def _busy_s(found: Traces) -> float:
    def busy(step: DeviceStep) -> int:
        return step.budget.total_ns - step.budget.idle_ns

    return fmean(busy(step) for steps in found.common.steps for step in steps) * NS


def exposed_calls_share(found: Traces, wanted: Callable[[str, int], bool]) -> Figure:
    """Return the share of a step that wanted collectives take while nothing computes, on the rank with least of it.

    `wanted` is asked with a call's operation and bytes (-1: unknown). The rank with least waits least for the others:
    what is left is transfer. Calls that overlap are counted once at most, by the step's own exposed communication.
    """
    counted = [digest for digest in found.digests if any(device.steps for device in digest.devices)]
    exposed = [_exposed_ns(digest, wanted) for digest in counted]

    def least(steps: Sequence[DeviceStep]) -> float:
        of_calls = min(by_step.get(steps[0].step, 0) for by_step in exposed)
        return min(of_calls, *map(exposed_ns, steps))

    reason = found.why_unknown
    return share(found, least) if reason is None else stats.unknown("ratio", reason)


def _exposed_ns(digest: Digest, wanted: Callable[[str, int], bool]) -> dict[int, int]:
    calls, found = digest.calls, defaultdict[int, int](int)
    for operation, num_bytes, step, ns in zip(
        calls.operation, calls.num_bytes, calls.step, calls.exposed_ns, strict=True
    ):
        if wanted(calls.names[operation], num_bytes):
            found[step] += ns
    return dict(found)
