"""h2d_exposed: the device waits while its inputs are copied to it."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import AblationSummary, Figure, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.weighing import SMALL, Weighed, weigh
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import rank_words

# One replays batches from the host, the other batches that already are on the device: their difference is the copy.
ON_HOST, ON_DEVICE = "cached_batches", "cached_device"


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    if not facts.on_gpu:
        return None
    claim, ablation = _claim(facts), _ablation(facts)
    if claim.value is None and ablation is None:
        return CannotTell(reason=f"{claim.reason}; the ablations {ON_HOST} and {ON_DEVICE} would tell")
    weighed = weigh(claim, ablation)
    if max(weighed.value, claim.value or 0.0) < SMALL:
        return None
    refuted = weighed.status == "refuted"
    pageable = _is_pageable(facts)
    return Finding(
        rule="h2d_exposed",
        mode=facts.name,
        severity="info" if refuted else severity(weighed.value),
        status=weighed.status,
        title=_title(claim, weighed),
        cost=weighed.cost,
        evidence=_evidence(facts, claim, ablation),
        cause="batches lie in pageable memory: the host copies them once more and waits" if pageable else None,
        remedy=None if refuted else _remedy(pageable=pageable),
        short_remedy=None if refuted else _short(pageable=pageable),
        code=_code(facts) if pageable and not refuted else None,
        line=facts.mode.loader.arguments_line if facts.mode.loader else None,
        speedup=None if refuted else faster_without(weighed.cost),
    )


def _claim(facts: ModeFacts) -> Figure:
    """Return the share of a traced step in which the device does nothing but receive."""
    return facts.lost_to_receiving


def _ablation(facts: ModeFacts) -> AblationSummary | None:
    """Return what batches on the device gain beyond batches on the host; None: one of both was not run."""
    host, device = facts.ablation(ON_HOST), facts.ablation(ON_DEVICE)
    if host is None or device is None:
        return None
    return AblationSummary(
        gain=stats.combination([(1, device.gain), (-1, host.gain)], "s"),
        share=stats.combination([(1, device.share), (-1, host.share)], "ratio"),
        step=device.step,
    )


def _is_pageable(facts: ModeFacts) -> bool:
    """Return whether most of what is copied to the device lies in pageable memory: by the trace, else by the loader."""
    copies = [copy for digest in facts.traces.digests for copy in digest.kernels]
    pageable, pinned = (
        sum(c.total_ns for c in copies if f"{kind} -> Device" in c.name) for kind in ("Pageable", "Pinned")
    )
    if pageable or pinned:
        return pageable > pinned
    return facts.mode.loader is not None and not facts.mode.loader.pin_memory


def _title(claim: Figure, weighed: Weighed) -> str:
    if weighed.status == "refuted":
        return f"inputs are copied in {units.share(claim.value or 0.0)} of each step, but nothing is gained without"
    return f"the device waits for its inputs to be copied: {units.share(weighed.value)} of each step"


def _code(facts: ModeFacts) -> str:
    pins = facts.mode.loader is not None and facts.mode.loader.pin_memory
    copied = "x.pin_memory().to(device, non_blocking=True)" if pins else "x.to(device, non_blocking=True)"
    return f"x = {copied}" if pins else f"DataLoader(..., pin_memory=True); x = {copied}"


def _remedy(*, pageable: bool) -> str:
    if pageable:
        return "copy batches from pinned memory without waiting; the copy then runs beside computing"
    return "copy the next batch on a stream of its own while the present one is trained on, or send it in fewer bytes"


def _short(*, pageable: bool) -> str:
    if pageable:
        return "pin batches (pin_memory=True) and copy them with non_blocking=True"
    return "copy the next batch while the present one is trained on"


def _evidence(facts: ModeFacts, claim: Figure, ablation: AblationSummary | None) -> tuple[str, ...]:
    found = []
    if claim.value is not None:
        received = units.share(claim.value)
        found.append(f"In the trace nothing but copies to the device runs in {received} of a step{rank_words(facts)}.")
    if ablation is not None and ablation.gain.value is not None:
        gain = units.seconds(ablation.gain.value)
        found.append(f"With batches on the device a step is {gain} shorter than with batches on the host.")
    if facts.mode.counters and facts.mode.counters.inputs:
        inputs = facts.mode.counters.inputs
        what = f"{units.size(sum(tensor.num_bytes for tensor in inputs))} enter the model"
        found.append(f"{what} in each step, as {', '.join(dict.fromkeys(tensor.dtype for tensor in inputs))}.")
    return tuple(found)


RULE = Rule(
    name="h2d_exposed",
    title="The device waits for copies of its inputs",
    what="Batches are copied from the host's memory to the GPU while the GPU does nothing else.",
    why="The copy is not started before the batch is needed, or it cannot run beside computing, because the memory "
    "that it reads is not pinned.",
    how="In the trace: time in which copies to the device run and no kernel does, where ranks wait for each other on "
    "the one that receives longest. By experiment: batches that already lie on the device are replayed and compared "
    "with batches replayed from the host's memory.",
    remedy="Pin the loader's batches and copy with non_blocking=True; send small types, such as uint8 images, and "
    "convert them on the device.",
    verified=True,
    check=_check,
)
