"""Which calls the training thread's time goes to: its stacks, as they were seen again and again, as a tree.

A stack is told by the lines of the user's code and, below the innermost of them, the library functions that it calls.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from types import FrameType

from dpdoctor.records import CallNode
from dpdoctor.worker.base import lines

# What takes less of all looks is part of its caller's own time.
LEAST_SHARE = 0.005
MOST_DEPTH = 40
# Of a library, how deep its calls are told below the user's line.
MOST_OF_LIBRARY = 3
# What is seen below our own conductor is not the script's.
_CONDUCTOR = "/dpdoctor/worker/conductor.py"
# They call what was asked for, and say nothing.
_PASS_ON = frozenset(
    {"_wrapped_call_impl", "_call_impl", "wrapper", "inner", "decorate_context", "wrapped", "_use_grad"}
)
# A line, or a library's function, and the function that the line is in; of a library's it is empty.
Call = tuple[str, str]


class CallTree:
    """Counts the stacks that it is shown."""

    def __init__(self) -> None:
        self._stacks: Counter[tuple[Call, ...]] = Counter()

    def look(self, frame: FrameType) -> None:
        """Count the stack of a thread once, if it is the script that it is in."""
        if calls := stack(frame):
            self._stacks[calls] += 1

    def nodes(self) -> tuple[CallNode, ...]:
        """Return the tree: callers before what they call, which comes right after them, the most seen first."""
        return tree(self._stacks)


def stack(frame: FrameType | None) -> tuple[Call, ...]:
    """Return the calls of a stack, the outermost first; empty where it is not the script's time."""
    calls: list[Call] = []
    called: list[Call] = []
    while frame is not None and len(calls) < MOST_DEPTH:
        code = frame.f_code
        if code.co_filename.endswith(_CONDUCTOR):
            return ()
        if _is_users(code.co_filename):
            if not calls:
                calls = called[-MOST_OF_LIBRARY:]
            calls.append((f"{code.co_filename}:{frame.f_lineno}", code.co_name))
        elif not calls and not lines.is_ours(code.co_filename):
            called += _library(frame)
        frame = frame.f_back
    return tuple(reversed(calls)) if any(function for _, function in calls) else ()


def _library(frame: FrameType) -> list[Call]:
    name = str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
    is_between = frame.f_code.co_name in _PASS_ON or "<locals>" in name
    return [] if is_between else [(f"{frame.f_globals.get('__name__', '?')}.{name}", "")]


def tree(stacks: Counter[tuple[Call, ...]]) -> tuple[CallNode, ...]:
    """Return stacks with how often each was seen as a tree, without what was seen too rarely."""
    totals: Counter[tuple[Call, ...]] = Counter()
    for calls, count in stacks.items():
        for depth in range(1, len(calls) + 1):
            totals[calls[:depth]] += count
    least = LEAST_SHARE * stacks.total()
    kept = {calls: count for calls, count in totals.items() if count >= least}
    nodes: list[CallNode] = []
    _add(nodes, (), -1, kept)
    return tuple(nodes)


def _add(nodes: list[CallNode], calls: tuple[Call, ...], parent: int, kept: dict[tuple[Call, ...], int]) -> None:
    for found in _below(calls, kept):
        inside = sum(kept[each] for each in _below(found, kept))
        where, function = found[-1]
        place = len(nodes)
        nodes.append(
            CallNode(parent=parent, where=where, function=function, looks=kept[found], own_looks=kept[found] - inside)
        )
        _add(nodes, found, place, kept)


def _below(calls: tuple[Call, ...], kept: dict[tuple[Call, ...], int]) -> Iterable[tuple[Call, ...]]:
    return sorted(
        (found for found in kept if len(found) == len(calls) + 1 and found[:-1] == calls),
        key=lambda found: -kept[found],
    )


@functools.cache
def _is_users(filename: str) -> bool:
    return lines.is_users(filename)
