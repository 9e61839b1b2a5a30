"""no_overlap: communication that computing could hide runs alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts, Strategy
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.traces import NO_TRACE, Traces, exposed_ns, hidden_ns
from dpdoctor.analysis.breakdown import of_steps, share
from dpdoctor.analysis.communication import Exposure
from dpdoctor.analysis.facts import NO_COMM
from dpdoctor.analysis.weighing import SMALL, Weighed, weigh
from dpdoctor.digest import Bucket, DeviceStep
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import ablation_words, core_words, neither, weigh_part, why_no_steps, wrapped_line

# Of all communication: nsys-ai calls less than this poor overlap.
POOR = 0.30
# Share of all-gathers issued ahead of their use up to which the forward's are not: the other half are the backward's,
# which FSDP prefetches by itself.
PREFETCHED = 0.5
# Of DDP's buckets, from which the first is taken that splits the largest there is.
CAPS_MIB, MIB = (5, 1), 2**20


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    if not facts.communicates:
        return None
    way = facts.by_hand
    if way is not None and not way.in_backward:
        # What a forward pass needs of the others, as in tensor parallelism, nothing could hide.
        return _after_backward(facts, way) if way.of_gradients else None
    # On the CPU both sides would share the cores: to overlap them gains nothing that one could promise.
    return _traced(facts) if facts.on_gpu else None


def _traced(facts: ModeFacts) -> Finding | CannotTell | None:
    """Return what the traces show of wrappers that could communicate earlier."""
    found = facts.traces
    if (reason := facts.traces.why_unknown) is not None:
        return CannotTell(reason=reason)
    common = found.common
    if not common.steps:
        return CannotTell(reason=why_no_steps(facts, "what runs beside communication"))
    overlap = of_steps([step for at_once in common.steps for step in at_once]).overlap_ratio
    if overlap is None or overlap >= POOR:
        return None
    weighed = weigh_part(facts, share(found.common, _hideable(found)))
    if weighed.value < SMALL or weighed.status == "refuted":
        return None
    return _finding(facts, weighed, overlap)


def _after_backward(facts: ModeFacts, way: Strategy) -> Finding | CannotTell | None:
    """Return what exchanges cost that the script itself makes one after the other, with nothing beside them."""
    seen, ablation = facts.exposure, facts.ablation(NO_COMM)
    if facts.on_gpu and seen is None and ablation is None:
        return CannotTell(reason=neither(facts))
    claim = _taken(facts, seen)
    weighed = weigh(claim, ablation)
    if weighed.value < SMALL or weighed.status == "refuted":
        return None
    calls, backward, idle = units.count(way.calls, "call"), _backward_share(facts), _idle_share(facts)
    where = "in the trace" if facts.on_gpu else "on the host's clock"
    most = min(share for share in (backward, idle, weighed.value) if share is not None)
    hidden = stats.scaled(weighed.cost, most / weighed.value)
    return Finding(
        rule="no_overlap",
        mode=facts.name,
        severity=severity(weighed.value),
        status=weighed.status,
        title=f"communication that does not overlap the backward pass takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=(
            f"the script makes {calls} in a step outside of the backward pass, and waits for each",
            *([f"{where} they take {units.share(claim.value)} of a step"] if claim.value else []),
            *(
                [f"the backward pass takes {units.share(backward)} of a step, and can hide no more than that"]
                if backward
                else []
            ),
            *(
                []
                if idle is None
                else [f"the cores are {units.share(1 - idle)} busy, and what overlaps needs the rest"]
            ),
            *ablation_words(facts),
            *core_words(facts),
        ),
        cause=None,
        remedy="begin to exchange each gradient as soon as it is there, and wait for all of them before the update: or "
        "let DistributedDataParallel do so",
        short_remedy="exchange gradients while the backward pass goes on",
        code="p.register_post_accumulate_grad_hook(lambda p: pending.append(dist.all_reduce(p.grad, async_op=True)))",
        line=way.line,
        speedup=faster_without(hidden),
        speedup_basis="at most",
    )


def _taken(facts: ModeFacts, seen: Exposure | None) -> Figure:
    """Return what the script's exchanges take of a step: where a GPU makes them their calls only queue them."""
    if not facts.on_gpu:
        return facts.clocked_share
    return seen.exposed if seen is not None else stats.unknown("ratio", facts.traces.why_unknown or NO_TRACE)


def _backward_share(facts: ModeFacts) -> float | None:
    """Return the share of a step that is backward; None: unknown, as on a GPU, whose host only queues it."""
    if facts.on_gpu:
        return None
    backward, step = facts.mode.phases.get("backward"), facts.mode.step.value
    return backward.value / step if backward is not None and backward.value and step else None


def _idle_share(facts: ModeFacts) -> float | None:
    """Return the share of the cores that are idle, on which alone more could run at a time; None: unknown, or a GPU.

    With more threads than cores, those that wait keep cores busy.
    """
    found = facts.cores
    if facts.on_gpu or found is None or found.ranks_busy is None or found.threads > found.cores:
        return None
    return max(0.0, 1 - (found.ranks_busy + (found.workers_busy or 0.0)) / found.cores)


