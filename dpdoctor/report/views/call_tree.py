"""The training loop's host time as a tree of calls: the script's lines first, each with its total and its own share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from dpdoctor import units
from dpdoctor.analysis import CallNode, Diagnosis
from dpdoctor.analysis.base.launches import shown
from dpdoctor.report.blocks import Absent, Block, Call, Calls, OfMode, View
from dpdoctor.report.text import absent, clipped, mode_label
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing

NO_TREE = "the training thread was not looked at: no steps were traced"
# A branch with less of the time starts closed.
OPEN_FROM = 0.15
LONGEST_NAME = 90
# Below so many looks a share says little.
FEW_LOOKS = 100


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the tree of its first rank that has one."""
    modes = standing.shown_modes(analysis.summary)
    built = {mode: found for mode in modes if (found := _tree(analysis, mode)) is not None}
    missing = absent((f"Call tree of {mode_label(mode)}", NO_TREE) for mode in modes if mode not in built)
    blocks: list[Block] = [OfMode(mode=mode, blocks=(tree,)) for mode, tree in built.items()]
    return [*blocks, *missing] or [Absent(what="Call tree", reason="no mode was measured")]


def result(analysis: Diagnosis) -> str:
    """Return the line of the script that most of the leading mode's time is spent at."""
    modes = standing.shown_modes(analysis.summary)
    focus = standing.focus(analysis.summary)
    for mode in sorted(modes, key=lambda mode: mode != focus):
        _, nodes = _nodes(analysis, mode)
        callers = {node.parent for node in nodes if node.function}
        lines = [node for place, node in enumerate(nodes) if node.function and place not in callers]
        if lines:
            most = max(lines, key=lambda node: node.looks)
            return f"{mode}: {units.share(most.looks / _all(nodes))} of host time in {_name(most)}"
    return ""


def _nodes(analysis: Diagnosis, mode: str) -> tuple[int, tuple[CallNode, ...]]:
    """Return the first rank that has a tree, and that."""
    for rank in shown(analysis.run.modes[mode]).ranks:
        if rank.record is not None and rank.record.call_tree:
            return rank.index, rank.record.call_tree
    return -1, ()


def _all(nodes: Sequence[CallNode]) -> int:
    return sum(node.looks for node in nodes if node.parent == -1)


def _tree(analysis: Diagnosis, mode: str) -> Calls | None:
    rank, nodes = _nodes(analysis, mode)
    if not nodes:
        return None
    below: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        below.setdefault(node.parent, []).append(place)
    start, way = _loop(nodes, below)
    num = _all(nodes)
    few = " So few looks tell large shares only." if num < FEW_LOOKS else ""
    called = f" Reached through {' > '.join(way)}." if way else ""
    return Calls(
        title=f"{mode_label(mode)}, rank {rank}",
        caption=(
            f"Where the training thread was in {units.whole(num)} looks, one about every millisecond of the traced "
            f"steps. Self is a line's own time, without the calls below it.{few}{called}"
        ),
        calls=tuple(_call(nodes, below, place, num) for place in _ordered(nodes, below, start)),
    )


def _loop(nodes: Sequence[CallNode], below: dict[int, list[int]]) -> tuple[int, list[str]]:
    """Return the caller of all that differs between looks, and the names of the lines on the way there."""
    place, way = -1, list[str]()
    while len(below.get(place, ())) == 1:
        (only,) = below[place]
        if nodes[only].own_looks or only not in below or not nodes[only].function:
            break
        place = only
        way.append(_name(nodes[only]))
    return place, way


def _ordered(nodes: Sequence[CallNode], below: dict[int, list[int]], place: int) -> list[int]:
    """Return what is called, lines of the script first, then what takes longest."""
    return sorted(below.get(place, ()), key=lambda inner: (not nodes[inner].function, -nodes[inner].looks))


def _call(nodes: Sequence[CallNode], below: dict[int, list[int]], place: int, num: int) -> Call:
    node = nodes[place]
    share = node.looks / num
    return Call(
        name=_name(node),
        is_users=bool(node.function),
        share=share,
        own_share=node.own_looks / num,
        calls=tuple(_call(nodes, below, inner, num) for inner in _ordered(nodes, below, place)),
        is_open=share >= OPEN_FROM and bool(node.function),
    )


def _name(node: CallNode) -> str:
    if not node.function:
        return clipped(node.where, LONGEST_NAME)
    return clipped(f"{PurePath(node.where).name} {node.function}", LONGEST_NAME)


VIEW: View[Diagnosis] = View(
    name="call_tree", title="Call tree", build=build, applies=is_profile, result=result, is_half=True
)
