"""inference_share: much time passes in forward passes that no backward pass follows and that are no evaluation."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts
from dpdoctor.analysis.interruptions import Interruptions, slowest_by_step
from dpdoctor.rules.rule import INTERRUPTING, CannotTell, Rule

KIND = "inference"
# From this share of the steady steps on it is a part of what a step is.
USUAL = 0.05


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    launch = facts.launch
    seen = slowest_by_step(launch, KIND) if launch else {}
    if not seen:
        return None
    often = _share_of_steps(facts)
    if often >= USUAL:
        return _finding(facts, facts.share_of_events(KIND), (f"It runs in {units.share(often)} of the steps.",))
    found = facts.interruptions(KIND)
    if not isinstance(found, Interruptions):
        return CannotTell(reason=found) if found is not None else None
    left_out = "The steady throughput leaves out the steps in which it runs; the one with edges has them."
    return _finding(facts, found.share, (*found.evidence, left_out))


def _share_of_steps(facts: ModeFacts) -> float:
    """Return the share of the steady steps that have such a pass."""
    steps = [
        step.step in seen
        for launch, window in facts.windows
        for seen in [slowest_by_step(launch, KIND)]
        for step in window.ranks[0].steady
    ]
    return sum(steps) / max(1, len(steps))


def _finding(facts: ModeFacts, share: Figure, evidence: tuple[str, ...]) -> Finding | None:
    if share.value is None or share.value < INTERRUPTING:
        return None
    return Finding(
        rule="inference_share",
        mode=facts.name,
        severity="info",
        status="inferred",
        title=f"forward passes that no backward() follows, and what lies between them and training, take "
        f"{units.share(share.value)} of the time",
        cost=share,
        share_of="epoch",
        evidence=("They read no loader: a rollout, generated samples, or tensors in memory.", *evidence),
        cause=None,
        remedy=None,
    )


RULE = Rule(
    name="inference_share",
    title="Forward passes that no backward() follows",
    what="Before it trains on, the script runs its model without a backward() and reads no loader for it: a rollout in "
    "an environment, text or images that are generated, samples that torch.autograd.grad "
    "changes, an evaluation of tensors that lie in memory.",
    why="No sample is trained on meanwhile. Whether training needs it nobody knows but who wrote the script, and so it "
    "is told as a fact.",
    how="Each such pass is timed by the host's clock, on the slowest rank, from its first forward to the next one that "
    "trains, with what lies between, such as an environment's steps.",
    remedy="Where training needs it, none that is known here: larger batches of forwards, or several environments at "
    "once, may make it cheaper. Those of a model in eval mode cost less under torch.no_grad(), if they are not there "
    "yet.",
    verified=True,
    check=_check,
)
