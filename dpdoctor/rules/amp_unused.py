"""amp_unused: mixed precision would be faster."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.weighing import SMALL, above_zero
from dpdoctor.rules.rule import Rule, faster_without

ABLATION = "amp"


def _check(facts: ModeFacts) -> Finding | None:
    ablation = facts.ablation(ABLATION)
    if (
        ablation is None
        or not above_zero(ablation.share)
        or (ablation.share.value or 0.0) < SMALL
        or ablation.gain.value is None
    ):
        return None
    share = units.share(ablation.share.value or 0.0)
    device = "cuda" if facts.on_gpu else "cpu"
    return Finding(
        rule="amp_unused",
        mode=facts.name,
        severity="warning",
        status="confirmed",
        title=f"mixed precision would save {share} of each step",
        cost=ablation.share,
        evidence=(
            f"With forward in bfloat16 (ablation {ABLATION}) a step is {units.seconds(ablation.gain.value)} shorter.",
        ),
        cause=None,
        remedy="run forward and loss in bfloat16; check that the loss still falls as before",
        short_remedy="run forward and loss in bfloat16",
        code=f'with torch.autocast("{device}", dtype=torch.bfloat16):',
        speedup=faster_without(ablation.share),
        speedup_basis="measured",
    )


RULE = Rule(
    name="amp_unused",
    title="Mixed precision would be faster",
    what="Training computes in full precision on a device that computes faster in bfloat16.",
    why="Matrix units give a multiple of the rate for 16 bits, and half the bytes are read and written.",
    how="The ablation amp runs forward under autocast to bfloat16 in windows between the full ones.",
    remedy="Wrap forward and loss in torch.autocast; weights and optimizer stay in full precision.",
    verified=True,
    check=_check,
)
