from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.errors import OutputError, RunDirectoryError
from dpdoctor.records import (
    Check,
    Collective,
    Conversion,
    Counters,
    EventRecord,
    InputTensor,
    Launch,
    Loader,
    Sample,
    WrappedModule,
    Written,
)
from dpdoctor.spec import SCHEMA
from tests.builders import records, traced_runs

CONVERSION = Conversion(
    modules=(WrappedModule(name="LeNet", line="train.py:12", num_parameters=10, trainable_bytes=40),),
    loaders=(
        Loader(
            line="train.py:9",
            dataset="Digits",
            sampler="RandomSampler",
            batch_size=None,
            num_workers=0,
            num_batches=100,
            rule="per-device",
        ),
    ),
    proof=(Check(name="parameters equal", ok=True, text="2 ranks"),),
)
COUNTERS = Counters(
    operators=7,
    collectives={"all_reduce": Collective(count=1, num_bytes=40)},
    inputs=(InputTensor(dtype="float32", shape=(32, 1, 28, 28), num_bytes=100_352),),
)
_BUILT = records.launch(
    records.even_rank(50, world_size=2, conversion=CONVERSION, counters=COUNTERS),
    records.even_rank(60, world_size=2, index=1, peak_memory_bytes=5),
    mode="ddp",
    exit_codes=(0, 0),
)
# As it is read: without facts.
LAUNCH = Launch(record=_BUILT.record, ranks=_BUILT.ranks, samples=())


def write_rank(path: Path, rank: records.Rank) -> None:
    directory = rundir.rank_dir(path, rank.index)
    directory.mkdir(parents=True)
    rundir.write_json(directory / rundir.RANK, rank.record)
    rundir.append_lines(directory / rundir.STEPS, rank.steps)
    rundir.append_lines(directory / rundir.WINDOWS, rank.windows)
    rundir.append_lines(directory / rundir.EVENTS, rank.events)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a complete run directory with one launch of ddp on two ranks."""
    rundir.write_json(tmp_path / rundir.HEADER, records.header({"ddp": 2}))
    path = rundir.launch_dir(tmp_path, "ddp")
    for rank in LAUNCH.ranks:
        write_rank(path, rank)
    rundir.write_json(path / rundir.LAUNCH, LAUNCH.record)
    return tmp_path


def change(path: Path, **fields: Any) -> None:
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **fields}))


def test_what_is_written_is_what_is_read(directory: Path) -> None:
    events = (EventRecord(kind="gc", at_ns=3, duration_ns=2, step=1), EventRecord(kind="note", at_ns=4, step=2))
    samples = (Sample(at_ns=1, source="host", values={"cpu": 0.5}, unknown={"power": "no such counter"}),)
    rundir.append_lines(directory / "ddp/rank0" / rundir.EVENTS, events)
    rundir.append_lines(directory / "ddp" / rundir.NODE, samples)
    (directory / "ddp/rank1" / rundir.TRACE).touch()

    run = rundir.read(directory)

    assert run.path == directory
    assert run.header == records.header({"ddp": 2})
    assert run.modes == {
        "ddp": (
            replace(
                LAUNCH,
                samples=samples,
                ranks=(
                    replace(LAUNCH.ranks[0], events=events),
                    replace(LAUNCH.ranks[1], trace=directory / "ddp/rank1" / rundir.TRACE),
                ),
            ),
        )
    }


def test_repeated_launches_are_read_in_order(directory: Path) -> None:
    rundir.write_json(directory / rundir.HEADER, records.header({"ddp": 2}, repeat=3))
    second = replace(LAUNCH.record, launch=2)
    rundir.launch_dir(directory, "ddp", 2).mkdir()
    rundir.write_json(rundir.launch_dir(directory, "ddp", 2) / rundir.LAUNCH, second)

    launches = rundir.read(directory).modes["ddp"]

    assert [launch.record for launch in launches] == [LAUNCH.record, second]


def test_two_threads_may_be_the_first_to_read_a_record(directory: Path) -> None:
    """In ten processes, because it is the first time that counts; without the lock most of them crash."""
    path = rundir.rank_dir(rundir.launch_dir(directory, "ddp"), 0) / rundir.RANK
    code = """
