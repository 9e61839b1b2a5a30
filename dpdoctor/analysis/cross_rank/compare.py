"""The digests of all ranks of one job into what they say together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis.base.traces import why_unknown
from dpdoctor.analysis.cross_rank.clocks import clock_offsets
from dpdoctor.analysis.cross_rank.columns import RankCalls, columns
from dpdoctor.analysis.cross_rank.lateness import cause_of, common_calls, step_lateness
from dpdoctor.analysis.cross_rank.matching import Match, match
from dpdoctor.analysis.cross_rank.model import CrossRank, CrossRankGroup, Stragglers
from dpdoctor.analysis.cross_rank.stragglers import (
    Pause,
    came_last,
    find_stragglers,
    pause_behind,
    steps_needed,
    too_few,
)
from dpdoctor.digest import Digest


def compare_ranks(digests: Iterable[Digest], pauses: Mapping[int, Sequence[Pause]] | None = None) -> CrossRank:
    """Return the comparison of the ranks of one job, in any order; what cannot be compared is named with its reason.

    `pauses` has, by rank, what the ranks recorded beside their traces; a late rank's cause is looked for there first.
    """
    chosen, notes = _by_rank(digests)
    ranks = {rank: columns(digest, rank) for rank, digest in chosen.items()}
    sizes = _group_sizes(chosen.values())
    groups = tuple(_group(found, ranks, sizes.get(found.group)) for found in match(tuple(ranks.values())))
    steps = step_lateness(groups, ranks)

    def cause(rank: int, late: list[int]) -> str | None:
        known = pause_behind(groups, ranks[rank], (pauses or {}).get(rank, ()), late)
        return known or cause_of(groups, rank, late)

    world_size = max((digest.world_size or 0 for digest in chosen.values()), default=0)
    return CrossRank(
        ranks=tuple(ranks),
        missing=tuple(rank for rank in range(world_size) if rank not in ranks),
        groups=groups,
        steps=steps,
        verdict=_with_reason(find_stragglers(steps, tuple(ranks), cause), groups, tuple(chosen.values())),
        came_last=came_last(groups, ranks),
        clocks=clock_offsets(groups, ranks),
        notes=notes,
    )


def _with_reason(verdict: Stragglers, groups: Sequence[CrossRankGroup], digests: Sequence[Digest]) -> Stragglers:
    """Return the verdict; where it is unknown, with the reason that lies furthest back."""
    if verdict.kind != "unknown" or len(digests) < 2:
        return verdict
    steps = {step for group in groups if group.calls is not None for step in group.calls.step.tolist()} - {-1}
    needed = steps_needed(len(digests))
    refused = next((group.reason for group in groups if group.reason), None)
    reason = why_unknown(digests)
    if reason is None and not steps:
        reason = refused
    elif reason is None and len(steps) < needed:
        reason = too_few(needed, len(steps))
    return verdict if reason is None else replace(verdict, reason=reason)


def _by_rank(digests: Iterable[Digest]) -> tuple[dict[int, Digest], tuple[str, ...]]:
    """Return one digest per rank, by rank, and what was left out."""
    chosen: dict[int, Digest] = {}
    notes: list[str] = []
    for digest in digests:
        if digest.rank is None:
            notes.append(f"{digest.source} does not say its rank and is compared with no other")
        elif digest.rank in chosen:
            notes.append(f"{digest.source} is left out: {chosen[digest.rank].source} is of rank {digest.rank} too")
        else:
            chosen[digest.rank] = digest
        if digest.calls.num_dropped:
            dropped = units.count(digest.calls.num_dropped, "collective call")
            notes.append(f"{digest.source}: {dropped} beyond the limit are not compared")
    unknown = [rank for rank, digest in sorted(chosen.items()) if digest.unknown_communication]
    if 0 < len(unknown) < len(chosen):
        others = f" and of {units.count(len(unknown) - 1, 'other rank')}" if len(unknown) > 1 else ""
        notes.append(f"what is communicated is unknown of rank {unknown[0]}{others}: compared with no other")
    return dict(sorted(chosen.items())), tuple(notes)


def _group_sizes(digests: Iterable[Digest]) -> dict[str, int]:
    return {
        size.group: size.group_size for digest in digests for size in digest.collectives if size.group_size is not None
    }


def _group(found: Match, ranks: Mapping[int, RankCalls], size: int | None) -> CrossRankGroup:
    members: Sequence[RankCalls] = [ranks[rank] for rank in found.ranks]
    return CrossRankGroup(
        name=found.group,
        ranks=found.ranks,
        num_missing=None if size is None else max(0, size - len(found.ranks)),
        matched_by=found.matched_by,
        left_out=found.left_out,
        calls=common_calls(found, members) if found.reason is None else None,
        reason=found.reason,
    )
