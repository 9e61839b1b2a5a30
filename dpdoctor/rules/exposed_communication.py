"""exposed_communication: ranks exchange tensors while nothing computes."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, stats
from dpdoctor.rules import (
    accumulation_sync,
    buffer_broadcast,
    find_unused_parameters,
    no_overlap,
    small_collectives,
    straggler,
    uneven_batches,
)
from dpdoctor.rules._base import (
    COVERAGE,
    SMALL,
    CannotTell,
    Case,
    Rule,
    Severity,
    Weighed,
    above_zero,
    faster_without,
    more_exact,
    severity,
    weigh,
)
from dpdoctor.rules._communication import (
    NEITHER,
    agreement_words,
    arm_of,
    arm_words,
    communicates,
    core_words,
    exposure,
    trace_words,
    why_untold,
)
from dpdoctor.rules._traced import on_gpu

# Rules that name a part of exposed communication, and what to do about it.
SPECIFIC = (
    accumulation_sync,
    buffer_broadcast,
    find_unused_parameters,
    no_overlap,
    small_collectives,
    straggler,
    uneven_batches,
)
# From this part of the cost on, the specific finding is the one to act on and this one the fact behind it. No peer
# has such a threshold: half of the communication is what accumulating over two batches saves, give or take noise.
NAMED = 1 / 3
# Twice the batch, or half the bytes of each number: half of the communication per sample.
HALF = 0.5


def _check(case: Case) -> Finding | CannotTell | None:
    if not communicates(case):
        return None
    seen, arm = exposure(case), arm_of(case)
    if seen is None and arm is None:
        return CannotTell(reason=why_untold(case) or NEITHER)
    claim = seen.removable if seen else None
    weighed = _weighed(case, claim)
    if max(weighed.value, (claim.value or 0.0) if claim and weighed.status == "refuted" else 0.0) < SMALL:
        return None
    evidence = [*arm_words(case), *core_words(case)]
    if seen is not None:
        evidence.insert(0, trace_words(seen))
    if seen is not None and arm is not None:
        evidence.append(agreement_words(seen, arm))
    return _refuted(case, weighed, evidence) if weighed.status == "refuted" else _found(case, weighed, evidence)


def _weighed(case: Case, claim: Figure | None) -> Weighed:
    """Return the cost; of the arm alone where there is no trace, and then only a gain that is one."""
    arm = arm_of(case)
    if claim is not None:
        return more_exact(weigh(claim, arm), claim)
    assert arm is not None
    cost = arm.share if above_zero(arm.share) else stats.unknown("ratio", "the arm gains nothing measurable")
    return Weighed(cost=cost, status="confirmed")


def _found(case: Case, weighed: Weighed, evidence: list[str]) -> Finding:
    part = _largest_part(case)
    of_cost = (part.cost.value or 0.0) / weighed.value if part else 0.0
    if part is not None:
        evidence.append(f"{part.rule} names {units.share(min(1.0, of_cost))} of it")
    level: Severity = "info" if of_cost >= NAMED else severity(weighed.value)
    return Finding(
        rule="exposed_communication",
        mode=case.name,
        severity=level,
        status=weighed.status,
        title=f"communication takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=tuple(evidence),
        cause=part.title if part is not None and of_cost >= COVERAGE else None,
        remedy=_remedy(case),
        short=_short(case),
        code=_code(case),
        predicted=faster_without(stats.scaled(weighed.cost, HALF)),
    )


def _refuted(case: Case, weighed: Weighed, evidence: list[str]) -> Finding:
    return Finding(
        rule="exposed_communication",
        mode=case.name,
        severity="info",
        status="refuted",
        title="communication is exposed, but without it a step is not measurably shorter",
        cost=weighed.cost,
        evidence=tuple(evidence),
        cause=None,
        remedy=None,
    )


def _largest_part(case: Case) -> Finding | None:
    """Return the most costly of the findings that name a part of the communication; None: there is none."""
    said = [rule.RULE.check(case) for rule in SPECIFIC]
    # Waiting for one and the same rank does not go with the communication: it is no part of this.
    found = [part for part in said if isinstance(part, Finding) and part.status != "refuted" and not part.ranks]
    return max(found, key=lambda part: part.cost.value or 0.0, default=None)


def _remedy(case: Case) -> str:
    larger = "train on twice the batch per device"
    if case.name == "ddp":  # FSDP gathers parameters for every batch, whether or not gradients are accumulated
        larger += ", or accumulate gradients over two batches under no_sync()"
    if not on_gpu(case):
        return f"{larger}: half as much communication for each sample"
    return f"exchange bfloat16 instead of float32: half the bytes; or {larger}"


def _short(case: Case) -> str:
    return "exchange bfloat16 instead of float32" if on_gpu(case) else "train on twice the batch per device"


def _code(case: Case) -> str | None:
    if not on_gpu(case):
        return None
    if case.name == "ddp":
        return "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
    if case.name == "fsdp":
        return (
            "fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
            "reduce_dtype=torch.bfloat16))"
        )
    return None


RULE = Rule(
    title="Exposed communication",
    what="Ranks exchange gradients or parameters while nothing computes.",
    why="Every device idles until the exchange is done, in every step.",
    how="From the trace, the communication beside which nothing computes, on the rank that the others wait for, and "
    "where it runs on the cores that compute, what the training thread waits for a core meanwhile and what it does to "
    "copy for it or to start it, too; from the arm no_comm, the time that a step without communication saves. Both are "
    "shown, and whether they agree within 5 % of the step or their 95 % intervals; then the more exact one is the "
    "cost, else the arm's.",
    remedy="More work per exchange (a larger batch per device; in DDP accumulation under no_sync), fewer bytes "
    "(bfloat16), a faster link, or another of the rules about communication where one names the reason.",
    verified=True,
    check=_check,
)
