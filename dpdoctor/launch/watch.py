"""Watching one launch: signs of life in, a verdict out."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dpdoctor import heartbeat, rundir, units
from dpdoctor.errors import RunDirectoryError
from dpdoctor.heartbeat import Beat
from dpdoctor.launch import stacks
from dpdoctor.launch.processes import RankProcess
from dpdoctor.launch.stacks import Frame
from dpdoctor.records import RankRecord

# Said where a rank that is ended for want of steps printed something.
PRINTING = "printed lines are not counted as progress"
TAIL_LINES = 15
TAIL_BYTES = 64_000
# A rank whose record is complete may take this long to leave; a `finally` of the script may take longer.
MOST_LEAVING_S = 15.0

EQUALLY = "All ranks must take equally many steps and exchange the same in each."
CALLED_EQUALLY = "In fsdp each call of a model exchanges its parameters, so that all ranks must call it equally often"
# What gloo says as it ends the process.
_LONGER = "Received data size doesn't match expected size"
SENT_MORE = (
    f". Another rank sent more than it waited for. {EQUALLY} In fsdp a parameter that gets a gradient on one rank must "
    "get one on all: neither chance nor data may decide for each rank which layers run"
)
MORE_TIME = "--timeout gives it more time"
NO_STEPS = "; what trains without a backward pass, as evolution strategies do, has no steps to measure"
ENDED_APART = (
    "the script of rank {} ended after {}, while that of rank {} trained on and waited for it: ranks must take equally "
    "many steps. Does what it draws or computes by itself decide when to end?"
)

# Before its first step a script may prepare for this many times the timeout, as long as it prints.
PREPARING = 1.5

# Lines that torch's profiler prints on every machine; they explain no failure.
_NOISE = re.compile(rb"^(USDT:|ERROR:.*DeviceProperties\.cpp|.*\bCPUAllocator\.cpp:\d+\] Memory block of unknown size)")
MOST_REFUSALS = 5
OUT_OF_MEMORY = "the kernel killed a process meanwhile, as memory ran out"
_COUNTERS = Path("/proc/vmstat")
_REFUSED = re.compile(r"(?i)permission denied|read-?only (?:file ?system|database)")


class LaunchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a launch ended."""

    status: str
    reason: str | None = None
    failed_rank: int | None = None
    stderr_tail: tuple[str, ...] = ()


class Patience:
    """Notices when a sign that a rank gives has not changed for too long."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._seen: dict[int, tuple[object, float]] = {}

    def exhausted_by(self, signs: Mapping[int, object]) -> list[int]:
        """Return the ranks whose sign has not changed for the timeout."""
        now = self._clock()
        for rank, sign in signs.items():
            if rank not in self._seen or self._seen[rank][0] != sign:
                self._seen[rank] = (sign, now)
        return [rank for rank in signs if now - self._seen[rank][1] > self._timeout_s]


class Hope:
    """Is given up when a rank makes no progress for the timeout: no step, no new stage.

    What it prints is progress until its first step, and until PREPARING timeouts have passed without one: what prints
    for ever would never end.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self._idle, self._preparing = Patience(timeout_s, clock), Patience(PREPARING * timeout_s, clock)

    def lost_in(self, beats: Mapping[int, Beat | None], printed: Callable[[int], object]) -> list[int]:
        """Return the ranks without progress; `printed` tells what changes when a rank prints."""
        signs = {rank: beat if beat and beat.step else (beat, printed(rank)) for rank, beat in beats.items()}
        steps = {rank: beat if beat and beat.step else None for rank, beat in beats.items()}
        idle, unprepared = self._idle.exhausted_by(signs), self._preparing.exhausted_by(steps)
        return [rank for rank in beats if rank in idle or rank in unprepared]


def record_of(rank: RankProcess) -> RankRecord | None:
    """Return what a rank said of itself last; None when it said nothing readable."""
    try:
        return rundir.read_json(rank.directory / rundir.RANK, RankRecord)
    except RunDirectoryError:
        return None