import os, sys, threading
from pathlib import Path
from dpdoctor import rundir
from dpdoctor.records import RankRecord

def read():
    barrier.wait()
    rundir.read_json(Path(sys.argv[1]), RankRecord)

for _ in range(10):
    if os.fork() == 0:
        sys.setswitchinterval(1e-6)
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(10)])
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([0] * 10)


def test_a_mode_that_never_began_has_no_launch(directory: Path) -> None:
    rundir.write_json(directory / rundir.HEADER, records.header({"ddp": 2, "fsdp": 2}))
    assert rundir.read(directory).modes["fsdp"] == ()


class TestDamage:
    def test_not_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(RunDirectoryError, match=r"nowhere is not a directory.*`dpdoctor profile`"):
            rundir.read(tmp_path / "nowhere")

    def test_no_header(self, tmp_path: Path) -> None:
        with pytest.raises(RunDirectoryError, match=r"is not a run directory: it has no header\.json"):
            rundir.read(tmp_path)

    @pytest.mark.parametrize("file", [rundir.HEADER, rundir.SUMMARY])
    @pytest.mark.parametrize("schema", [SCHEMA + 1, None, "1"])
    def test_another_schema_is_refused(self, directory: Path, file: str, schema: object) -> None:
        (directory / file).write_bytes((directory / rundir.HEADER).read_bytes())
        change(directory / file, schema=schema)
        with pytest.raises(
            RunDirectoryError, match=rf"{file} has schema {schema!r}; this dpdoctor reads schemas 1 and 2"
        ):
            rundir.read(directory)

    @pytest.mark.parametrize(
        ("version", "reader"),
        [
            ("9.1.0", "dpdoctor 9.1.0, which wrote it"),
            ("\x1b[31m", "the version of dpdoctor that wrote it"),
            (None, "the "),
        ],
    )
    def test_of_another_schema_the_version_that_reads_it_is_named(
        self, directory: Path, version: str | None, reader: str
    ) -> None:
        change(directory / rundir.HEADER, schema=SCHEMA + 1, dpdoctor=version)
        with pytest.raises(RunDirectoryError, match=rf"Read it with {reader}"):
            rundir.read(directory)

    @pytest.mark.parametrize("file", [rundir.HEADER, "ddp/launch.json", "ddp/rank1/rank.json"])
    @pytest.mark.parametrize("data", [b"", b'{"schema": 1, "cut', b'{"\xff": 1}', b"[]"])
    def test_a_damaged_file_is_named(self, directory: Path, file: str, data: bytes) -> None:
        (directory / file).write_bytes(data)
        with pytest.raises(RunDirectoryError, match=rf"{file} is damaged: ."):
            rundir.read(directory)

    def test_the_place_in_a_damaged_file_is_named(self, directory: Path) -> None:
        change(directory / "ddp/rank0/rank.json", conversion={"modules": [{"name": 5}]})
        with pytest.raises(RunDirectoryError, match=r"rank0/rank\.json is damaged: .*\$\.conversion\.modules\[0\]"):
            rundir.read(directory)

    def test_a_value_that_cannot_be_is_damage(self, directory: Path) -> None:
        spec = msgspec.to_builtins(records.header({"ddp": 2}).spec)
        change(directory / rundir.HEADER, spec={**spec, "repeat": 0})
        with pytest.raises(RunDirectoryError, match=r"header\.json is damaged: repeat is 0.*\$\.spec"):
            rundir.read(directory)

    def test_a_missing_file_and_an_unreadable_one(self, tmp_path: Path) -> None:
        with pytest.raises(RunDirectoryError, match=r"run\.json is missing"):
            rundir.read_json(tmp_path / rundir.SUMMARY, dict)
        with pytest.raises(RunDirectoryError, match=r"cannot read .*: Is a directory"):
            rundir.read_json(tmp_path, dict)


