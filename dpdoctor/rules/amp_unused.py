"""amp_unused: mixed precision would be faster."""

from __future__ import annotations

from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.rules.rule import Rule, would_save


def _check(facts: ModeFacts) -> Finding | None:
    device = "cuda" if facts.on_gpu else "cpu"
    return would_save(
        facts,
        "amp_unused",
        "amp",
        what="mixed precision",
        tried="With forward in bfloat16",
        remedy="run forward and loss in bfloat16; check that the loss still falls as before",
        short_remedy="run forward and loss in bfloat16",
        code=f'with torch.autocast("{device}", dtype=torch.bfloat16):',
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
