"""accumulation_sync: gradients are reduced in every micro-batch of a step that accumulates them."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.facts import NO_SYNC
from dpdoctor.analysis.weighing import SMALL, weigh
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity
from dpdoctor.rules.wording import LAST_ONLY, NO_SYNC_CODE, core_words, library_words, wrapped_line

CODE = {
    "ddp": NO_SYNC_CODE,
    "fsdp": "model.set_requires_gradient_sync(is_last)",
    "fsdp1": NO_SYNC_CODE,
    "": "if is_last: average_gradients(model)",
}


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    if not facts.communicates or not facts.reduces_each_micro_batch:
        return None
    seen, ablation = facts.exposure, facts.ablation(NO_SYNC)
    if seen is None and ablation is None:
        skipped = facts.mode.ablations.get(NO_SYNC)
        why = (
            f"{NO_SYNC} was not measured: {skipped.share.reason}" if skipped else f"profile with --ablations {NO_SYNC}"
        )
        how = f"no trace and no ablation shows what it costs: {why}"
        return CannotTell(reason=facts.traces.why_unknown or how)
    reductions = facts.exposed_calls_share(lambda operation, _: "reduce" in operation)
    # A step of more calls than are kept shows none of them.
    seen = seen if reductions.value is not None else None
    claim = stats.scaled(reductions, 1 - 1 / facts.reductions) if seen else _nothing()
    weighed = weigh(claim, ablation)
    refuted = weighed.status == "refuted"
    if max(weighed.value, (claim.value or 0.0) if refuted else 0.0) < SMALL:
        return None
    evidence = [facts.reduced_words]
    if seen is not None:
        assert claim.value is not None
        evidence.append(f"in the trace the reductions but the last take {units.share(claim.value)} of a step")
    if ablation is not None and ablation.share.value is not None and ablation.gain.value is not None:
        gain = f"{units.seconds(ablation.gain.value)} per step, {units.share(ablation.share.value)} of it"
        evidence.append(
            "the ablation that reduces the last one only gains " + ("nothing measurable" if refuted else gain)
        )
    of_library = library_words(facts)
    is_told = not refuted and not of_library
    return Finding(
        rule="accumulation_sync",
        mode=facts.name,
        severity=severity(weighed.value) if is_told else "info",
        status=weighed.status,
        title="gradients are reduced in every micro-batch, which costs nothing measurable"
        if refuted
        else f"reducing gradients in every micro-batch takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=(*evidence, *of_library, *core_words(facts)),
        cause=None,
        remedy="reduce gradients in the last micro-batch of a step only" if is_told else None,
        short_remedy=LAST_ONLY if is_told else None,
        code=CODE.get(facts.wrapper, CODE["ddp"]) if is_told else None,
        line=(way.line if (way := facts.by_hand) else wrapped_line(facts)) if is_told else None,
        speedup=faster_without(weighed.cost) if is_told else None,
        speedup_basis="measured" if weighed.status == "confirmed" else "predicted",
    )


def _nothing() -> Figure:
    return stats.unknown("ratio", "there is no trace")


RULE = Rule(
    name="accumulation_sync",
    title="Gradients reduced in every micro-batch",
    what="A step accumulates the gradients of several micro-batches, and each backward reduces them over all ranks.",
    why="Only the sum is used: all reductions but the last exchange the same bytes for nothing.",
    how="Micro-batches are counted; the ablation no_sync_accumulation reduces only in the last one and gives the gain; "
    "the trace, how much of a step the reductions take that nothing hides. Where a library runs the backward pass, as "
    "the stacks of the traced steps tell, it may do so itself in a job of its own: no gain is told.",
    remedy="Run forward and backward of all but the last micro-batch under no_sync() (DDP, and "
    "FullyShardedDataParallel), or with set_requires_gradient_sync(False) (fully_shard); call what you wrote yourself "
    "in the last one only.",
    verified=True,
    check=_check,
)
