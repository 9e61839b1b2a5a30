"""accumulation_sync: gradients are reduced in every micro-batch of a step that accumulates them."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.weighing import SMALL, weigh
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import core_words, wrapped_line

ABLATION = "no_sync_accumulation"
# Times its gradients that a step reduces from which it does so in several micro-batches.
REDUCED_TWICE = 1.5
CODE = {
    "ddp": "with contextlib.nullcontext() if is_last else model.no_sync(): loss.backward()",
    "fsdp": "model.set_requires_gradient_sync(is_last)",
    "fsdp1": "with contextlib.nullcontext() if is_last else model.no_sync(): loss.backward()",
    "": "if is_last: average_gradients(model)",
}


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    micro_batches = facts.micro_batches
    if not facts.communicates or micro_batches <= 1 or _reduces_once(facts):
        return None
    seen, ablation = facts.exposure, facts.ablation(ABLATION)
    if seen is None and ablation is None:
        skipped = facts.mode.ablations.get(ABLATION)
        why = (
            f"{ABLATION} was not measured: {skipped.share.reason}"
            if skipped
            else f"profile with --ablations {ABLATION}"
        )
        how = f"no trace and no ablation shows what it costs: {why}"
        return CannotTell(reason=facts.traces.why_unknown or how)
    reductions = facts.exposed_calls_share(lambda operation, _: "reduce" in operation)
    claim = stats.scaled(reductions, 1 - 1 / micro_batches) if seen else _nothing()
    weighed = weigh(claim, ablation)
    refuted = weighed.status == "refuted"
    if max(weighed.value, (claim.value or 0.0) if refuted else 0.0) < SMALL:
        return None
    evidence = [f"a step has {units.digits(micro_batches)} micro-batches, and each one reduces its gradients"]
    if seen is not None:
        assert claim.value is not None
        evidence.append(f"in the trace the reductions but the last take {units.share(claim.value)} of a step")
    if ablation is not None and ablation.share.value is not None and ablation.gain.value is not None:
        gain = f"{units.seconds(ablation.gain.value)} per step, {units.share(ablation.share.value)} of it"
        evidence.append(
            "the ablation that reduces the last one only gains " + ("nothing measurable" if refuted else gain)
        )
    return Finding(
        rule="accumulation_sync",
        mode=facts.name,
        severity="info" if refuted else severity(weighed.value),
        status=weighed.status,
        title="gradients are reduced in every micro-batch, which costs nothing measurable"
        if refuted
        else f"reducing gradients in every micro-batch takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=(*evidence, *core_words(facts)),
        cause=None,
        remedy=None if refuted else "reduce gradients in the last micro-batch of a step only",
        short_remedy=None if refuted else "reduce gradients in the last micro-batch only",
        code=None if refuted else CODE.get(facts.wrapper, CODE["ddp"]),
        line=None if refuted else way.line if (way := facts.by_hand) else wrapped_line(facts),
        speedup=None if refuted else faster_without(weighed.cost),
        speedup_basis="measured" if weighed.status == "confirmed" else "predicted",
    )


def _reduces_once(facts: ModeFacts) -> bool:
    """Return whether a script that distributes itself reduced its gradients less than twice in a step."""
    return facts.mode.native is not None and (times := facts.times_reduced) is not None and times < REDUCED_TWICE


def _nothing() -> Figure:
    return stats.unknown("ratio", "there is no trace")


RULE = Rule(
    name="accumulation_sync",
    title="Gradients reduced in every micro-batch",
    what="A step accumulates the gradients of several micro-batches, and each backward reduces them over all ranks.",
    why="Only the sum is used: all reductions but the last exchange the same bytes for nothing.",
    how="Micro-batches are counted; the ablation no_sync_accumulation reduces only in the last one and gives the gain; "
    "the trace, how much of a step the reductions take that nothing hides.",
    remedy="Run all but the last micro-batch under no_sync() (DDP, and FullyShardedDataParallel), or with "
    "set_requires_gradient_sync(False) (fully_shard); call what you wrote yourself in the last one only.",
    verified=True,
    check=_check,
)
