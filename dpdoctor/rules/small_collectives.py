"""small_collectives: many collectives, each too small for its size to matter."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean, median

from dpdoctor import units
from dpdoctor.analysis import POINT_TO_POINT, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.summary import AblationSummary
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.facts import COALESCED
from dpdoctor.analysis.weighing import SMALL, Weighed, above_zero, is_loss, weigh
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import ablation_words, core_words, how_to_trace, weigh_part, wrapped_line

# Smaller calls are latency-bound where the trace has too few sizes to tell the limit: nccl-tests published for eight
# A100 take as long for 32 KiB as for 1 byte, and gloo's loopback 0.1 ms at 1 to 3 GB/s.
LIMIT_BYTES = 65_536
# What one call could carry instead: DDP's bucket_cap_mb by default.
BUCKET_BYTES = 25 * 1024 * 1024
FLAT = """\
grads = [p.grad for p in model.parameters() if p.grad is not None]
flat = torch.cat([grad.flatten() for grad in grads])
dist.all_reduce(flat)
for grad, mean in zip(grads, (flat / dist.get_world_size()).split([grad.numel() for grad in grads])):
    grad.copy_(mean.view_as(grad))"""
# One call can be put together with nothing.
FEWEST = 2
# A broadcast of buffers is not mended by buckets, and has a rule of its own; by hand those of parameters are here, too.
BROADCAST = "broadcast"
NOT_HERE = frozenset({BROADCAST, "barrier", "send", "recv"})
# Of a ring by hand they are of gradients that are all there by then; what a pipeline's stages send the next one needs.
PASSED_ON = frozenset({"send", "recv"})
# FSDP makes at least one of each for a model.
OF_UNITS = frozenset({"all_gather", "reduce_scatter"})


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    found = facts.traces
    is_whole = _is_sharded_whole(facts)
    if not facts.communicates or facts.name == "ddp" or (facts.name == "fsdp" and is_whole):
        return None  # dpdoctor wraps in as few calls as would be advised, and hides its group from the script
    if (reason := facts.traces.why_unknown) is not None:
        return CannotTell(reason=reason)
    if not found.with_calls.steps:
        return CannotTell(reason=f"no step with its collectives is whole on every device: {how_to_trace(facts)}")
    limits = _limits(found)
    left_out = NOT_HERE | OF_UNITS if is_whole else NOT_HERE - _by_hand(facts)

    def is_small(operation: str, num_bytes: int) -> bool:
        return operation not in left_out and 0 < num_bytes < limits.get(operation, LIMIT_BYTES)

    sizes = _in_whole_steps(found, is_small)
    # The median: a step in which a model also infers, as in a rollout, may gather parameters a hundred times.
    per_step = median(map(len, sizes)) / len(found.digests)
    mean_bytes = fmean(size for step in sizes for size in step) if per_step else 0.0
    needed = _needed(facts, per_step * mean_bytes)
    is_removed = _is_of_mode(facts, per_step) or _is_by_hand(facts, per_step)
    # As of tensor or expert parallelism, whose activations, and their gradients, are each computed from the one before.
    is_of_one_model = facts.may_split_model and not (is_removed and _comes_after_backward(facts))
    if per_step <= needed or round(per_step) < FEWEST or is_of_one_model:
        return None
    claim = stats.scaled(facts.exposed_calls_share(is_small, per_step), 1 - needed / per_step)
    experiment = facts.ablation(COALESCED) if _is_by_hand(facts, per_step) else None
    if experiment is not None:
        # It does what is advised: where that makes steps longer, advice to do so would be wrong.
        weighed = weigh(claim, experiment)
        is_refuted = weighed.status == "refuted" or is_loss(experiment.share)
    else:
        weighed = weigh_part(facts, claim) if is_removed else Weighed(cost=claim, status="inferred")
        is_refuted = weighed.status == "refuted"
    if weighed.value < SMALL or is_refuted:
        return None
    return _finding(facts, weighed, experiment, per_step, mean_bytes)


def _finding(
    facts: ModeFacts, weighed: Weighed, experiment: AblationSummary | None, per_step: float, mean_bytes: float
) -> Finding:
    noun = "small exchange" if _passes_on_gradients(facts) else "small collective"
    number = units.count(round(per_step), noun)
    remedy, code = _remedy(facts, per_step)
    line = wrapped_line(facts) if code else None
    if (way := facts.by_hand) is not None and _is_by_hand(facts, per_step):
        # What each rank keeps a part of, as ZeRO by hand, is not to be reduced whole.
        is_of_parts = any(f" of {operation} " in way.facts for operation in OF_UNITS)
        line, code = way.line, FLAT if way.of_gradients and not is_of_parts else None
    return Finding(
        rule="small_collectives",
        mode=facts.name,
        severity=severity(weighed.value),
        status=weighed.status,
        title=f"{number} in each step take {units.share(weighed.value)} of it",
        cost=weighed.cost,
        evidence=(
            f"{number} in each step carry {units.size(mean_bytes)} on average: their time is latency, which does not "
            "shrink with their size",
            *_latency_words(facts.traces),
            *(ablation_words(facts) if experiment is None else _experiment_words(experiment)),
            *core_words(facts),
        ),
        cause=None,
        remedy=remedy,
        short_remedy=remedy,
        code=code,
        line=line,
        speedup=faster_without(weighed.cost),
        speedup_basis="measured" if experiment is not None and weighed.status == "confirmed" else "at most",
    )


def _experiment_words(experiment: AblationSummary) -> tuple[str, ...]:
    """Return what the ablation gave that makes one call of them."""
    gain, ratio = experiment.gain, experiment.share
    assert gain.value is not None
    assert ratio.value is not None
    if not above_zero(ratio):
        return ("with all of them in one call (ablation coalesced) a step is not measurably shorter",)
    gained = f"{units.seconds(gain.value)} shorter, {units.share(ratio.value)} of it"
    return (f"with all of them in one call (ablation coalesced) a step is {gained}",)


def _limits(found: Traces) -> dict[str, int]:
    """Return by operation the size below which a call is latency-bound, where the traces tell it.

    Each rank's trace tells it of the same wire: the mean over ranks, of the group in which it is least.
    """
    of_ranks: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for digest in found.digests:
        for entry in digest.small_calls:
            of_ranks[entry.operation, entry.group].append(entry.limit_bytes)
    limits: dict[str, int] = {}
    for (operation, _), of_group in of_ranks.items():
        limits[operation] = min(limits.get(operation, sys.maxsize), round(fmean(of_group)))
    return limits


def _in_whole_steps(found: Traces, wanted: Callable[[str, int], bool]) -> list[list[int]]:
    """Return, for each step that all traces hold with its calls, the bytes of each wanted call of all ranks."""
    sizes: dict[int, list[int]] = {steps[0].step: [] for steps in found.with_calls.steps}
    for digest in found.digests:
        calls = digest.calls
        for operation, num_bytes, step in zip(calls.operation, calls.num_bytes, calls.step, strict=True):
            if step in sizes and wanted(calls.names[operation], num_bytes):
                sizes[step].append(num_bytes)
    return list(sizes.values())


def _needed(facts: ModeFacts, num_bytes: float) -> int:
    """Return in how many calls so many bytes could be exchanged: FSDP gathers and scatters each model at least once."""
    of_models = len(OF_UNITS) * _num_models(facts) if _num_units(facts) else 0
    return max(of_models, math.ceil(num_bytes / BUCKET_BYTES))


def _num_units(facts: ModeFacts) -> int:
    """Return how many units FSDP shards, of which the models' roots bear one name; 0 without FSDP."""
    return max((len(digest.shard_units) for digest in facts.traces.digests), default=0)