class TestDeadRanks:
    def test_a_rank_without_a_directory_is_missing(self, directory: Path) -> None:
        (directory / "ddp/rank0").rename(directory / "ddp/elsewhere")
        assert [rank.index for rank in rundir.read(directory).modes["ddp"][0].ranks] == [1]

    def test_a_rank_that_died_before_its_first_milestone_left_nothing(self, directory: Path) -> None:
        for path in (directory / "ddp/rank1").iterdir():
            path.unlink()
        rank = rundir.read(directory).modes["ddp"][0].ranks[1]
        assert rank == records.Rank(index=1, record=None, steps=(), windows=(), events=(), trace=None)

    def test_ten_ranks_are_in_the_order_of_numbers(self, directory: Path) -> None:
        for index in (2, 10):
            (directory / f"ddp/rank{index}").mkdir()
        assert [rank.index for rank in rundir.read(directory).modes["ddp"][0].ranks] == [0, 1, 2, 10]

    def test_a_launch_whose_parent_died_has_failed(self, directory: Path) -> None:
        (directory / "ddp" / rundir.LAUNCH).unlink()
        launch = rundir.read(directory).modes["ddp"][0]
        assert launch.record.status == "failed"
        assert "dpdoctor itself" in str(launch.record.reason)
        assert launch.ranks == LAUNCH.ranks

    @pytest.mark.parametrize("tail", [b'{"step": 9, "win', b'{"step": "nine"}\n', b'{"\xff": 1}\n', b"\0\0\0"])
    def test_lines_are_read_up_to_the_first_that_is_cut_short(self, directory: Path, tail: bytes) -> None:
        with (directory / "ddp/rank0" / rundir.STEPS).open("ab") as file:
            file.write(tail)
        assert rundir.read(directory).modes["ddp"][0].ranks[0].steps == LAUNCH.ranks[0].steps