def _finding(facts: ModeFacts, weighed: Weighed, overlap: float) -> Finding:
    cause, remedy, code = _reason(facts)
    compute = facts.part_share("compute")
    assert compute.value is not None
    return Finding(
        rule="no_overlap",
        mode=facts.name,
        severity=severity(weighed.value),
        status=weighed.status,
        title=f"communication that computing could hide takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=(
            f"{units.share(overlap)} of the communication runs beside compute",
            f"compute is {units.share(compute.value)} of a traced step",
            *_waiting_words(facts),
            *ablation_words(facts),
        ),
        cause=cause,
        remedy=remedy,
        code=code,
        line=wrapped_line(facts),
        speedup=faster_without(weighed.cost),
        speedup_basis="at most",
    )


def _hideable(found: Traces) -> Callable[[Sequence[DeviceStep]], int]:
    """Return the part of a step's exposed communication that its compute could still hide, on the rank with least."""
    in_backward = any(digest.buckets for digest in found.digests)

    def of_device(step: DeviceStep) -> int:
        exposed, beside = exposed_ns(step), step.breakdown.compute_ns
        # DDP reduces during the backward only, whose busy time is compute and the communication beside which is none.
        if in_backward and "backward" in step.phases_ns:
            beside = min(beside, step.phases_ns["backward"] - exposed)
        return max(0, min(exposed, beside - hidden_ns(step)))

    return lambda steps: min(of_device(step) for step in steps)


def _waiting_words(facts: ModeFacts) -> tuple[str, ...]:
    seen = facts.exposure
    missing = seen is not None and not seen.all_ranks
    return ("not every rank left a trace: waiting for the others counts as communication",) if missing else ()


def _reason(facts: ModeFacts) -> tuple[str | None, str, str | None]:
    """Return cause, remedy and the line to write, as far as the traces tell how the module was wrapped."""
    digests = facts.traces.digests
    buckets = max((digest.buckets for digest in digests), key=len, default=())
    shards = [unit for digest in digests for unit in digest.shard_units]
    if buckets:
        return _of_buckets(facts, buckets)
    if {unit.name for unit in shards} == {"root"}:
        cause = "FSDP shards the model as one unit, whose parameters are all gathered before anything computes"
        return cause, "shard each block of the model as a unit of its own", "fully_shard(block)"
    prefetched = [unit.prefetched for unit in shards if unit.prefetched is not None]
    if prefetched and fmean(prefetched) <= PREFETCHED:
        remedy = f"prefetch the next unit's parameters: {units.share(fmean(prefetched))} of the all-gathers are early"
        return None, remedy, "block.set_modules_to_forward_prefetch([next_block])"
    return None, "start communication as soon as its tensors are ready, and compute meanwhile", None


def _of_buckets(facts: ModeFacts, buckets: Sequence[Bucket]) -> tuple[str | None, str, str | None]:
    """Return the same of DistributedDataParallel, whose buckets only a cap below their size makes smaller.

    By default its first bucket is full from 1 MiB on (torch.nn.parallel.distributed, 2.14): a single one by dpdoctor's
    own wrapping is a model that is smaller, or one parameter that is most of it.
    """
    is_one = len(buckets) == 1
    cause = "all gradients are in one bucket, which is full only when the backward is done" if is_one else None
    cap_mib = next((cap for cap in CAPS_MIB if cap * MIB < _bytes_at_most(buckets)), None)
    if cap_mib is None or (is_one and facts.name == "ddp"):
        return cause, "exchange gradients less often: larger batches, or several backward passes for each update", None
    code = f"DistributedDataParallel(model, bucket_cap_mb={cap_mib})"
    return cause, "let DDP begin earlier with smaller buckets", code


def _bytes_at_most(buckets: Sequence[Bucket]) -> float:
    """Return what the cap of these buckets is at most: each is filled up to it but for the first, whose cap is its own,
    and the last, which has the rest. What is far larger than most is a single parameter, which nothing splits.
    """
    in_order = sorted(buckets, key=lambda bucket: bucket.order)
    largest = max(bucket.num_bytes or 0 for bucket in in_order)
    return min(largest, median([bucket.num_bytes or largest for bucket in in_order[1:-1]] or [largest]))


RULE = Rule(
    name="no_overlap",
    title="Communication not overlapped",
    what="Communication runs while the device computes nothing, although there is compute that could hide it.",
    why="Time that could pass twice, computing and communicating, passes once for each.",
    how="What a script exchanges by itself is seen call by call, inside or outside of the backward pass, with the "
    "host's time in it or, on GPUs, what of it the trace shows while nothing computes; the ablation no_comm gives the "
    "cost, and without a GPU no more is promised than the cores have idle. Else from the trace, on GPUs: the part of "
    "communication that runs beside compute (below 30% is poor) and the compute that could still hide the rest; the "
    "cause from DDP's buckets and FSDP's prefetches.",
    remedy="Smaller buckets for DDP; a wrap unit per block, and prefetching, for FSDP; what you exchange yourself, "
    "begun while the backward pass goes on.",
    verified=False,
    check=_check,
)