def _num_models(facts: ModeFacts) -> int:
    return max(1, len(facts.mode.conversion.modules) if facts.mode.conversion else 0)


def _is_sharded_whole(facts: ModeFacts) -> bool:
    """Return whether each unit of FSDP is a whole model: they cannot be fewer."""
    return 0 < _num_units(facts) <= _num_models(facts)


def _is_of_mode(facts: ModeFacts, per_step: float) -> bool:
    """Return whether DDP or FSDP made most of the calls, which the ablation no_comm removes."""
    digests = facts.traces.digests
    of_units = (
        0.0
        if _is_sharded_whole(facts)
        else fmean(sum(u.all_gathers + u.reduce_scatters for u in digest.shard_units) for digest in digests)
    )
    # The buckets are those of one backward pass.
    of_buckets = fmean(len(digest.buckets) for digest in digests) * max(1.0, facts.times_reduced or 0.0)
    return max(of_units, of_buckets) >= per_step / 2


def _is_by_hand(facts: ModeFacts, per_step: float) -> bool:
    """Return whether the script makes most of the calls at a line that exchanges what it trains."""
    way = facts.by_hand
    return way is not None and 2 * way.calls >= per_step


def _comes_after_backward(facts: ModeFacts) -> bool:
    """Return whether what the script exchanges by itself, if it does, are gradients that are all there by then."""
    way = facts.by_hand
    return way is None or (way.of_gradients and not way.in_backward)