def test_of_a_log_that_was_printed_for_ever_the_ends_are_kept_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    lines = [b"line %d of https://me:hidden@host/\n" % number for number in range(4 * rundir.MOST_LOG_BYTES // 30)]
    log.write_bytes(b"".join(lines))
    rundir.redact_log(log)
    kept = log.read_bytes()
    assert b"hidden" not in kept
    first, left_out, last = re.split(rb"(?m)^(\[dpdoctor left out \d+ bytes .*\]\n)", kept)
    masked = [line.replace(b"me:hidden", b"<redacted>") for line in lines]
    assert first == b"".join(masked[: first.count(b"\n")])
    assert last == b"".join(masked[-last.count(b"\n") :])
    gone = lines[first.count(b"\n") : -last.count(b"\n")]
    assert int(re.search(rb"\d+", left_out)[0]) == sum(map(len, gone))


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_of_a_log_that_is_to_stay_whole_all_is_kept_but_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(rundir, "MOST_LOG_BYTES", 1_000)
    log = tmp_path / "stdout.log"
    printed = b"a line of https://me:hidden@host/" + end
    number = 5 * rundir.MOST_LOG_BYTES // len(printed)
    log.write_bytes(number * printed)
    rundir.redact_log(log, whole=True)
    assert log.read_bytes() == number * printed.replace(b"me:hidden", b"<redacted>")
    plain = log.stat()
    rundir.redact_log(log, whole=True)
    assert (log.stat().st_ino, log.stat().st_mtime_ns) == (plain.st_ino, plain.st_mtime_ns), "nothing was to be done"
    assert list(tmp_path.iterdir()) == [log]


def test_of_a_log_that_is_one_endless_line_nothing_half_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    log.write_bytes(b"\rprogress of https://me:hidden@host/" * (rundir.MOST_LOG_BYTES // 10))
    num_bytes = log.stat().st_size
    rundir.redact_log(log)
    assert log.read_bytes() == b"[dpdoctor left out %d bytes of this log]\n" % num_bytes


def test_appending_nothing_makes_no_file(tmp_path: Path) -> None:
    rundir.append_lines(tmp_path / "x.jsonl", [])
    assert list(tmp_path.iterdir()) == []
    assert rundir.read_lines(tmp_path / "x.jsonl", Sample) == ()


def test_names_that_are_no_text_are_written_with_a_sign_that_there_was_something(tmp_path: Path) -> None:
    found = Written(path="/home/caf\udce9.txt", change="new", num_bytes=3)
    rundir.write_json(tmp_path / "one", {"caf\udce9": (found,)})
    rundir.append_lines(tmp_path / "many", [found])
    assert rundir.read_json(tmp_path / "one", dict[str, list[Written]])["caf\N{REPLACEMENT CHARACTER}"] == [
        replace(found, path="/home/caf\N{REPLACEMENT CHARACTER}.txt")
    ]
    assert b"caf\xef\xbf\xbd.txt" in (tmp_path / "many").read_bytes()


def test_what_is_not_a_number_is_written_as_null() -> None:
    assert rundir.encode([float("nan"), float("inf"), 1.5]) == b"[null,null,1.5]"


@contextmanager
def disk_with_room_for(num_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond `num_bytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestWriteWhole:
    def test_the_new_file_stands_alone(self, tmp_path: Path) -> None:
        for data in (b"old", b"new"):
            rundir.write_whole(tmp_path / "file", data)
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"new")]

    def test_a_full_disk_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        rundir.write_whole(tmp_path / "file", b"old")
        with disk_with_room_for(1000), pytest.raises(OutputError, match=r"cannot write .*/file: File too large"):
            rundir.write_whole(tmp_path / "file", b"new" * 1000)
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]

    def test_no_directory_to_write_in(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OutputError, match=r"cannot write .*: Not a directory"):
            rundir.write_whole(tmp_path / "file" / "below", b"new")


@pytest.mark.parametrize(("oks", "proved"), [((), None), ((True, None), True), ((True, False), False)])
def test_conversion_is_proved_when_no_check_failed(oks: tuple[bool | None, ...], proved: bool | None) -> None:
    checks = tuple(Check(name="x", ok=ok, text="") for ok in oks)
    assert Conversion(proof=checks).proved is proved


class TestTraceOfAnotherLaunch:
    """A launch for the trace alone goes on where the first one ended."""

    @pytest.fixture
    def traced(self, directory: Path) -> Path:
        path = rundir.trace_dir(directory, "ddp")
        path.mkdir()
        rundir.write_json(path / rundir.LAUNCH, replace(LAUNCH.record, end_ns=8_000_000_000))
        for rank in LAUNCH.ranks:
            write_rank(path, rank)
            self.leave_digest(path, rank.index)
        return directory

    @staticmethod
    def leave_digest(path: Path, rank: int) -> None:
        digest = replace(traced_runs.everything(), rank=rank)
        rundir.write_whole(rundir.rank_dir(path, rank) / rundir.DIGEST, rundir.encode(digest))

    def test_its_digests_and_steps_are_the_modes(self, traced: Path) -> None:
        (launch,) = rundir.read(traced).modes["ddp"]
        for rank, alone in zip(launch.ranks, LAUNCH.ranks, strict=True):
            assert rank.digest is not None
            assert len(rank.steps) == 2 * len(alone.steps)
            assert {step.window for step in rank.steps[len(alone.steps) :]} & {s.window for s in alone.steps} == set()
        assert launch.traced is not None
        assert launch.traced.end_ns == 8_000_000_000

    def test_a_trace_that_the_first_launch_lost_is_not_lost(self, traced: Path) -> None:
        first = rundir.launch_dir(traced, "ddp", 1)
        for rank in LAUNCH.ranks:
            assert rank.record is not None
            lost = replace(rank.record, trace_lost="OSError: no space left")
            rundir.write_json(rundir.rank_dir(first, rank.index) / rundir.RANK, lost)
        (launch,) = rundir.read(traced).modes["ddp"]
        assert [rank.record.trace_lost for rank in launch.ranks if rank.record] == [None, None]

    def test_one_without_the_trace_of_every_rank_adds_nothing_but_how_it_ended(self, traced: Path) -> None:
        lost = rundir.rank_dir(rundir.trace_dir(traced, "ddp"), 1)
        (lost / rundir.DIGEST).unlink()
        rundir.write_json(lost / rundir.RANK, replace(LAUNCH.ranks[1].record, trace_lost="OSError: no space left"))
        (launch,) = rundir.read(traced).modes["ddp"]
        assert [len(rank.steps) for rank in launch.ranks] == [len(rank.steps) for rank in LAUNCH.ranks]
        assert launch.traced is not None
        assert launch.traced.reason == "OSError: no space left"
