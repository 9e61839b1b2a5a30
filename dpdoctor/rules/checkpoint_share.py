"""checkpoint_share: too much of the time goes into writing checkpoints."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.interruptions import Interruptions
from dpdoctor.analysis.weighing import SMALL
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    found = facts.interruptions("checkpoint")
    if not isinstance(found, Interruptions):
        return CannotTell(reason=found) if found is not None else None
    share = found.share
    if share.value is None or share.value < SMALL:
        return None
    return Finding(
        rule="checkpoint_share",
        mode=facts.name,
        severity=severity(share.value),
        status="inferred",
        title=f"checkpoints take {units.share(share.value)} of the time",
        cost=share,
        share_of="epoch",
        evidence=found.evidence,
        cause=f"a checkpoint {found.rhythm}",
        remedy="write checkpoints less often, or in the background: torch.distributed.checkpoint.async_save goes on "
        "training while it writes",
        short_remedy="write checkpoints in the background",
        speedup=faster_without(share),
        speedup_basis="at most",
    )


RULE = Rule(
    name="checkpoint_share",
    title="Checkpoints take much of the time",
    what="Training stands still while model and optimizer are written to disk, and that happens often.",
    why="No sample is trained on meanwhile, and the other ranks wait for the one that writes.",
    how="Each write of a checkpoint is timed by the host's clock. Its share is that of all time from one to the "
    "next. dpdoctor writes it to a scratch folder, which may be faster than the real target.",
    remedy="Write less often, or asynchronously.",
    verified=True,
    check=_check,
)
