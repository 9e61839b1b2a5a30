"""The run directory: names of its files, their records, whole writes and tolerant reads.

A rank that died is data, not a crash: what it left is read, what is missing is missing.

    header.json                    RunHeader
    run.json                       the summary, written last
    <mode>/launch.json             LaunchRecord; <mode>.2, <mode>.3 for repeated launches; bare, bare.2, ... and
                                   watched, watched.2, ... measure what watching costs;
                                   <mode>.trace where a mode's script ended before its trace
    <mode>/node0.jsonl             Sample lines of the host and device samplers
    <mode>/rank<k>/rank.json       RankRecord
    <mode>/rank<k>/steps.jsonl     StepRecord lines
    <mode>/rank<k>/windows.jsonl   WindowRecord lines
    <mode>/rank<k>/events.jsonl    EventRecord lines
    <mode>/rank<k>/loader.jsonl    BatchRecord lines
    <mode>/rank<k>/memory.jsonl    MemoryRecord lines
    <mode>/rank<k>/digest.json     Digest, of the trace
    <mode>/rank<k>/trace.json.gz, stdout.log, stderr.log, stacks.log
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
from msgspec.structs import replace

from dpdoctor import redact, schema1
from dpdoctor.digest import Digest
from dpdoctor.errors import OutputError, RunDirectoryError
from dpdoctor.loading import BatchRecord
from dpdoctor.records import (
    EventRecord,
    Launch,
    LaunchRecord,
    MemoryRecord,
    Rank,
    RankRecord,
    Run,
    Sample,
    StepRecord,
    WindowRecord,
)
from dpdoctor.spec import SCHEMA, RunHeader

T = TypeVar("T")

HEADER = "header.json"
# What it says of itself near its beginning.
_OF_DPDOCTOR, _MOST_READ = b'"dpdoctor":', 200
SUMMARY = "run.json"
REPORT = "report.html"
LAUNCH = "launch.json"
RANK = "rank.json"
STEPS = "steps.jsonl"
WINDOWS = "windows.jsonl"
EVENTS = "events.jsonl"
LOADER = "loader.jsonl"
MEMORY = "memory.jsonl"
NODE = "node0.jsonl"
TRACE = "trace.json.gz"
DIGEST = "digest.json"
TIMELINE = "timeline.json.gz"
STDOUT = "stdout.log"
STDERR = "stderr.log"
STACKS = "stacks.log"
# Nobody reads more of a log, and searching what a script prints for ever for secrets takes longer than printing it.
MOST_LOG_BYTES = 2_000_000
# Of a launch whose ranks somebody else starts: its task, its worlds of ranks while they run, its watched processes.
TASK = "task.json"
# Names of the parameters that got no gradient in the baseline: too many for the environment of a process.
UNUSED = "unused.json"
WORLDS = "worlds"
PROCESSES = "processes.tsv"
# What a process says there that joins others over torch.distributed.rpc.
OVER_RPC = "over rpc"
# Why a process that a rank's script started is no rank of a group.
REFUSAL = "refusal.txt"
# What a rank's script writes, while it runs.
OVERLAY = "overlay"
COPIES = "copies"
# Where ranks meet, while they run.
RENDEZVOUS = "rendezvous"
# Stand for a mode in the directories of the launches that measure what watching costs.
BARE, WATCHED = "bare", "watched"

# What msgspec raises for bytes that are not the JSON they should be.
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError)
# The launcher reads records in two threads. Where both are the first to decode a class, msgspec 0.22 uses what the
# other has half built, and crashes.
_decoders: dict[tuple[Any, int], Callable[[bytes], Any]] = {}
_building = threading.Lock()


def launch_dir(root: Path, mode: str, launch: int = 1) -> Path:
    """Return the directory of the n-th launch of a mode: `ddp`, `ddp.2`, ..."""
    return root / (mode if launch == 1 else f"{mode}.{launch}")


def num_launches(root: Path, name: str) -> int:
    """Return how many launches there are of what stands for a mode, BARE or WATCHED."""
    return len(list(root.glob(f"{name}*")))


def trace_dir(root: Path, mode: str) -> Path:
    """Return the directory of the launch of a mode that was made for its trace alone: `ddp.trace`."""
    return root / f"{mode}.trace"


def trial_dir(root: Path, mode: str) -> Path:
    """Return the directory of the launch of a mode in which another setting of its loader was tried: `ddp.trial`."""
    return root / f"{mode}.trial"


def rank_dir(launch_path: Path, rank: int) -> Path:
    """Return the directory of one rank of a launch."""
    return launch_path / f"rank{rank}"


def world_dir(launch_path: Path, world: str) -> Path:
    """Return the directory of the ranks that meet each other, of a launch whose ranks somebody else starts."""
    return launch_path / WORLDS / world


def create(directory: Path) -> None:
    """Create a directory for results, and those above it.

    Raises:
        OutputError: it exists already, or cannot be made.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError as error:
        raise OutputError(
            f"{directory} exists already; nothing is overwritten. Give --out a directory that does not exist"
        ) from error
    except OSError as error:
        raise OutputError(
            f"cannot create {directory}: {error.strerror or error}. Give --out a directory you may write"
        ) from error


