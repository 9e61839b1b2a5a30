"""replicas_differ: ranks average their gradients, and yet hold different parameters."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import HAND_WRITTEN, Finding, ModeFacts, Strategy
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.facts import BESIDE_GRADIENTS
from dpdoctor.rules.rule import Rule

DDP = "ddp"
# After DDP's communication hooks of these names, and without one, all ranks have the same gradients; what a hook of the
# script's own does is not known, and post_localSGD_hook leaves gradients apart for most of the training.
AVERAGING_HOOKS = frozenset(
    {
        *("", "BuiltinCommHookType.ALLREDUCE", "BuiltinCommHookType.FP16_COMPRESS", "allreduce_hook"),
        *("fp16_compress_hook", "bf16_compress_hook", "powerSGD_hook", "batched_powerSGD_hook"),
    }
)
OF_DDP = (
    "load or initialise the model before it is wrapped: DistributedDataParallel makes ranks equal then, and never after"
)
OF_PARTS = (
    "wrap all that is trained: DistributedDataParallel has only a part of it, and each rank trains the rest by itself"
)
BY_HAND = "send the parameters of rank 0 to all ranks before the first step"
CODE_BY_HAND = "for p in model.parameters(): dist.broadcast(p.data, src=0)"


def _check(facts: ModeFacts) -> Finding | None:
    conversion = facts.mode.conversion
    if conversion is None or facts.mode.world_size < 2 or conversion.same_samples or not conversion.strategies:
        return None
    if not all(map(_averages_gradients, conversion.strategies)) or not facts.parameters_differ:
        return None
    is_reduced = any("reduce" in way.facts for way in facts.own_exchanges)
    if not (_averages_all(facts.times_reduced) if is_reduced else not facts.wraps_a_part):
        return None
    own = next(iter(facts.own_exchanges), None)
    is_part = not own and facts.leaves_a_part
    ranks = units.count(facts.mode.world_size, "rank")
    return Finding(
        rule="replicas_differ",
        mode=facts.name,
        severity="warning",
        status="confirmed",
        title=f"{ranks} average their gradients, but hold different parameters",
        cost=stats.unknown("ratio", "no time is lost; what is trained is not one model"),
        evidence=(f"Parameters were compared after a step: {ranks}, not one set of values.", _exchanged(own)),
        cause=None,
        remedy=BY_HAND if own else OF_PARTS if is_part else OF_DDP,
        short_remedy="wrap all that is trained" if is_part else "give all ranks the same parameters",
        code=CODE_BY_HAND if own else None,
        line=own.line if own else next((unit.line for unit in conversion.modules), None),
    )


def _averages_gradients(way: Strategy) -> bool:
    """Return whether ranks that do so hold equal parameters after each step: sharded or averaged ones need not."""
    return (way.name == DDP and way.hook in AVERAGING_HOOKS) or (way.name == HAND_WRITTEN and way.of_gradients)


def _averages_all(times: float | None) -> bool:
    """Return whether what is reduced by hand may be all gradients, or all in half the bytes.

    Of the others ranks may be meant to hold parameters of their own, as experts are, and parts of layers. What ranks
    gather or send does not tell by its bytes whether it is all.
    """
    return times is None or times >= 1 - BESIDE_GRADIENTS or abs(times - 0.5) <= BESIDE_GRADIENTS


def _exchanged(own: Strategy | None) -> str:
    return f"Gradients are exchanged at {own.line}: {own.facts}." if own else "Gradients are exchanged by ddp."


RULE = Rule(
    name="replicas_differ",
    title="Replicas differ",
    what="Every rank exchanges its gradients in every step, and after one the parameters of the ranks are not equal.",
    why="Ranks that began with different weights stay apart: the gradients that they average are of different models.",
    how="In mode native the parameters of all ranks are compared, bit for bit, after a step of the warmed-up training.",
    remedy="Give all ranks the same parameters before the first step: wrap the model after it is loaded, or broadcast.",
    verified=True,
    check=_check,
    is_of_result=True,
)
