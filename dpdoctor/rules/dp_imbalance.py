"""dp_imbalance: nn.DataParallel gives one GPU more to do than the others."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.weighing import SMALL
from dpdoctor.digest import Digest
from dpdoctor.rules.rule import Rule, faster_without, severity

NS = 1e-9


def _check(facts: ModeFacts) -> Finding | None:
    return next((finding for digest in facts.traces.digests if (finding := _of_rank(facts, digest))), None)


def _of_rank(facts: ModeFacts, digest: Digest) -> Finding | None:
    steps = Traces((digest,)).common.steps
    if digest.data_parallel is None or len(digest.data_parallel.device_ns) < 2 or not steps:
        return None
    busy = {index: parts["busy"] for index, parts in digest.data_parallel.device_ns.items()}
    fullest = max(busy, key=lambda index: busy[index])
    step_ns = fmean(step.breakdown.total_ns for of_step in steps for step in of_step)
    # Shared out evenly, the fullest device would have the mean of all.
    share = (busy[fullest] - fmean(busy.values())) / step_ns
    if share < SMALL:
        return None
    cost = stats.mean_interval([share], "ratio")
    others = fmean(ns for index, ns in busy.items() if index != fullest)
    return Finding(
        rule="dp_imbalance",
        mode=facts.name,
        severity=severity(share),
        status="inferred",
        title=f"GPU {fullest} does more than the rest, which waits for it: {units.share(share)} of each step",
        cost=cost,
        evidence=(
            f"GPU {fullest} is busy for {units.seconds(busy[fullest] * NS)} of a traced step, another one for "
            f"{units.seconds(others * NS)}",
            *_more(digest.data_parallel.device_ns, fullest),
            *_memory(facts, fullest),
        ),
        cause=None,
        remedy="use DistributedDataParallel, which has no first GPU; or compute the loss in the module's forward, so "
        "that no outputs are gathered on one GPU",
        short_remedy="use DistributedDataParallel",
        code="DistributedDataParallel(model)",
        speedup=faster_without(cost),
    )


def _more(device_ns: Mapping[int, Mapping[str, float]], fullest: int) -> tuple[str, ...]:
    """Return which part of the work makes the fullest device busier than the others."""
    others = [parts for index, parts in device_ns.items() if index != fullest]
    excess = {
        part: ns - fmean(parts.get(part, 0.0) for parts in others)
        for part, ns in device_ns[fullest].items()
        if part != "busy"
    }
    part = max(excess, key=lambda name: excess[name], default="")
    if not part or excess[part] <= 0:
        return ()
    named = "backward, loss and update" if part == "other" else part
    return (f"most of it is {named}: {units.seconds(excess[part] * NS)} more than elsewhere",)


def _memory(facts: ModeFacts, fullest: int) -> tuple[str, ...]:
    # Of the launch that the trace is of.
    records = [rank.record for rank in facts.launch.ranks if rank.record] if facts.launch else []
    devices = records[0].devices if records else ()
    peaks = [device.peak_memory_bytes for device in devices if device.peak_memory_bytes is not None]
    if len(peaks) != len(devices) or len(peaks) < 2 or fullest >= len(peaks):
        return ()
    others = fmean(peak for index, peak in enumerate(peaks) if index != fullest)
    return (f"it holds {units.size(peaks[fullest])} at most, another one {units.size(others)}",)


RULE = Rule(
    name="dp_imbalance",
    title="One GPU of DataParallel does more",
    what="nn.DataParallel gathers outputs, computes the loss and updates the parameters on the first GPU alone.",
    why="The others wait while the first one works, and its memory is full first, which limits the batch for all.",
    how="From the trace: how long each GPU is busy with what scatter, replicate, gather, reduce and the rest launched, "
    "and the first one's excess over the mean; memory from torch's allocator.",
    remedy="DistributedDataParallel, or the loss inside of the module's forward.",
    verified=False,
    check=_check,
)