def encode(value: Any) -> bytes:
    """Return `value` as one line of JSON without secrets. NaN and infinity become null."""
    return redact.json_text(_as_json(value))


def _as_json(value: Any) -> bytes:
    """Return JSON; of bytes that are no text, as names of files may hold (os.fsdecode), a replacement character."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(msgspec.to_builtins(value)))


def _as_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode(errors="replace")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    return [_as_text(item) for item in value] if isinstance(value, list | tuple) else value


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    Raises:
        OutputError: the directory cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def indented(value: Any) -> bytes:
    """Return `value` as JSON that people can read, with a new line at its end."""
    return msgspec.json.format(encode(value), indent=1) + b"\n"


def write_json(path: Path, value: Any) -> None:
    """Write one value as indented JSON, whole or not at all."""
    write_whole(path, indented(value))


def redact_log(path: Path, *, whole: bool = False) -> None:
    """Replace secrets in what a process has printed; nothing writes to the file any more.

    Of a log of more than twice MOST_LOG_BYTES only so much of its beginning and of its end is kept, in whole lines,
    unless it is to stay `whole`.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if whole and num_bytes > 2 * MOST_LOG_BYTES:
                _redact_in_pieces(path, file)
                return
            data = file.read(2 * MOST_LOG_BYTES) if num_bytes <= 2 * MOST_LOG_BYTES else _ends(file, num_bytes)
    except OSError:
        return
    shown = redact.lines(data)
    if shown != data or len(data) < num_bytes:
        write_whole(path, shown)


