"""dp_overhead: scattering, replicating, gathering and reducing by nn.DataParallel, in every step."""

from __future__ import annotations

from statistics import fmean

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts, ModeSummary
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.weighing import SMALL, Weighed, weigh_against
from dpdoctor.digest import DataParallelCost, Digest
from dpdoctor.rules.rule import Rule, faster_without, severity

NS = 1e-9
PARTS = ("scatter", "replicate", "gather", "reduce")


def _check(facts: ModeFacts) -> Finding | None:
    return next((finding for digest in facts.traces.digests if (finding := _of_rank(facts, digest))), None)


def _of_rank(facts: ModeFacts, digest: Digest) -> Finding | None:
    steps = Traces((digest,)).common.steps
    if digest.data_parallel is None or not steps:
        return None
    step_ns = fmean(step.breakdown.total_ns for of_step in steps for step in of_step)
    host_ns = _host_ns(digest.data_parallel)
    share = min(sum(host_ns.values()), _removable_ns(digest.data_parallel, step_ns)) / step_ns
    ratio, is_measured = _over_ddp(facts), _is_experiment(facts)
    weighed = _weighed(stats.mean_interval([share], "ratio"), ratio if is_measured else None)
    if weighed.value < SMALL or weighed.status == "refuted":
        return None
    return Finding(
        rule="dp_overhead",
        mode=facts.name,
        severity=severity(weighed.value),
        status=weighed.status,
        title=f"DataParallel's own work takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=(
            "on the host, in each traced step: "
            + ", ".join(f"{part} {units.seconds(ns * NS)}" for part, ns in host_ns.items()),
            f"the replicas themselves run for {units.seconds(digest.data_parallel.parallel_apply_ns * NS)}, their "
            "threads sharing one interpreter",
            *_ddp_words(facts, ratio),
        ),
        cause=None,
        remedy="use DistributedDataParallel: one process per GPU, replicas that stay, and gradients reduced during the "
        "backward",
        short_remedy="use DistributedDataParallel",
        code="DistributedDataParallel(model)  # started by torchrun --nproc-per-node=gpu",
        speedup=ratio if is_measured else faster_without(weighed.cost),
        speedup_basis="measured" if is_measured else "predicted",
    )


def _host_ns(cost: DataParallelCost) -> dict[str, float]:
    return dict(zip(PARTS, (cost.scatter_ns, cost.replicate_ns, cost.gather_ns, cost.reduce_ns), strict=True))


def _removable_ns(cost: DataParallelCost, step_ns: float) -> float:
    """Return what of a step is left beside the work that training itself gives to the fullest device."""
    own = [parts.get("parallel_apply", 0.0) + parts.get("other", 0.0) for parts in cost.device_ns.values()]
    return max(0.0, step_ns - max(own, default=0.0))


def _ddp(facts: ModeFacts) -> ModeSummary | None:
    """Return what ddp gave on as many devices in the same run; None: it was not run, or not to its end."""
    ddp = facts.modes.get("ddp")
    return ddp if ddp is not None and ddp.status == "ok" and ddp.num_devices == facts.mode.num_devices else None


def _over_ddp(facts: ModeFacts) -> Figure:
    """Return ddp's throughput over this mode's."""
    ddp = _ddp(facts)
    if ddp is None:
        return stats.unknown("x", "ddp was not run on the same devices")
    return stats.ratio(ddp.throughput, facts.mode.throughput, "x")


def _weighed(claim: Figure, ratio: Figure | None) -> Weighed:
    """Return what the trace's share of a step costs, given what ddp gives, which does none of this; None: not known."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return Weighed(cost=claim, status="inferred")
    gained = _share_gained(ratio)
    if ratio.high < 1:
        return Weighed(cost=gained, status="refuted")
    weighed = weigh_against(claim, gained)
    # What else ddp does better is no part of it.
    return replace(weighed, cost=min(weighed.cost, claim, key=lambda found: found.value or 0.0))


def _share_gained(ratio: Figure) -> Figure:
    value, low, high = (None if x is None else 1 - 1 / x for x in (ratio.value, ratio.low, ratio.high))
    return replace(ratio, value=value, low=low, high=high, unit="ratio")


def _is_experiment(facts: ModeFacts) -> bool:
    """Return whether what is advised was measured, with equal batches: ddp on the same devices."""
    ddp = _ddp(facts)
    return ddp is not None and _over_ddp(facts).value is not None and _equal_batches(facts.mode, ddp)


def _equal_batches(dp: ModeSummary, ddp: ModeSummary) -> bool:
    a, b = dp.batch.per_device, ddp.batch.per_device
    return a is not None and b is not None and abs(a - b) < 0.5


def _ddp_words(facts: ModeFacts, ratio: Figure) -> tuple[str, ...]:
    ddp = _ddp(facts)
    if ddp is None or ratio.value is None:
        return ()
    batch = "the same batch" if _equal_batches(facts.mode, ddp) else "another batch"
    return (f"ddp gave {units.times(ratio.value)} of its throughput on the same devices, with {batch} per device",)


RULE = Rule(
    name="dp_overhead",
    title="DataParallel's own work",
    what="nn.DataParallel copies the model to every GPU, scatters inputs, gathers outputs and adds up gradients, in "
    "every step, from one Python process.",
    why="None of it overlaps with the backward, and the replicas' threads share one interpreter lock to launch their "
    "kernels.",
    how="From the trace: what each part takes per step on the host, as far as the GPUs have nothing else to do; where "
    "ddp was run on the same devices, its throughput beside it.",
    remedy="DistributedDataParallel.",
    verified=False,
    check=_check,
)
