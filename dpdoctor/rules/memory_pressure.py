"""memory_pressure: memory is nearly full, of a GPU or of the host."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.facts import Peak
from dpdoctor.analysis.weighing import above_zero
from dpdoctor.rules.rule import Rule, Severity
from dpdoctor.rules.wording import shared_words

# Of all memory: where TraceML 0.5 warns, and where it calls pressure critical (gpuprof: 0.90 and 0.97).
WARNING, CRITICAL = 0.92, 0.97


def _check(facts: ModeFacts) -> Finding | None:
    ratios = [(peak.num_bytes / total, peak, total) for peak in facts.memory_peaks if (total := peak.total_bytes)]
    full = [found for found in ratios if found[0] >= WARNING]
    # What is certain goes before what is at most so much.
    fullest = max(full, key=lambda found: (not found[1].is_bound, found[0]), default=None)
    host = _of_host(facts)
    if fullest is None:
        return host
    device = _of_gpu(facts, *fullest)
    is_worse = host is not None and host.severity == "critical" and device.severity != "critical"
    return host if host is not None and (fullest[1].is_bound or is_worse) else device


def _of_gpu(facts: ModeFacts, ratio: float, peak: Peak, total: int) -> Finding:
    # Peaks that cannot have come at once add up to more than there is.
    full = f"up to {units.share(min(ratio, 1.0))}" if peak.is_bound else units.share(ratio)
    return Finding(
        rule="memory_pressure",
        mode=facts.name,
        severity="warning" if peak.is_bound else _severity(ratio),
        status="inferred",
        title=f"{peak.name} was {full} full",
        cost=_cost(facts),
        ranks=peak.ranks if facts.mode.world_size > 1 else (),
        evidence=(
            f"torch's allocator held {units.size(peak.num_bytes)} of {units.size(total)} at most",
            *shared_words(peak),
        ),
        cause=None,
        remedy="leave the allocator room, before one larger batch ends the run: a smaller batch with accumulation, "
        f"activation checkpointing, bfloat16{_sharding(facts)}",
        code="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    )


def _of_host(facts: ModeFacts) -> Finding | None:
    launch = facts.launch
    readings = [s.values for s in (launch.samples if launch else ()) if s.source == "host"]
    used = [
        (values["memory_used_bytes"] / values["memory_total_bytes"], values["memory_total_bytes"])
        for values in readings
        if values.get("memory_total_bytes") and "memory_used_bytes" in values
    ]
    ratio, total = max(used, default=(0.0, 0.0))
    if ratio < WARNING:
        return None
    return Finding(
        rule="memory_pressure",
        mode=facts.name,
        severity=_severity(ratio),
        status="inferred",
        title=f"the host's memory was {units.share(ratio)} full",
        cost=stats.unknown("ratio", "what swapping or dropped file caches cost was not measured"),
        evidence=(f"{units.size(ratio * total)} of {units.size(total)} were in use at most, by all programs together",),
        cause=None,
        remedy=_remedy_of_host(facts),
    )


def _sharding(facts: ModeFacts) -> str:
    """Return, as the last of several remedies, that the model can be sharded, where it is not and there are ranks."""
    can_shard = facts.mode.world_size > 1 and not facts.wrapper.startswith("fsdp")
    return ", or FSDP, which shards parameters and optimizer state" if can_shard else ""


def _remedy_of_host(facts: ModeFacts) -> str:
    if facts.mode.loader is not None and facts.mode.loader.num_workers:
        return (
            "start fewer loader workers or a smaller prefetch_factor, and keep one copy of the dataset: each worker "
            "has its own of what Python objects it touches"
        )
    if facts.mode.world_size > 1:
        return "see what else uses it; each rank has its own copy of what the script loads: map files (np.memmap)"
    return "see what else uses it, and read the data piece by piece, or map files (np.memmap)"


def _cost(facts: ModeFacts) -> Figure:
    """Return the share of a step in which the GPU waits for its allocator, where a trace shows that it does."""
    if not facts.on_gpu or not facts.traces:
        return stats.unknown("ratio", "no trace shows whether the allocator had to wait for memory")
    found = facts.idle_share("allocator")
    if found.value is None or above_zero(found):
        return found
    if not found.value:
        return stats.unknown("ratio", "the allocator did not wait for memory in the trace")
    idle = units.share(found.value)
    return stats.unknown("ratio", f"too few traced steps tell it: in these the GPU idles {idle} of the time for memory")


def _severity(ratio: float) -> Severity:
    return "critical" if ratio >= CRITICAL else "warning"


RULE = Rule(
    name="memory_pressure",
    title="Memory nearly full",
    what="The memory of a GPU or of the host was nearly full.",
    why="torch's allocator then frees and asks anew, which stops the GPU, and one larger batch ends the run; a full "
    "host swaps or drops the files that loaders read.",
    how="The most that torch's allocator held against the GPU's memory; once a second the host's memory in use; from "
    "the trace, how long the GPU idles for its allocator.",
    remedy="Smaller batches with accumulation, activation checkpointing, bfloat16 or FSDP; fewer loader workers.",
    verified=False,
    check=_check,
)
