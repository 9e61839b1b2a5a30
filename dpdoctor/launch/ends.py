"""How each rank of a job ended that dpdoctor did not start: of several that failed, who did first and who followed.

A rank that raised says so in its record. What one that did not leaves is the stack that faulthandler wrote last: at a
fatal signal, or at SIGTERM, by which torchrun and mp.spawn end the peers of a rank that failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from dpdoctor import rundir, units
from dpdoctor.launch import stacks, watch
from dpdoctor.launch.processes import RankProcess
from dpdoctor.records import RankRecord

# As many ranks are told of.
MOST_TOLD = 4
LOST = "lost its connection to another rank"
# What gloo, NCCL and torch's store say to the peers of a rank that is gone.
_IS_LOST = re.compile(
    r"(?i)\bconnection (was |likely )*(closed|reset|refused|aborted)|broken pipe|socket closed|timed out waiting|"
    r"remote (peer|process|worker)|ncclRemoteError|recv, got 0 bytes"
)
_RAISED_AT = re.compile(r"\(([^()]+:\d+)\)$")


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank ended that left no good record.

    `words` say it after its name, `line` is where it stood, `follows` whether it may have failed only as another one
    had, `at_ns` when: 0 where nothing tells.
    """

    rank: int
    steps: int
    words: str
    line: str = ""
    follows: bool = False
    at_ns: int = 0
    is_abort: bool = False

    def told(self) -> str:
        """Return rank, steps and how it ended."""
        return f"rank {self.rank}, after {units.count(self.steps, 'step')}: {self.words}"


def failed(ranks: Sequence[RankProcess]) -> list[End]:
    """Return how the ranks ended that failed, the one to blame first."""
    ends = [_end(rank, watch.record_of(rank)) for rank in ranks if watch.has_failed(rank)]
    return sorted(ends, key=lambda end: (end.follows, end.at_ns, end.rank))


def told(ends: Sequence[End]) -> str:
    """Return the reason of a failed launch: the rank to blame, then the others that have something else to say."""
    first, *others = ends
    others = [end for end in others if end.words != first.words]
    said = [end.told() for end in (first, *others[: MOST_TOLD - 1])]
    if len(others) >= MOST_TOLD:
        said.append(f"and {len(others) - MOST_TOLD + 1} more")
    hint = f". {watch.EQUALLY}" if first.is_abort and any(end.line != first.line for end in others) else ""
    return f"{'; '.join(said)}{hint}"


def apart(ranks: Sequence[RankProcess]) -> str:
    """Return that a rank's script came to its end while that of another, which then lost it, went on; else nothing."""
    steps = {rank.rank: _steps(rank) for rank in ranks}
    records = [(rank.rank, watch.record_of(rank)) for rank in ranks]
    ended = [rank for rank, record in records if record is not None and record.ending == "returned"]
    lost = [end for end in failed(ranks) if end.follows and end.rank not in ended]
    if not ended or not lost or steps[ended[0]] > lost[0].steps:
        return ""
    said = watch.ENDED_APART.format(ended[0], units.count(steps[ended[0]], "step"), lost[0].rank)
    return f"{said} {lost[0].told().capitalize()}"


def _end(rank: RankProcess, record: RankRecord | None) -> End:
    if record is None or record.status != "failed" or not record.reason:
        return _without_a_word(rank)
    path = rank.directory / rundir.RANK
    line = found[1] if (found := _RAISED_AT.search(record.reason)) else ""
    is_lost = record.ending == "raised" and _IS_LOST.search(record.reason) is not None
    return End(
        rank=rank.rank,
        steps=_steps(rank),
        words=f"{LOST} at {line}" if is_lost and line else record.reason,
        line=line,
        follows=is_lost,
        at_ns=path.stat().st_mtime_ns,
    )


def _without_a_word(rank: RankProcess) -> End:
    """Return how a rank ended that could say nothing: by a signal or, without a stack, killed or by os._exit."""
    path = rank.directory / rundir.STACKS
    frame, fatal = stacks.innermost_users(path), stacks.fatal(path)
    line = f"{frame.file}:{frame.line}" if frame else ""
    at = f" at {line}" if line else ""
    if fatal:
        words, follows, at_ns = f"its process died ({fatal}){at}", False, path.stat().st_mtime_ns
    elif path.exists() and path.stat().st_size:  # perhaps of a process that was leaving: nothing of the script's ran
        words, follows, at_ns = f"was ended by SIGTERM{at}", True, path.stat().st_mtime_ns
    else:
        words, follows, at_ns = f"its process was killed, or left without a word, {watch.where(rank)}", False, 0
    return End(
        rank=rank.rank,
        steps=_steps(rank),
        words=words,
        line=line,
        follows=follows,
        at_ns=at_ns,
        is_abort=fatal == "Aborted",
    )


def _steps(rank: RankProcess) -> int:
    beat = watch.beat_of(rank)
    return beat.step if beat else 0
