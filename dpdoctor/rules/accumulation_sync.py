"""accumulation_sync: gradients are reduced in every micro-batch of a step that accumulates them."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, stats
from dpdoctor.rules._base import SMALL, CannotTell, Case, Rule, faster_without, measured_arm, severity, weigh
from dpdoctor.rules._communication import adopted_line, communicates, core_words, exposure, why_untold
from dpdoctor.rules._steps import windows

ARM = "no_sync_accumulation"
# Times its gradients that a step reduces from which it does so in several micro-batches.
REDUCED_TWICE = 1.5
CODE = {
    "ddp": "with contextlib.nullcontext() if is_last else model.no_sync(): loss.backward()",
    "fsdp": "model.set_requires_gradient_sync(is_last)",
}


def _check(case: Case) -> Finding | CannotTell | None:
    micro_batches = _micro_batches(case)
    if not communicates(case) or micro_batches <= 1 or _reduces_once(case):
        return None
    seen, arm = exposure(case), measured_arm(case, ARM)
    if seen is None and arm is None:
        skipped = case.mode.arms.get(ARM)
        why = f"{ARM} was not measured: {skipped.share.reason}" if skipped else f"profile with --arms {ARM}"
        how = f"no trace and no arm shows what it costs: {why}"
        return CannotTell(reason=why_untold(case) or how)
    claim = stats.scaled(seen.removable, 1 - 1 / micro_batches) if seen else _nothing()
    weighed = weigh(claim, arm)
    refuted = weighed.status == "refuted"
    if max(weighed.value, (claim.value or 0.0) if refuted else 0.0) < SMALL:
        return None
    evidence = [f"a step has {units.digits(micro_batches)} micro-batches, and each one reduces its gradients"]
    if seen is not None:
        assert claim.value is not None
        evidence.append(f"in the trace the reductions but the last take {units.share(claim.value)} of a step")
    if arm is not None and arm.share.value is not None and arm.gain.value is not None:
        gain = f"{units.seconds(arm.gain.value)} per step, {units.share(arm.share.value)} of it"
        evidence.append("the arm that reduces the last one only gains " + ("nothing measurable" if refuted else gain))
    return Finding(
        rule="accumulation_sync",
        mode=case.name,
        severity="info" if refuted else severity(weighed.value),
        status=weighed.status,
        title="gradients are reduced in every micro-batch, which costs nothing measurable"
        if refuted
        else f"reducing gradients in every micro-batch takes {units.share(weighed.value)} of each step",
        cost=weighed.cost,
        evidence=(*evidence, *core_words(case)),
        cause=None,
        remedy=None if refuted else "reduce gradients in the last micro-batch of a step only",
        short=None if refuted else "reduce gradients in the last micro-batch only",
        code=None if refuted else CODE.get(case.name, CODE["ddp"]),
        line=None if refuted else adopted_line(case),
        predicted=None if refuted else faster_without(weighed.cost),
        gain="measured" if weighed.status == "confirmed" else "predicted",
    )


def _reduces_once(case: Case) -> bool:
    """Return whether a script that distributes itself reduced its gradients less than twice in a step."""
    mode = case.mode
    if mode.own is None or mode.counters is None or mode.adoption is None:
        return False
    reduced = sum(of.num_bytes for kind, of in mode.counters.collectives.items() if "reduce" in kind)
    return reduced < REDUCED_TWICE * sum(unit.trainable_bytes for unit in mode.adoption.units)


def _nothing() -> Figure:
    return stats.unknown("ratio", "there is no trace")


def _micro_batches(case: Case) -> float:
    """Return the mean number of micro-batches of the steady steps of a measured window; 0 without any."""
    steps = [step for _, window in windows(case) for rank in window.ranks for step in rank.steady]
    return sum(step.micro_batches for step in steps) / len(steps) if steps else 0.0


RULE = Rule(
    title="Gradients reduced in every micro-batch",
    what="A step accumulates the gradients of several micro-batches, and each backward reduces them over all ranks.",
    why="Only the sum is used: all reductions but the last exchange the same bytes for nothing.",
    how="Micro-batches are counted; the arm no_sync_accumulation reduces only in the last one and gives the gain; the "
    "trace, how much of a step the reductions take that nothing hides.",
    remedy="Run all but the last micro-batch under no_sync() (DDP), or with set_requires_gradient_sync(False) (FSDP).",
    verified=True,
    check=_check,
)
