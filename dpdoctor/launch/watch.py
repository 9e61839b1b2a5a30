"""Watching one launch: signs of life in, a verdict out.

A rank that raised says so in its record. What one that did not leaves is the stack of its main thread that faulthandler
wrote last: when it was stuck, at a fatal signal, or at SIGTERM, by which torchrun and mp.spawn end the peers of a rank
that failed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from dpdoctor import heartbeat, redact, rundir, units
from dpdoctor.errors import RunDirectoryError
from dpdoctor.heartbeat import Beat
from dpdoctor.launch.processes import RankProcess
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
# Fewer may be what a script tries before it trains.
MANY_PASSES = 10
NO_UPDATE = "{} ended, and no optimizer took a step after one: does the script call optimizer.step()?"
ENDED_APART = (
    "the script of rank {} ended after {}, while that of rank {} trained on and waited for it: ranks must take equally "
    "many steps. Does what it draws or computes by itself decide when to end?"
)

# Before its first step a script may prepare for this many times the timeout, as long as it prints.
PREPARING = 1.5

# Lines that torch's profiler prints on every machine; they explain no failure.
_NOISE = re.compile(rb"^(USDT:|ERROR:.*DeviceProperties\.cpp|.*\bCPUAllocator\.cpp:\d+\] Memory block of unknown size)")
MOST_REFUSALS = 5
# What a line says around its refusal is enough: it may be all that a script logs of a step.
AROUND = 150
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
    places = {rank.rank: innermost_frame(rank.directory / rundir.STACKS) for rank in stuck}
    culprit = min(
        stuck,
        key=lambda rank: (_waits(places[rank.rank]), rank.rank not in silent, _steps(rank), rank.rank),
    )
    at = innermost_users_frame(culprit.directory / rundir.STACKS) or places[culprit.rank]
    line = f"; it stands at {at.file}:{at.line} in {at.function}" if at else ""
    who = f"rank {culprit.rank}" if len(ranks) > 1 else "the script"
    prints = f"; {PRINTING}" if _has_just_printed(culprit, timeout_s) else ""
    no_update = without_update(ranks)
    way_out = f"{no_update} {MORE_TIME}" if no_update else _way_out(ranks)
    reason = f"{who} made no progress for {units.seconds(timeout_s)} {where(culprit)}{line}{prints}. {way_out}"
    return LaunchOutcome(
        status="failed",
        reason=reason,
        failed_rank=culprit.rank,
        stderr_tail=tail(culprit.directory / rundir.STDERR),
    )


def without_update(ranks: Sequence[RankProcess]) -> str:
    """Return that ranks run backward passes and take no step; empty: some took one, or ran few."""
    beats = [beat for rank in ranks if (beat := beat_of(rank))]
    fewest = min((beat.passes for beat in beats), default=0)
    if fewest < MANY_PASSES or any(beat.step for beat in beats):
        return ""
    return NO_UPDATE.format(units.count(fewest, "backward pass"))


def _way_out(ranks: Sequence[RankProcess]) -> str:
    """Return what to do about ranks that are stuck: where each one waits in an exchange, more time changes nothing."""
    paths = [rank.directory / rundir.STACKS for rank in ranks if rank.exit_code() is None]
    frames = [innermost_frame(path) for path in paths]
    if len(frames) < 2 or not all(frame is not None and frame.is_exchanging for frame in frames):
        return f"{MORE_TIME}{'' if any(map(_steps, ranks)) else NO_STEPS}"
    return f"{EQUALLY} {CALLED_EQUALLY}" if any(map(is_in_fsdp, paths)) else EQUALLY


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
    """Return what was printed, by whatever ranks started, of a file that the kernel refused them for us, redacted."""
    walled = [rank for rank in ranks if (record := record_of(rank)) and record.protected_by == "landlock"]
    said = [
        line for rank in walled for name in (rundir.STDOUT, rundir.STDERR) for line in _refused(rank.directory / name)
    ]
    return tuple(dict.fromkeys(said))[:MOST_REFUSALS]


def _refused(path: Path) -> list[str]:
    # Of a secret that is cut through nobody knows any more that it is one.
    lines = map(redact.text, tail(path, TAIL_BYTES))
    return [_around(line, found) for line in lines if (found := _REFUSED.search(line))]


def _around(line: str, found: re.Match[str]) -> str:
    """Return what is found in a line, with so much of the line on both sides."""
    begin, end = max(0, found.start() - AROUND), found.end() + AROUND
    cut = "\N{HORIZONTAL ELLIPSIS}"
    return f"{cut if begin else ''}{line[begin:end]}{cut if end < len(line) else ''}"


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


def ends_of_failed(ranks: Sequence[RankProcess]) -> list[End]:
    """Return how the ranks ended that failed, the one to blame first."""
    ends = [_end_of(rank, record_of(rank)) for rank in ranks if has_failed(rank)]
    return sorted(ends, key=lambda end: (end.follows, end.at_ns, end.rank))


def told_ends(ends: Sequence[End]) -> str:
    """Return the reason of a failed launch: the rank to blame, then the others that have something else to say."""
    first, *others = ends
    others = [end for end in others if end.words != first.words]
    said = [end.told() for end in (first, *others[: MOST_TOLD - 1])]
    if len(others) >= MOST_TOLD:
        said.append(f"and {len(others) - MOST_TOLD + 1} more")
    hint = f". {EQUALLY}" if first.is_abort and any(end.line != first.line for end in others) else ""
    return f"{'; '.join(said)}{hint}"


def ended_apart(ranks: Sequence[RankProcess]) -> str:
    """Return that a rank's script came to its end while that of another, which then lost it, went on; else nothing."""
    steps = {rank.rank: _steps(rank) for rank in ranks}
    records = [(rank.rank, record_of(rank)) for rank in ranks]
    ended = [rank for rank, record in records if record is not None and record.ending == "returned"]
    lost = [end for end in ends_of_failed(ranks) if end.follows and end.rank not in ended]
    if not ended or not lost or steps[ended[0]] > lost[0].steps:
        return ""
    said = ENDED_APART.format(ended[0], units.count(steps[ended[0]], "step"), lost[0].rank)
    return f"{said} {lost[0].told().capitalize()}"


