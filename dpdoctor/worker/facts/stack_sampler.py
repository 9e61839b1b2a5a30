"""Where the training thread spends its time: its stack, looked at again and again, as lines and as a tree of calls.

A thread of ours looks; meanwhile the training thread lets go of the interpreter soon after it is asked to, as otherwise
only lines that wait for something would be seen.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from types import FrameType

from dpdoctor.records import CallNode, LineShare
from dpdoctor.worker.base import lines

PERIOD_S, LETS_GO_AFTER_S = 0.001, 0.0001
MOST_LINES = 5
# Fewer looks than this outside of phases say nothing about lines.
LEAST_LOOKS = 10
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where in a step the script is. `gap` is PhaseClock's; the others say which part of LineShare it counts to."""

    gap: int
    is_training: bool = False
    is_preparing: bool = False


class OwnCode:
    """Tells which lines of the script's own code take time outside of phases.

    It looks from `start` to `stop` at the thread that starts it, whenever `moment` says that it is in no phase.

    What was seen in one of the gaps that are `claimed` by then belonged to a phase all the same. `calls` is shown what
    there is to see whether or not that is in a phase.
    """

    def __init__(
        self, moment: Callable[[], Moment | None], claimed: Container[int] = (), calls: CallTree | None = None
    ) -> None:
        self._moment = moment
        self._claimed = claimed
        self._calls = calls
        self._looks: defaultdict[tuple[str, str], list[Moment]] = defaultdict(list)
        self._driving: frozenset[lines.Place] = frozenset()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._switch_s = sys.getswitchinterval()

    def start(self) -> None:
        """Begin to look at the calling thread."""
        watched = threading.get_ident()
        sys.setswitchinterval(LETS_GO_AFTER_S)
        self._thread = threading.Thread(target=self._look, args=(watched,), name="dpdoctor own code", daemon=True)
        self._thread.start()

    def step_ended(self) -> None:
        """The thread that is looked at ends a step: lines that are under way now do not make up the loop."""
        self._driving = lines.under_way()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            sys.setswitchinterval(self._switch_s)

    def found(self) -> tuple[LineShare, ...]:
        """Return the lines that it was seen at most often, each with its share of all looks outside of phases.

        None where there were too few looks.
        """
        seen = {where: [m for m in looks if m.gap not in self._claimed] for where, looks in self._looks.items()}
        every = sum(map(len, seen.values()))
        if every < LEAST_LOOKS:
            return ()
        return tuple(
            LineShare(
                line=line,
                share=len(looks) / every,
                training=sum(look.is_training for look in looks) / len(looks),
                preparing=sum(look.is_preparing for look in looks) / len(looks),
                library=library,
            )
            for (line, library), looks in sorted(seen.items(), key=lambda item: -len(item[1]))[:MOST_LINES]
            if looks
        )

    def _look(self, watched: int) -> None:
        while not self._stopping.wait(PERIOD_S):
            moment = self._moment()
            if moment is None and self._calls is None:
                continue
            stack = frames(watched)
            if not stack:
                continue
            if self._calls is not None:
                self._calls.look(stack[0])
            where = lines.of_users(stack[0], self._driving) if moment is not None else None
            if moment is not None and where is not None:
                self._looks[where].append(moment)


def frames(thread: int) -> list[FrameType]:
    """Return the frames of a thread, the innermost first; empty where it has ended.

    Up to Python 3.11 to make a frame's object may set off a garbage collection, and a finalizer may let that thread run
    on: the object is then made of a frame that has ended, of memory that others use by now, and the process may die of
    it. So there is no collection while the objects of all frames are made, as in CPython's own `sys._current_frames`
    (its issue 106883), and while the list holds them, to walk the stack makes no more. From 3.12 on collections wait
    for the end of a bytecode.
    """
    is_collecting = gc.isenabled()
    if sys.version_info < (3, 12):
        gc.disable()
    try:
        found: list[FrameType] = []
        frame = sys._current_frames().get(thread)
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
    finally:
        if is_collecting:
            gc.enable()
    return found


class CallTree:
    """Tells which calls the time goes to: counts the stacks that it is shown.

    A stack is told by the lines of the user's code and, below the innermost of them, the library functions that it
    calls.
    """

    def __init__(self) -> None:
        self._stacks: Counter[tuple[Call, ...]] = Counter()

    def look(self, frame: FrameType) -> None:
        """Count the stack of a thread once, if it is the script that it is in."""
        if calls := calls_of(frame):
            self._stacks[calls] += 1

    def nodes(self) -> tuple[CallNode, ...]:
        """Return the tree: callers before what they call, which comes right after them, the most seen first."""
        return call_nodes(self._stacks)


def calls_of(frame: FrameType | None) -> tuple[Call, ...]:
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


def call_nodes(stacks: Counter[tuple[Call, ...]]) -> tuple[CallNode, ...]:
    """Return stacks with how often each was seen as a tree, without what was seen too rarely."""
    totals: Counter[tuple[Call, ...]] = Counter()
    for calls, count in stacks.items():
        for depth in range(1, len(calls) + 1):
            totals[calls[:depth]] += count
    least = LEAST_SHARE * stacks.total()
    kept = {calls: count for calls, count in totals.items() if count >= least}
    nodes: list[CallNode] = []
    _add_nodes(nodes, (), -1, kept)
    return tuple(nodes)


def _add_nodes(nodes: list[CallNode], calls: tuple[Call, ...], parent: int, kept: dict[tuple[Call, ...], int]) -> None:
    for found in _below(calls, kept):
        inside = sum(kept[each] for each in _below(found, kept))
        where, function = found[-1]
        place = len(nodes)
        nodes.append(
            CallNode(parent=parent, where=where, function=function, looks=kept[found], own_looks=kept[found] - inside)
        )
        _add_nodes(nodes, found, place, kept)


def _below(calls: tuple[Call, ...], kept: dict[tuple[Call, ...], int]) -> Iterable[tuple[Call, ...]]:
    return sorted(
        (found for found in kept if len(found) == len(calls) + 1 and found[:-1] == calls),
        key=lambda found: -kept[found],
    )


@functools.cache
def _is_users(filename: str) -> bool:
    return lines.is_users(filename)
