"""evaluation_share: too much of the time goes into evaluations."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.interruptions import Interruptions
from dpdoctor.rules.rule import INTERRUPTING, CannotTell, Rule, faster_without, severity


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    found = facts.interruptions("evaluation")
    if not isinstance(found, Interruptions):
        return CannotTell(reason=found) if found is not None else None
    share = found.share
    if share.value is None or share.value < INTERRUPTING:
        return None
    remedy = "evaluate less often or on fewer samples"
    evidence = found.evidence
    if facts.mode.world_size > 1 and _is_read_whole(facts):
        ranks = units.count(facts.mode.world_size, "rank")
        evidence = (*evidence, f"Each of {ranks} evaluates all of the data.")
        remedy += ", or give each rank its part of the evaluation set and add the results up"
    return Finding(
        rule="evaluation_share",
        mode=facts.name,
        severity=severity(share.value),
        status="inferred",
        title=f"evaluation takes {units.share(share.value)} of the time",
        cost=share,
        share_of="epoch",
        evidence=evidence,
        cause=f"an evaluation {found.rhythm}",
        remedy=remedy,
        short_remedy="evaluate less often",
        speedup=faster_without(share),
        speedup_basis="at most",
    )


def _is_read_whole(facts: ModeFacts) -> bool:
    """Return whether a loader was iterated without gradients, and so by every rank for itself."""
    conversion = facts.mode.conversion
    return conversion is not None and any(loader.is_for_evaluation for loader in conversion.loaders)


RULE = Rule(
    name="evaluation_share",
    title="Evaluation takes much of the time",
    what="Training pauses for evaluations so often, or for so long, that they are a large part of the time.",
    why="No sample is trained on meanwhile; where every rank evaluates everything, more devices do not help either.",
    how="Forward passes without gradients that read a loader of their own are an evaluation. Each is timed by the "
    "host's clock, on the slowest rank; one in which something is compiled is left "
    "out. Its share is that of all time from one to the next. "
    "The predicted gain is that of no evaluation at all, the most there is.",
    remedy="Evaluate less often, or on fewer samples; under DDP and FSDP, on each rank its part.",
    verified=True,
    check=_check,
)