def beat_of(rank: RankProcess) -> Beat | None:
    """Return a rank's last sign of life."""
    return heartbeat.read(rank.directory)


def has_failed(rank: RankProcess) -> bool:
    """Return whether a rank ended without a complete record."""
    code = rank.exit_code()
    if code is None:
        return False
    record = record_of(rank)
    return record is None or record.status != "ok"


def outcome_of(ranks: Sequence[RankProcess]) -> LaunchOutcome:
    """Return the verdict over ranks that have all ended; of several that failed, the first one is to blame."""
    failed = [rank for rank in ranks if has_failed(rank)]
    if not failed:
        return LaunchOutcome(status="ok")
    culprit = min(failed, key=_blame)
    returned = next((rank for rank in ranks if _has_returned(rank)), None)
    if returned is not None and _was_refused(culprit):
        # It waited for one whose script had come to its end.
        reason = ENDED_APART.format(returned.rank, units.count(_steps(returned), "step"), culprit.rank)
        return LaunchOutcome(status="failed", reason=reason, failed_rank=culprit.rank)
    return LaunchOutcome(
        status="failed",
        reason=_reason(culprit, alone=len(ranks) == 1 or _failed_alike(ranks)),
        failed_rank=culprit.rank,
        stderr_tail=() if _was_refused(culprit) else _printed(culprit),
    )


def _printed(rank: RankProcess) -> tuple[str, ...]:
    """Return the last lines that a rank printed to stderr or, where there are none, to stdout."""
    return tail(rank.directory / rundir.STDERR) or tail(rank.directory / rundir.STDOUT)


def _has_returned(rank: RankProcess) -> bool:
    """Return whether a rank's script came to its end by itself, with enough recorded."""
    record = record_of(rank)
    return record is not None and (record.status, record.ending) == ("ok", "returned")


def _was_refused(rank: RankProcess) -> bool:
    """Return whether dpdoctor itself ended the rank for a reason: what the script printed before is none."""
    record = record_of(rank)
    return record is not None and (record.status, record.ending) == ("failed", "stopped")


def _failed_alike(ranks: Sequence[RankProcess]) -> bool:
    """Return whether every rank gives the same reason: then the script failed, not a rank."""
    reasons = {record.reason if (record := record_of(rank)) else None for rank in ranks}
    return len(reasons) == 1 and None not in reasons


