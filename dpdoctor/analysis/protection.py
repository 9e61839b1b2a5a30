"""What kept compiled code and programs from the user's files, in words."""

from __future__ import annotations

from dpdoctor.records import LaunchRecord, RankRecord

_WALLS = {
    "kernel": "an overlay of the kernel's: what they write only the script sees",
    "landlock": "Landlock: the kernel refuses them files outside of caches and the temporary directory",
}


def wall(rank: RankRecord | None, launch: LaunchRecord) -> str:
    """Return what stood, or why nothing did and what was done instead; empty where nobody knows, or nothing had to."""
    if rank is None or not rank.protected_by:
        return ""
    if rank.protected_by in _WALLS:
        instead = f"; no overlay: {rank.not_walled}" if rank.not_walled else ""
        return f"{_WALLS[rank.protected_by]}{instead}"
    compared = f"nor are they compared: {launch.not_compared}" if launch.not_compared else "they are compared after it"
    return f"nothing: {rank.not_walled or 'no wall was put up'}; {compared}"