def _by_hand(facts: ModeFacts) -> frozenset[str]:
    """Return which of NOT_HERE the script itself makes so many of that it can put them together."""
    if _passes_on_gradients(facts):
        return PASSED_ON
    way = facts.by_hand
    return frozenset({BROADCAST} if way is not None and f" of {BROADCAST} " in way.facts else ())


def _passes_on_gradients(facts: ModeFacts) -> bool:
    """Return whether ranks send each other all gradients, as in a ring.

    Where the sum goes round after the first round, the rank that begins sends up to twice as often as it receives.
    """
    if facts.by_hand is None or any(way.name == POINT_TO_POINT for way in facts.ways):
        return False
    calls = {
        operation: sum(
            way.calls for way in facts.own_exchanges if way.of_gradients and f" of {operation} " in way.facts
        )
        for operation in PASSED_ON
    }
    return 0 < max(calls.values()) <= 2 * min(calls.values())


def _remedy(facts: ModeFacts, per_step: float) -> tuple[str, str | None]:
    if not _is_of_mode(facts, per_step):
        return "put what the script itself exchanges into one tensor, and exchange that once", None
    if _num_units(facts):
        return "shard fewer, larger modules: a transformer's block, not its layers", "fully_shard(block)"
    return (
        "let DDP collect gradients in larger buckets",
        "DistributedDataParallel(model, bucket_cap_mb=25)",
    )


def _latency_words(found: Traces) -> tuple[str, ...]:
    entries = [entry for digest in found.digests for entry in digest.small_calls if entry.operation not in NOT_HERE]
    if not entries:
        return ()
    latency = min(entry.latency_ns for entry in entries) / 1e9
    return (f"a call of no size takes {units.seconds(latency)} here at most",)


RULE = Rule(
    name="small_collectives",
    title="Many small collectives",
    what="A step makes many collective calls that each carry little.",
    why="A call has a latency that its size does not change; a hundred small ones pay it a hundred times, one large "
    "call pays it once.",
    how="From the trace: the calls below the size at which latency dominates (fitted to this run's own calls, else "
    "64 KiB), the time they take while nothing computes, and how many calls would carry the same bytes; under FSDP no "
    "fewer than a gather and a scatter for each model. The ablation coalesced makes one call of those by which the "
    "script reduces gradient by gradient, and gives the gain.",
    remedy="Larger buckets (DDP), larger wrap units (FSDP), or one tensor for what the script itself exchanges.",
    verified=True,
    check=_check,
)