def _end_of(rank: RankProcess, record: RankRecord | None) -> End:
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
    frame, fatal = innermost_users_frame(path), fatal_signal(path)
    line = f"{frame.file}:{frame.line}" if frame else ""
    at = f" at {line}" if line else ""
    if fatal:
        words, follows, at_ns = f"its process died ({fatal}){at}", False, path.stat().st_mtime_ns
    elif path.exists() and path.stat().st_size:  # perhaps of a process that was leaving: nothing of the script's ran
        words, follows, at_ns = f"was ended by SIGTERM{at}", True, path.stat().st_mtime_ns
    else:
        words, follows, at_ns = f"its process was killed, or left without a word, {where(rank)}", False, 0
    return End(
        rank=rank.rank,
        steps=_steps(rank),
        words=words,
        line=line,
        follows=follows,
        at_ns=at_ns,
        is_abort=fatal == "Aborted",
    )


PACKAGE = Path(__file__).parents[1]
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_NOT_USERS = ("<", *(f"{path}{os.sep}" for path in (PACKAGE, sysconfig.get_path("stdlib"))))
_INSTALLED = ("/site-packages/", "/dist-packages/")


class Frame(msgspec.Struct, frozen=True):
    """One line of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Return whether it is neither Python's, nor installed, nor dpdoctor's."""
        return not self.file.startswith(_NOT_USERS) and not any(name in self.file for name in _INSTALLED)

    @property
    def is_waiting(self) -> bool:
        """Return whether it is torch's or dpdoctor's: who stands there waits for other ranks."""
        return self._is_in(PACKAGE, *_torch())

    @property
    def is_exchanging(self) -> bool:
        """Return whether it is of torch.distributed or DDP: who stands there exchanges something with other ranks."""
        ddp = [str(Path(folder, "nn", "parallel", "distributed.py")) for folder in _torch()]
        return self.file in ddp or self._is_in(*(Path(folder, "distributed") for folder in _torch()))

    @property
    def is_fsdps(self) -> bool:
        """Return whether it is of torch's FSDP."""
        return self._is_in(*(Path(folder, "distributed", "fsdp") for folder in _torch()))

    def _is_in(self, *folders: str | Path) -> bool:
        return any(self.file.startswith(f"{folder}{os.sep}") for folder in folders)


def innermost_frame(stacks: Path) -> Frame | None:
    """Return the innermost frame; None: there is no stack."""
    return next(_frames(stacks), None)


def innermost_users_frame(stacks: Path) -> Frame | None:
    """Return the innermost frame of the user's; None: there is none."""
    return next((frame for frame in _frames(stacks) if frame.is_users), None)


def is_in_fsdp(stacks: Path) -> bool:
    """Return whether a call of torch's FSDP has not returned."""
    return any(frame.is_fsdps for frame in _frames(stacks))


def fatal_signal(stacks: Path) -> str:
    """Return the signal's name, as faulthandler gives it, by which the process died; empty: none that it saw."""
    try:
        found = _FATAL.findall(stacks.read_text(errors="replace"))
    except OSError:
        return ""
    return str(found[-1]) if found else ""


def _torch() -> Sequence[str]:
    torch = importlib.util.find_spec("torch")  # found, not imported
    return torch.submodule_search_locations or () if torch else ()


def _frames(stacks: Path) -> Iterator[Frame]:
    """Yield the frames of the last dump's main thread, the innermost first."""
    try:
        lines = stacks.read_text(errors="replace").splitlines()
    except OSError:
        return
    # faulthandler tells the main thread, in which signals are handled, last.
    heads = [number for number, line in enumerate(lines) if "most recent call first" in line and "C stack" not in line]
    for line in lines[heads[-1] + 1 :] if heads else ():
        found = _FRAME.match(line)
        if found:
            yield Frame(found["file"], int(found["line"]), found["function"])
