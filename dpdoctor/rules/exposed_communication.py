"""exposed_communication: ranks exchange tensors while nothing computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import NOW_AND_THEN, REDUCED_TWICE, Figure, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.facts import NO_COMM, NO_SYNC
from dpdoctor.analysis.weighing import COVERAGE, SMALL, Weighed, above_zero, more_exact, weigh
from dpdoctor.digest import CollectiveSize
from dpdoctor.rules.rule import CannotTell, Rule, Said, Severity, faster_without, severity
from dpdoctor.rules.wording import (
    LAST_ONLY,
    NO_SYNC_CODE,
    ablation_words,
    agreement_words,
    core_words,
    library_words,
    neither,
    trace_words,
    wrapped_line,
)

# Rules that name a part of exposed communication, and what to do about it.
SPECIFIC = (
    "accumulation_sync",
    "buffer_broadcast",
    "find_unused_parameters",
    "no_overlap",
    "small_collectives",
    "straggler",
    "uneven_batches",
)
# From this part of the cost on, the specific finding is the one to act on and this one the fact behind it. No peer
# has such a threshold: half of the communication is what accumulating over two batches saves, give or take noise.
NAMED = 1 / 3
# Twice the batch, or half the bytes of each number: half of the communication per sample.
HALF = 0.5
# What DDP and FSDP exchange, and how many bytes it is does not go by the batch.
OF_PARAMETERS = frozenset({"all_reduce", "reduce_scatter", "all_gather", "broadcast"})
TWICE = "train on twice the batch per device"
# Of what ranks do not exchange in every step, as in local SGD.
LESS_OFTEN = "exchange half as often"
FOR_EACH_SAMPLE = "half as much communication for each sample"
BFLOAT16 = {
    "ddp": "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
    "fsdp": "fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
    "reduce_dtype=torch.bfloat16))",
    "fsdp1": "FullyShardedDataParallel(module, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, "
    "reduce_dtype=torch.bfloat16))",
}


def _check(facts: ModeFacts, parts: Sequence[Finding] = ()) -> Said:
    if not facts.communicates:
        return None
    seen, ablation = facts.exposure, facts.ablation(NO_COMM)
    if seen is None and ablation is None:
        return CannotTell(reason=facts.traces.why_unknown or neither(facts))
    claim = seen.removable if seen else None
    weighed = _weighed(facts, claim)
    left, is_refuted = facts.share_left_in.value or 0.0, weighed.status == "refuted"
    if max(weighed.value, left, (claim.value or 0.0) if claim and is_refuted else 0.0) < SMALL:
        return None
    evidence = [*ablation_words(facts), *_turn_words(facts), *core_words(facts), *library_words(facts)]
    if seen is not None:
        evidence.insert(0, trace_words(seen))
    if seen is not None and ablation is not None:
        evidence.append(agreement_words(seen, ablation))
    if left >= SMALL:
        evidence.append(f"calls that the ablation leaves in take {units.share(left)} of a step on the host's clock")
        if is_refuted or weighed.value < SMALL:
            return _left_in(facts, evidence)
    return _refuted(facts, weighed, evidence) if is_refuted else _found(facts, weighed, evidence, _largest(parts))


def _turn_words(facts: ModeFacts) -> list[str]:
    """Return how much of what goes with the communication is waiting for ranks that are late in turns."""
    turns, ablation = facts.jitter_wait, facts.ablation(NO_COMM)
    gains = ablation is not None and above_zero(ablation.share)
    if not (gains and above_zero(turns)) or turns.value is None or turns.value < SMALL:
        return []
    return [f"of that, waiting for whichever rank is late takes {units.share(turns.value)} of a step"]


def _weighed(facts: ModeFacts, claim: Figure | None) -> Weighed:
    """Return the cost; of the ablation alone where there is no trace, and then only a gain that is one."""
    ablation = facts.ablation(NO_COMM)
    if claim is not None:
        return more_exact(weigh(claim, ablation), claim)
    assert ablation is not None
    cost = (
        ablation.share
        if above_zero(ablation.share)
        else stats.unknown("ratio", "the ablation gains nothing measurable")
    )
    return Weighed(cost=cost, status="confirmed")


def _found(facts: ModeFacts, weighed: Weighed, evidence: list[str], part: Finding | None) -> Finding | None:
    """Return the finding; None where another one says the same, with what to do about it."""
    of_cost = (part.cost.value or 0.0) / weighed.value if part else 0.0
    if of_cost >= COVERAGE:
        return None
    if part is not None:
        evidence.append(f"the finding {part.rule} is {units.share(of_cost)} of it")
    advice = _advice(facts)
    if not _is_of_parameters(facts) and (longest := _longest_words(facts)):
        evidence.append(longest)
    # What is nothing to be mended itself, as waiting that other processes cause, is none to act on.
    is_behind = part is not None and part.severity != "info" and of_cost >= NAMED
    level: Severity = "info" if is_behind else severity(weighed.value)
    return Finding(
        rule="exposed_communication",
        mode=facts.name,
        severity=level,
        status=weighed.status,
        title=f"communication takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=tuple(evidence),
        cause=None,
        remedy=advice.remedy if advice else None,
        short_remedy=advice.short if advice else None,
        code=advice.code if advice else None,
        line=advice.line if advice else None,
        speedup=_predicted(facts, weighed.cost, advice) if advice else None,
    )


def _predicted(facts: ModeFacts, cost: Figure, advice: _Advice) -> Figure:
    """Return what is left without the part of the cost that the advice saves.

    Who is late now and then is so for some samples, however many of them share an exchange. A larger batch spreads
    whatever else a step takes once, too: what it gives has no upper end.
    """
    if above_zero(facts.jitter_wait):
        cost = stats.combination([(1.0, cost), (-1.0, facts.jitter_wait)], "ratio")
    gain = faster_without(stats.scaled(cost, advice.saves))
    return replace(gain, high=None) if advice.is_larger_batch else gain


def _left_in(facts: ModeFacts, evidence: list[str]) -> Finding:
    """Return what collectives take that are not of gradients or parameters, where nothing else takes as much."""
    cost = facts.share_left_in
    share = cost.value or 0.0
    way = max(facts.own_exchanges, key=lambda way: way.calls, default=None)
    return Finding(
        rule="exposed_communication",
        mode=facts.name,
        severity=severity(share),
        status="inferred",
        title=f"collectives beside those of gradients and parameters take {units.share(share)} of each step",
        cost=cost,
        evidence=(*evidence, *([f"the script makes {way.facts}"] if way else [])),
        cause=None,
        remedy=None,
        line=way.line if way else None,
    )


def _refuted(facts: ModeFacts, weighed: Weighed, evidence: list[str]) -> Finding:
    return Finding(
        rule="exposed_communication",
        mode=facts.name,
        severity="info",
        status="refuted",
        title="communication is exposed, but without it a step is not measurably shorter",
        cost=weighed.cost,
        evidence=tuple(evidence),
        cause=None,
        remedy=None,
    )


def _largest(parts: Sequence[Finding]) -> Finding | None:
    """Return the most costly of the findings that name a part of the communication; None: there is none."""
    # Waiting for one and the same rank does not go with the communication: it is no part of this.
    found = [part for part in parts if part.status != "refuted" and not part.ranks]
    return max(found, key=lambda part: part.cost.value or 0.0, default=None)


class _Advice(msgspec.Struct, frozen=True, kw_only=True):
    remedy: str
    short: str
    code: str | None = None
    line: str | None = None
    saves: float = HALF
    is_larger_batch: bool = False


def _advice(facts: ModeFacts) -> _Advice | None:
    """Return what lessens the communication per sample; None: for all we know it grows with the batch, or nothing."""
    if not _is_of_parameters(facts):
        return None
    if _is_reduced_in_vain(facts):
        return _Advice(
            remedy=f"{LAST_ONLY}: {facts.reduced_words}",
            short=LAST_ONLY,
            code=NO_SYNC_CODE,
            line=wrapped_line(facts),
            # Of many micro-batches it saves more than half of what is exchanged, and less of what takes cores.
            saves=min(HALF, 1 - 1 / facts.reductions),
        )
    if facts.by_hand is not None and any(way.name == NOW_AND_THEN for way in facts.ways):
        return _Advice(remedy=f"{LESS_OFTEN}: {FOR_EACH_SAMPLE}", short=LESS_OFTEN, line=facts.by_hand.line)
    larger = _larger_batch(facts)
    is_float = _mostly(facts, lambda call: call.dtype == "float")
    if not facts.on_gpu or not is_float or any(way.hook for way in facts.ways):
        return _Advice(remedy=f"{larger}: {FOR_EACH_SAMPLE}", short=TWICE, is_larger_batch=True) if larger else None
    short = "exchange bfloat16 instead of float32"
    remedy = "; or ".join(filter(None, (f"{short}: half the bytes", larger)))
    return _Advice(remedy=remedy, short=short, code=BFLOAT16.get(facts.wrapper))


def _is_reduced_in_vain(facts: ModeFacts) -> bool:
    """Return whether DDP reduces gradients in micro-batches that need it not.

    What an ablation gave is for accumulation_sync to tell; and a library may do without by itself.
    """
    is_reduced = facts.wrapper == "ddp" and facts.reduces_each_micro_batch and facts.micro_batches >= REDUCED_TWICE
    return is_reduced and facts.ablation(NO_SYNC) is None and not library_words(facts)


def _larger_batch(facts: ModeFacts) -> str:
    """Return how to train on more samples per exchange; empty where ranks train on the same ones, maybe all of them."""
    if facts.mode.conversion is not None and facts.mode.conversion.same_samples:
        return ""
    if facts.micro_batches > 1:  # gradients are accumulated already
        return TWICE
    if facts.wrapper == "ddp":  # FSDP gathers parameters for every batch, whether or not gradients are accumulated
        return f"{TWICE}, or accumulate gradients over two batches under no_sync()"
    if facts.by_hand is not None:
        return f"{TWICE}, or accumulate gradients over two batches and exchange them once"
    return TWICE


def _is_of_parameters(facts: ModeFacts) -> bool:
    """Return whether most is gradients or parameters, of which a step exchanges as many whatever the batch."""
    by_trace = any(digest.buckets or digest.shard_units for digest in facts.traces.digests)
    is_wrapped = facts.wrapper in BFLOAT16 or facts.by_hand is not None or by_trace
    return is_wrapped and not _mostly(facts, lambda call: call.operation not in OF_PARAMETERS)


def _mostly(facts: ModeFacts, is_one: Callable[[CollectiveSize], bool]) -> bool:
    """Return whether calls like that are most of the exposed communication in the traces."""
    calls = [call for digest in facts.traces.digests for call in digest.collectives]
    return 2 * sum(call.exposed_ns for call in calls if is_one(call)) > sum(call.exposed_ns for call in calls)


def _longest_words(facts: ModeFacts) -> str:
    """Return in a clause which operations the most of the exposed communication is."""
    exposed: Counter[str] = Counter()
    for digest in facts.traces.digests:
        for call in digest.collectives:
            exposed[call.operation] += call.exposed_ns
    first = [name for name, ns in exposed.most_common(2) if ns]
    return f"the most of it is {' and '.join(first)}, which may exchange more where a batch is larger" if first else ""


RULE = Rule(
    name="exposed_communication",
    title="Exposed communication",
    what="Ranks exchange gradients or parameters while nothing computes.",
    why="Every device idles until the exchange is done, in every step.",
    how="From the trace, exposed (non-overlapped) communication, on the rank that the others wait for, and "
    "where it runs on the cores that compute, what the training thread waits for a core meanwhile and what it does to "
    "copy for it or to start it, too; from the ablation no_comm, the time that a step without communication saves. "
    "Both are shown, and whether they agree within 5% of the step or their 95% intervals; then the more exact one "
    "is the cost, else the ablation's. What a larger batch gives is estimated from half of the exchange, without the "
    "waiting for whichever rank is late, and has no upper end: it spreads whatever else a step takes once, too.",
    remedy="More work per exchange (a larger batch per device; in DDP accumulation under no_sync), fewer bytes "
    "(bfloat16), a faster link, or another of the rules about communication where one names the reason.",
    verified=True,
    check=_check,
    parts=SPECIFIC,
    beside=_check,
)
