"""uneven_batches: ranks with small batches wait for the one with the largest."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import Finding, ModeFacts
from dpdoctor.analysis.rank_imbalance import Unevenness
from dpdoctor.analysis.weighing import COVERAGE, SMALL
from dpdoctor.rules.rule import CannotTell, Rule, faster_without, severity

# As many ranks are listed.
MOST_RANKS = 8


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    found = facts.uneven_batches
    if found is None:
        return None
    if found.share.value is None:
        return CannotTell(reason=f"ranks train on batches of different size, but {found.share.reason}")
    if found.share.value < SMALL:
        return None
    if not found.is_cause:
        return CannotTell(reason=f"ranks train on batches of different size, but {_explained(found)}")
    proved = found.explained is not None and found.explained >= COVERAGE
    return Finding(
        rule="uneven_batches",
        mode=facts.name,
        severity=severity(found.share.value),
        status="confirmed" if proved else "inferred",
        title=f"ranks wait for the one with the largest batch: {units.share(found.share.value)} of each step",
        cost=found.share,
        ranks=(found.sizes.index(max(found.sizes)),) if found.persistent else (),
        evidence=_evidence(found),
        cause="batches of one step differ in size between the ranks" if proved else None,
        remedy="give the ranks batches of like size in each step: shuffle, or sort by length into groups of as many "
        "batches as there are ranks and deal these out",
        short_remedy="give the ranks batches of like size",
        line=facts.mode.loader.arguments_line if facts.mode.loader else None,
        speedup=faster_without(found.share),
    )


def _evidence(found: Unevenness) -> tuple[str, ...]:
    if found.explained is None:
        work = "The work is taken to grow with the size: on a GPU the host's clock does not time it."
    else:
        work = f"The {_explained(found)}."
    return _sizes(found), work


def _sizes(found: Unevenness) -> str:
    sizes = [units.count(round(size), found.unit) for size in found.sizes]
    if len(set(sizes)) == 1:
        return f"All ranks train on {sizes[0]} on average, but not in the same step."
    named = ", ".join(f"rank {rank}: {size}" for rank, size in enumerate(sizes[:MOST_RANKS]))
    more = len(sizes) - MOST_RANKS
    others = f", and {units.count(more, 'rank')} more" if more > 0 else ""
    return f"In a step ranks train on average on ({named}{others})."


def _explained(found: Unevenness) -> str:
    assert found.explained is not None
    return f"sizes explain {units.share(found.explained)} of the difference between their forward passes"


RULE = Rule(
    name="uneven_batches",
    title="Uneven batches",
    what="In the same step ranks train on batches of different size, such as sequences of different length.",
    why="Ranks meet in every step: all take as long as the one with the most work.",
    how="The elements of each rank's input are counted in every step. Forward, in which ranks do not wait for each "
    "other, tells what an element costs, and backward is scaled alike; the cost is what the largest batch takes beyond "
    "the mean. Nothing is said where sizes explain less than half of what forward passes differ by.",
    remedy="Deal out batches of like size in each step; bucket by length across ranks, not within one.",
    verified=True,
    check=_check,
)