def _redact_in_pieces(path: Path, log: BinaryIO) -> None:
    """Replace secrets in a log of any length, of which some whole lines, or states of a bar, are held at once."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    rest, has_changed = b"", False
    try:
        with temporary.open("wb") as file:
            while read := log.read(MOST_LOG_BYTES):
                piece = rest + read
                end = 1 + max(piece.rfind(b"\n"), piece.rfind(b"\r"))
                has_changed |= _redact_to(file, piece[:end])
                rest = piece[end:]
            has_changed |= _redact_to(file, rest)
        if has_changed:
            temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _redact_to(file: BinaryIO, data: bytes) -> bool:
    """Write without secrets what a process has printed; return whether it had any."""
    shown = redact.lines(data)
    file.write(shown)
    return shown != data


def _ends(log: BinaryIO, num_bytes: int) -> bytes:
    """Return the first and the last lines of a log. Half a line would hold half a secret, which nobody knows."""
    first = log.read(MOST_LOG_BYTES).rpartition(b"\n")
    log.seek(num_bytes - MOST_LOG_BYTES)
    last = log.read(MOST_LOG_BYTES).partition(b"\n")[2]
    begin = b"".join(first[:2])
    left_out = f"[dpdoctor left out {num_bytes - len(begin) - len(last)} bytes of this log]\n".encode()
    return begin + left_out + last


def redact_trace(path: Path) -> None:
    """Replace known secrets in a gzipped trace.

    Raises:
        OutputError: it cannot be written.
    """
    if not redact.knows_any():
        return
    data = gzip.decompress(path.read_bytes())
    if redact.knows(data):
        write_whole(path, gzip.compress(redact.json_text(data)))


def _decoder(kind: type[T], schema: int) -> Callable[[bytes], T]:
    with _building:
        if (kind, schema) not in _decoders:
            is_old = schema == schema1.SCHEMA_1
            _decoders[kind, schema] = schema1.decoder(kind) if is_old else msgspec.json.Decoder(kind).decode
        return _decoders[kind, schema]


def read_unused(launch_path: Path) -> tuple[str, ...]:
    """Return the names of the parameters that got no gradient in the baseline; empty: none, or it was not run."""
    path = launch_path / UNUSED
    return read_json(path, tuple[str, ...]) if path.exists() else ()


def read_json(path: Path, kind: type[T], *, schema: int = SCHEMA) -> T:
    """Return the value of a JSON file, which was written in this schema.

    Raises:
        RunDirectoryError: missing, unreadable, or not of this shape; names the file and the place in it.
    """
    try:
        data = path.read_bytes()
        return _decoder(kind, schema)(data)
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path} is missing") from error
    except OSError as error:
        raise RunDirectoryError(f"cannot read {path}: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise RunDirectoryError(f"{path} is damaged: {error}") from error


def read_lines(path: Path, kind: type[T], *, schema: int = SCHEMA) -> tuple[T, ...]:
    """Return the records of a JSON-lines file up to the first that is cut short; empty when there is no file."""
    decode = _decoder(kind, schema if kind.__name__ in schema1.RENAMES else SCHEMA)
    records: list[T] = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return ()
    for line in lines:
        try:
            records.append(decode(line))
        except _DAMAGED:
            break
    return tuple(records)


def append_lines(path: Path, records: Iterable[Any]) -> None:
    """Append records as JSON lines in one write.

    Raises:
        OutputError: the file cannot be written, because the disk is full, say.
    """
    data = b"".join(_as_json(record) + b"\n" for record in records)
    if not data:
        return
    if redact.knows(data):  # steps and samples are numbers, but for a few
        data = redact.json_text(data)
    try:
        with path.open("ab") as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def is_run(path: Path) -> bool:
    """Return whether a path is the directory of a run; others may have a file of that name, too."""
    try:
        with (path / HEADER).open("rb") as file:
            return _OF_DPDOCTOR in file.read(_MOST_READ)
    except OSError:
        return False


def read(path: Path) -> Run:
    """Return the run in `path`, complete or not.

    Raises:
        RunDirectoryError: not a run directory, damaged header, or written by another schema.
    """
    if not path.is_dir():
        raise RunDirectoryError(
            f"{path} is not a directory. Give the directory that `dpdoctor profile` printed at its end."
        )
    _, schema = (_schema_of(path / name) for name in (SUMMARY, HEADER))
    if not is_run(path):
        raise RunDirectoryError(
            f"{path} is not a run directory: it has no {HEADER} of dpdoctor's. "
            "Give the directory that `dpdoctor profile` printed at its end."
        )
    header = read_json(path / HEADER, RunHeader, schema=schema)
    modes = {spec.name: _read_mode(path, spec.name, header.spec.repeat, schema) for spec in header.spec.modes}
    tried = {name: found for name in modes if (found := trial_dir(path, name)).is_dir()}
    return Run(
        path=path,
        header=header,
        modes=modes,
        bare=_read_launches(path, BARE, num_launches(path, BARE), schema),
        watched=_read_launches(path, WATCHED, num_launches(path, WATCHED), schema),
        trials={name: read_launch(found, name, schema=schema) for name, found in tried.items()},
    )


def _schema_of(path: Path) -> int:
    """Return the schema in which a file was written; a file that is not there is no obstacle."""
    if not path.exists():
        return SCHEMA
    found = read_json(path, dict[str, Any])
    schema = found.get("schema")
    if schema in (schema1.SCHEMA_1, SCHEMA):
        return int(schema)
    raise RunDirectoryError(
        f"{path} has schema {schema!r}; this dpdoctor reads schemas {schema1.SCHEMA_1} and {SCHEMA}. "
        f"Read it with {_writer(found.get('dpdoctor'))}, or profile again."
    )


def _writer(version: Any) -> str:
    """Return which dpdoctor wrote a file, and so reads it."""
    if isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version):
        return f"dpdoctor {version}, which wrote it"
    return "the version of dpdoctor that wrote it"


def _read_mode(root: Path, mode: str, repeat: int, schema: int) -> tuple[Launch, ...]:
    launches, traced = _read_launches(root, mode, repeat, schema), trace_dir(root, mode)
    if not launches or not traced.is_dir():
        return launches
    return (_with_trace(launches[0], read_launch(traced, mode, schema=schema)), *launches[1:])


def _with_trace(launch: Launch, traced: Launch) -> Launch:
    """Return a launch whose ranks went on, for the trace, in another one: its steps follow those of the first."""
    ranks, record = launch.ranks, traced.record
    if len(ranks) == len(traced.ranks) and all(rank.digest for rank in traced.ranks):
        ranks = tuple(map(_gone_on, ranks, traced.ranks))
    elif record.reason is None:
        lost = (rank.record.trace_lost for rank in traced.ranks if rank.record)
        record = replace(record, reason=next(filter(None, lost), None))
    return replace(launch, ranks=ranks, traced=record)


def _gone_on(rank: Rank, traced: Rank) -> Rank:
    steps, windows = len(rank.steps), 1 + max((window.window for window in rank.windows), default=0)
    record = rank.record
    if record is not None and traced.record is not None:
        of_trace = traced.record
        record = replace(
            record, own_code=of_trace.own_code, call_tree=of_trace.call_tree, trace_lost=of_trace.trace_lost
        )
    return replace(
        rank,
        record=record,
        trace=traced.trace,
        digest=traced.digest,
        steps=rank.steps
        + tuple(replace(step, step=step.step + steps, window=step.window + windows) for step in traced.steps),
        windows=rank.windows
        + tuple(
            replace(window, window=window.window + windows, first_step=window.first_step + steps)
            for window in traced.windows
        ),
        memory=rank.memory + tuple(replace(found, window=found.window + windows) for found in traced.memory),
        events=rank.events + tuple(replace(event, step=event.step + steps) for event in traced.events),
    )


def _read_launches(root: Path, mode: str, repeat: int, schema: int) -> tuple[Launch, ...]:
    paths = [launch_dir(root, mode, number) for number in range(1, repeat + 1)]
    return tuple(
        read_launch(path, mode, number, schema=schema) for number, path in enumerate(paths, 1) if path.is_dir()
    )


def read_launch(path: Path, mode: str, number: int = 1, *, schema: int = SCHEMA) -> Launch:
    """Return the launch of a mode in its own directory, as `launch_dir` names it; number: which of its launches.

    Raises:
        RunDirectoryError: a file in it is damaged.
    """
    if (path / LAUNCH).exists():
        record = read_json(path / LAUNCH, LaunchRecord, schema=schema)
    else:
        record = LaunchRecord(
            mode=mode, launch=number, status="failed", reason="dpdoctor itself was ended during this mode"
        )
    indices = sorted(int(m[1]) for p in path.iterdir() if (m := re.fullmatch(r"rank(\d+)", p.name)))
    ranks = tuple(_read_rank(rank_dir(path, index), index, schema) for index in indices)
    return Launch(record=record, ranks=ranks, samples=read_lines(path / NODE, Sample))


def _read_rank(path: Path, index: int, schema: int) -> Rank:
    record = read_json(path / RANK, RankRecord, schema=schema) if (path / RANK).exists() else None
    trace, digest = path / TRACE, path / DIGEST
    return Rank(
        index=index,
        record=record,
        steps=read_lines(path / STEPS, StepRecord),
        windows=read_lines(path / WINDOWS, WindowRecord, schema=schema),
        events=read_lines(path / EVENTS, EventRecord),
        batches=read_lines(path / LOADER, BatchRecord),
        memory=read_lines(path / MEMORY, MemoryRecord),
        trace=trace if trace.exists() else None,
        digest=read_json(digest, Digest, schema=schema) if digest.exists() else None,
    )
