"""unsynchronised: ranks exchange nothing, and each trains a model of its own."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import NOTHING, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.rules.rule import Rule


def _check(facts: ModeFacts) -> Finding | None:
    conversion = facts.mode.conversion
    if conversion is None or facts.mode.world_size < 2:
        return None
    nothing = next((way for way in conversion.strategies if way.name == NOTHING), None)
    if nothing is None:
        return None
    ranks = units.count(facts.mode.world_size, "rank")
    return Finding(
        rule="unsynchronised",
        mode=facts.name,
        severity="critical",
        status="confirmed",
        title=f"{ranks} exchange nothing: each trains a model of its own",
        cost=stats.unknown("ratio", "no time is lost; what is trained is not one model"),
        evidence=(f"{nothing.facts[0].upper()}{nothing.facts[1:]}.",),
        cause=None,
        remedy="wrap the model, so that gradients are averaged over the ranks, or exchange them in every step",
        short_remedy="average gradients over the ranks",
        code="model = DistributedDataParallel(model)",
        line=next((unit.line for unit in conversion.modules), None),
    )


RULE = Rule(
    name="unsynchronised",
    title="Ranks exchange nothing",
    what="A process group was made, and in no step of the training anything goes through it.",
    why="Each rank trains a model of its own, on its part of the data: more devices make none of them better.",
    how="Every process group numbers its collectives; in mode native these numbers are read at the end of each step.",
    remedy="Wrap the model in DistributedDataParallel, shard it with fully_shard, or exchange gradients by hand.",
    verified=True,
    check=_check,
    is_of_result=True,
)
