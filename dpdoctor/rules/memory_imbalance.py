"""memory_imbalance: one GPU's memory is much fuller than the others'."""

from __future__ import annotations

from statistics import fmean

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.facts import DATA_PARALLEL
from dpdoctor.rules.rule import Rule
from dpdoctor.rules.wording import shared_words

# Of the fullest GPU's memory: where TraceML 0.5 warns of skew.
SKEW = 0.20


def _check(facts: ModeFacts) -> Finding | None:
    found = facts.memory_peaks
    if len(found) < 2:
        return None
    fullest = max(found, key=lambda peak: peak.num_bytes)
    others = fmean(peak.num_bytes for peak in found if peak is not fullest)
    skew = 1 - others / fullest.num_bytes if fullest.num_bytes else 0.0
    if skew < SKEW:
        return None
    bound = "up to " if fullest.is_bound else ""
    return Finding(
        rule="memory_imbalance",
        mode=facts.name,
        severity="info",
        status="inferred",
        title=f"{fullest.name} holds {bound}{units.times(fullest.num_bytes / others)} what another GPU holds"
        if others
        else f"{fullest.name} holds all that is held, and no other GPU anything",
        cost=stats.unknown("ratio", "memory costs no time while it suffices; it limits the batch"),
        ranks=fullest.ranks if len({peak.ranks for peak in found}) > 1 else (),
        evidence=(
            f"{fullest.name} held {units.size(fullest.num_bytes)} at most, another one {units.size(others)}",
            *shared_words(fullest),
        ),
        cause=None,
        remedy="keep the same on every GPU: compute the loss in the module's forward, so that no outputs are gathered"
        if facts.name == DATA_PARALLEL
        else "keep the same on every GPU: no extra copies of the model on one rank, map_location when a checkpoint is "
        "loaded, batches of equal size",
    )


RULE = Rule(
    name="memory_imbalance",
    title="Unequal memory",
    what="One GPU's memory is much fuller than that of the others.",
    why="It takes no time by itself, but the fullest GPU limits the batch for all of them.",
    how="The most that torch's allocator held on each GPU; of ranks that share one, the sum.",
    remedy="Share out what only one GPU holds: gathered outputs, checkpoints loaded onto cuda:0, larger batches.",
    verified=False,
    check=_check,
)
