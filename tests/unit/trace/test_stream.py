"""Bytes of trace files: plain, gzip of any number of members, cut short, corrupt, too large."""

from __future__ import annotations

import gzip
import random
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from dpdoctor.errors import TraceError
from dpdoctor.trace.stream import CHUNK_BYTES, MOST_AHEAD, Stream
from tests.builders.documents import complete, document, event_names, members, read_bytes

NOISE = random.Random(1).randbytes(300_000)  # does not compress: the members are as long as their content


def stream_of(folder: Path, content: bytes, **options: int) -> tuple[Stream, bytes]:
    """Return the stream of a file with this content, and what it yields."""
    path = folder / "file"
    path.write_bytes(content)
    stream = Stream(path, **options)
    return stream, b"".join(stream)


@pytest.mark.parametrize("num", [1, 2, 1000])
@pytest.mark.parametrize("padding", [b"", b"\0" * 1000])
def test_any_number_of_members(tmp_path: Path, num: int, padding: bytes) -> None:
    stream, content = stream_of(tmp_path, members(NOISE, num) + padding)
    assert content == NOISE
    assert (stream.position, stream.damage) == (len(NOISE), None)


def test_plain_files(tmp_path: Path) -> None:
    assert stream_of(tmp_path, NOISE)[1] == NOISE


def test_chunks_stay_small_however_well_a_file_compresses(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(bytes(20 << 20)))
    assert max(map(len, Stream(path))) <= CHUNK_BYTES


def test_few_chunks_are_decompressed_ahead_and_none_once_nobody_asks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(bytes(20 << 20)))
    before = threading.active_count()
    chunks = iter(Stream(path))
    tracemalloc.start()
    first = next(chunks)
    deadline = time.monotonic() + 10
    while (held := tracemalloc.get_traced_memory()[0]) < MOST_AHEAD * CHUNK_BYTES and time.monotonic() < deadline:
        time.sleep(0.01)
    tracemalloc.stop()
    assert MOST_AHEAD * CHUNK_BYTES <= held <= (MOST_AHEAD + 2) * CHUNK_BYTES
    assert threading.active_count() == before + 1
    del chunks
    assert threading.active_count() == before
    assert len(first) == CHUNK_BYTES


@pytest.mark.parametrize("num", [1, 3])
def test_gzip_data_cut_short_give_what_is_there(tmp_path: Path, num: int) -> None:
    whole = members(NOISE, num)
    stream, content = stream_of(tmp_path, whole[: len(whole) * 3 // 5])
    assert content == NOISE[: len(content)]
    assert len(content) > len(NOISE) // 2
    assert "gzip" in str(stream.damage)


def test_a_trace_in_gzip_data_cut_short_is_marked(tmp_path: Path) -> None:
    content = document(*(complete(f"event {number}") for number in range(1000)))
    whole = gzip.compress(content)
    trace = read_bytes(tmp_path, whole[: len(whole) // 2])
    assert 100 < len(trace.events) < 900
    assert event_names(trace) == [f"event {number}" for number in range(len(trace.events))]
    assert trace.damage is not None
    assert "gzip" in trace.damage.reason
    assert content[: trace.damage.offset].count(b"event ") - len(trace.events) in {0, 1}


def test_gzip_data_cut_behind_the_document_are_marked(tmp_path: Path) -> None:
    whole = gzip.compress(document(complete(), complete()))
    trace = read_bytes(tmp_path, whole[:-4])
    assert len(trace.events) == 2
    assert trace.damage is not None


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-8] + b"12345678", lambda data: data[:200] + b"\xff" * 9 + data[209:]]
)
def test_corrupt_gzip_data_are_not_believed(tmp_path: Path, spoil: object) -> None:
    assert callable(spoil)
    whole = gzip.compress(document(*(complete(f"event {number}") for number in range(1000))))
    with pytest.raises(TraceError, match=r"trace.json: (corrupt gzip data before byte \d+ of|byte \d+: )"):
        read_bytes(tmp_path, spoil(whole))


def test_a_gzip_bomb_is_refused_by_a_limit_that_can_be_raised(tmp_path: Path) -> None:
    content = document(*(complete() for _ in range(100_000)))
    bomb = gzip.compress(content)
    with pytest.raises(TraceError, match=r"trace.json: holds more than 1.00 MB.*raise --max-bytes"):
        read_bytes(tmp_path, bomb, max_bytes=1_000_000)
    assert len(read_bytes(tmp_path, bomb, max_bytes=len(content)).events) == 100_000


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match=r"cannot be read: (No such file|Is a directory)"):
        b"".join(Stream(tmp_path / name))
