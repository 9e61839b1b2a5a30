"""h2d_exposed: the device waits while its inputs are copied to it."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import ArmSummary, Figure, Finding, stats
from dpdoctor.analysis.trace_budget import part_share
from dpdoctor.rules._base import SMALL, CannotTell, Case, Rule, Weighed, faster_without, measured_arm, severity, weigh
from dpdoctor.rules._traced import on_gpu, traces

# One replays batches from the host, the other batches that already are on the device: their difference is the copy.
ON_HOST, ON_DEVICE = "cached_batches", "cached_device"


def _check(case: Case) -> Finding | CannotTell | None:
    if not on_gpu(case):
        return None
    claim, arm = _claim(case), _arm(case)
    if claim.value is None and arm is None:
        return CannotTell(reason=f"{claim.reason}; the arms {ON_HOST} and {ON_DEVICE} would tell")
    weighed = weigh(claim, arm)
    if max(weighed.value, claim.value or 0.0) < SMALL:
        return None
    refuted = weighed.status == "refuted"
    pageable = case.mode.loader is not None and not case.mode.loader.pin_memory
    return Finding(
        rule="h2d_exposed",
        mode=case.name,
        severity="info" if refuted else severity(weighed.value),
        status=weighed.status,
        title=_title(claim, weighed),
        cost=weighed.cost,
        evidence=_evidence(case, claim, arm),
        cause="batches lie in pageable memory: the host copies them once more and waits" if pageable else None,
        remedy=None if refuted else _remedy(pageable=pageable),
        code="DataLoader(..., pin_memory=True); x = x.to(device, non_blocking=True)"
        if pageable and not refuted
        else None,
        line=case.mode.loader.arguments_line if case.mode.loader else None,
        predicted=None if refuted else faster_without(weighed.cost),
    )


def _claim(case: Case) -> Figure:
    """Return the share of a traced step in which the device does nothing but receive."""
    return part_share(traces(case), "h2d")


def _arm(case: Case) -> ArmSummary | None:
    """Return what batches on the device gain beyond batches on the host; None: one of both was not run."""
    host, device = measured_arm(case, ON_HOST), measured_arm(case, ON_DEVICE)
    if host is None or device is None:
        return None
    return ArmSummary(
        gain=stats.combination([(1, device.gain), (-1, host.gain)], "s"),
        share=stats.combination([(1, device.share), (-1, host.share)], "ratio"),
        step=device.step,
    )


def _title(claim: Figure, weighed: Weighed) -> str:
    if weighed.status == "refuted":
        return f"inputs are copied in {units.share(claim.value or 0.0)} of each step, but nothing is gained without"
    return f"the device waits for its inputs to be copied: {units.share(weighed.value)} of each step"


def _remedy(*, pageable: bool) -> str:
    if pageable:
        return "let the loader pin its batches and copy them without waiting; the copy then runs beside computing"
    return "copy the next batch on a stream of its own while the present one is trained on, or send it in fewer bytes"


def _evidence(case: Case, claim: Figure, arm: ArmSummary | None) -> tuple[str, ...]:
    found = []
    if claim.value is not None:
        found.append(f"In the trace nothing but copies to the device runs in {units.share(claim.value)} of a step.")
    if arm is not None and arm.gain.value is not None:
        gain = units.seconds(arm.gain.value)
        found.append(f"With batches on the device a step is {gain} shorter than with batches on the host.")
    if case.mode.counters and case.mode.counters.inputs:
        inputs = case.mode.counters.inputs
        what = f"{units.size(sum(tensor.num_bytes for tensor in inputs))} enter the model"
        found.append(f"{what} in each step, as {', '.join(dict.fromkeys(tensor.dtype for tensor in inputs))}.")
    return tuple(found)


RULE = Rule(
    title="The device waits for copies of its inputs",
    what="Batches are copied from the host's memory to the GPU while the GPU does nothing else.",
    why="The copy is not started before the batch is needed, or it cannot run beside computing, because the memory "
    "that it reads is not pinned.",
    how="In the trace: time in which copies to the device run and no kernel does. By experiment: batches that already "
    "lie on the device are replayed and compared with batches replayed from the host's memory.",
    remedy="Pin the loader's batches and copy with non_blocking=True; send small types, such as uint8 images, and "
    "convert them on the device.",
    verified=False,
    check=_check,
)
