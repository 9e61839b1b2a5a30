"""evaluation_share: too much of the time goes into evaluations."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding
from dpdoctor.rules._base import CannotTell, Case, Rule, faster_without, severity
from dpdoctor.rules._occasions import Occasions, occasions

# TraceML 0.5's first threshold for a share of the time. Not lower: evaluating CIFAR-10 after each epoch takes 6 %,
# 10,000 images forward beside 50,000 forward and backward, and nobody calls that a fault.
WARNING = 0.10


def _check(case: Case) -> Finding | CannotTell | None:
    found = occasions(case, "evaluation")
    if not isinstance(found, Occasions):
        return found
    share = found.share
    if share.value is None or share.value < WARNING:
        return None
    remedy = "evaluate less often or on fewer samples"
    evidence = found.evidence
    if case.mode.world_size > 1 and _is_read_whole(case):
        ranks = units.count(case.mode.world_size, "rank")
        evidence = (*evidence, f"Each of {ranks} evaluates all of the data.")
        remedy += ", or give each rank its part of the evaluation set and add the results up"
    return Finding(
        rule="evaluation_share",
        mode=case.name,
        severity=severity(share.value),
        status="inferred",
        title=f"evaluation takes {units.share(share.value)} of the time",
        cost=share,
        of="epoch",
        evidence=evidence,
        cause=f"an evaluation {found.rhythm}",
        remedy=remedy,
        predicted=faster_without(share),
        gain="at most",
    )


def _is_read_whole(case: Case) -> bool:
    """Return whether a loader was iterated without gradients, and so by every rank for itself."""
    adoption = case.mode.adoption
    return adoption is not None and any("an evaluation" in loader.note for loader in adoption.loaders)


RULE = Rule(
    title="Evaluation takes much of the time",
    what="Training pauses for evaluations so often, or for so long, that they are a large part of the time.",
    why="No sample is trained on meanwhile; where every rank evaluates everything, more devices do not help either.",
    how="Forward passes without gradients that read a loader of their own are an evaluation. Each is timed by the "
    "host's clock, on the slowest rank. Its share is its time over its own and that of the steps from one to the next. "
    "The predicted gain is that of no evaluation at all, the most there is.",
    remedy="Evaluate less often, or on fewer samples; under DDP and FSDP, on each rank its part.",
    verified=True,
    check=_check,
)