def _blame(rank: RankProcess) -> tuple[int, int]:
    """Order: killed from outside, then by the time of the last record; those that we ended come last.

    SIGABRT is how NCCL's watchdog ends a rank whose peer is gone: that one is not killed, it only follows.
    """
    if rank.ended_by_us:
        return (2, rank.rank)
    code = rank.exit_code() or 0
    if code < 0 and -code != signal.SIGABRT:
        return (0, rank.rank)
    path = rank.directory / rundir.RANK
    return (1, path.stat().st_mtime_ns if path.exists() else 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reason(rank: RankProcess, *, alone: bool) -> str:
    record, code = record_of(rank), rank.exit_code()
    who = "" if alone else f"rank {rank.rank}: "
    if record is not None and record.status == "failed" and record.reason:
        return f"{who}{record.reason}"
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was killed by {_signal_name(-code)}"
    elif code == 128 + signal.SIGTERM:  # with which a rank leaves that was asked to
        how = "was ended by SIGTERM"
    got_more = code == -signal.SIGABRT and any(_LONGER in line for line in tail(rank.directory / rundir.STDERR))
    return f"{who}the process {how} {where(rank)}{SENT_MORE if got_more else ''}"


def where(rank: RankProcess) -> str:
    """Return in words how far a rank had come."""
    beat = beat_of(rank)
    if beat is None:
        return "before it began (see its stderr.log)"
    if beat.step == 0:
        return f"in stage {beat.stage}, before its first step"
    return f"in stage {beat.stage}, after {units.count(beat.step, 'step')}"


def outcome_of_hang(ranks: Sequence[RankProcess], silent: Sequence[int], timeout_s: float) -> LaunchOutcome:
    """Return the outcome on ranks that are stuck; call it while they live, after their stacks were written.

    Ranks wait for each other, so all are stuck, and one may still print before its first step: the one to blame stands
    outside of torch, or is the one furthest back.
    """
    stuck = [rank for rank in ranks if rank.rank in silent or (rank.exit_code() is None and not _steps(rank))]
    places = {rank.rank: stacks.innermost(rank.directory / rundir.STACKS) for rank in stuck}
    culprit = min(
        stuck,
        key=lambda rank: (_waits(places[rank.rank]), rank.rank not in silent, _steps(rank), rank.rank),
    )
    at = stacks.innermost_users(culprit.directory / rundir.STACKS) or places[culprit.rank]
    line = f"; it stands at {at.file}:{at.line} in {at.function}" if at else ""
    who = f"rank {culprit.rank}" if len(ranks) > 1 else "the script"
    prints = f"; {PRINTING}" if _has_just_printed(culprit, timeout_s) else ""
    reason = f"{who} made no progress for {units.seconds(timeout_s)} {where(culprit)}{line}{prints}. {_way_out(ranks)}"
    return LaunchOutcome(
        status="failed",
        reason=reason,
        failed_rank=culprit.rank,
        stderr_tail=tail(culprit.directory / rundir.STDERR),
    )


def _way_out(ranks: Sequence[RankProcess]) -> str:
    """Return what to do about ranks that are stuck: where each one waits in an exchange, more time changes nothing."""
    paths = [rank.directory / rundir.STACKS for rank in ranks if rank.exit_code() is None]
    frames = [stacks.innermost(path) for path in paths]
    if len(frames) < 2 or not all(frame is not None and frame.is_exchanging for frame in frames):
        return f"{MORE_TIME}{'' if any(map(_steps, ranks)) else NO_STEPS}"
    return f"{EQUALLY} {CALLED_EQUALLY}" if any(map(stacks.is_in_fsdp, paths)) else EQUALLY


def _has_just_printed(rank: RankProcess, seconds: float) -> bool:
    logs = (rank.directory / rundir.STDOUT, rank.directory / rundir.STDERR)
    return any(path.stat().st_size and time.time() - path.stat().st_mtime < seconds for path in logs)


def _steps(rank: RankProcess) -> int:
    beat = beat_of(rank)
    return beat.step if beat else 0


def _waits(frame: Frame | None) -> bool:
    """Return whether a rank waits for others, as far as anybody knows."""
    return frame is None or frame.is_waiting


def num_oom_kills() -> int:
    """Return how many processes the kernel has killed since boot for lack of memory, of the machine or of a cgroup."""
    try:
        counters = dict(line.split() for line in _COUNTERS.read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))


def refusals(ranks: Sequence[RankProcess]) -> tuple[str, ...]:
    """Return what was printed, by whatever ranks started, of a file that the kernel refused them for us."""
    walled = [rank for rank in ranks if (record := record_of(rank)) and record.protected_by == "landlock"]
    said = [
        line for rank in walled for name in (rundir.STDOUT, rundir.STDERR) for line in _refused(rank.directory / name)
    ]
    return tuple(dict.fromkeys(said))[:MOST_REFUSALS]


def _refused(path: Path) -> list[str]:
    return [line for line in tail(path, TAIL_BYTES) if _REFUSED.search(line)]


def tail(path: Path, num_lines: int = TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines of a log, without the profiler's own; of a progress bar its last state."""
    try:
        with path.open("rb") as file:
            skipped = max(0, path.stat().st_size - TAIL_BYTES)
            file.seek(skipped)
            lines = file.read().split(b"\n")[1 if skipped else 0 :]
    except OSError:
        return ()
    shown = map(_as_shown, lines)
    kept = [line.decode(errors="replace") for line in shown if line.strip() and not _NOISE.match(line)]
    return tuple(kept[-num_lines:])


def _as_shown(line: bytes) -> bytes:
    """Return what a terminal shows in the end: a progress bar begins its line anew."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")
