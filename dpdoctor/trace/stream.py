"""The bytes of a trace file, decompressed chunk by chunk, never more of them than allowed."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import BinaryIO

from dpdoctor import units
from dpdoctor.errors import TraceError

MAX_BYTES = 2 << 30
CHUNK_BYTES = 1 << 18
_COMPRESSED_BYTES = 1 << 16  # what a decompressor leaves of it is copied
MOST_AHEAD = 8  # chunks
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = zlib.MAX_WBITS | 16


class Stream:
    """The content of one trace, plain or gzip with any number of members.

    A gzip file that is cut short yields what could be decompressed.

    Attributes:
        position: bytes yielded so far.
        damage: why the content ended before its end; None: it did not.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.position = 0
        self.damage: str | None = None
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks.

        Raises:
            TraceError: the file cannot be read, is corrupt, or holds more than `max_bytes`.
        """
        try:
            with self.path.open("rb") as file:
                is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
                file.seek(0)
                with closing(_ahead(self._decompressed(file)) if is_gzip else _plain(file)) as chunks:
                    for chunk in chunks:
                        self._count(chunk)
                        yield chunk
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def _count(self, chunk: bytes) -> None:
        self.position += len(chunk)
        if self.position > self._max_bytes:
            raise TraceError(
                f"{self.path}: holds more than {units.size(self._max_bytes)} of JSON, which is refused lest it fill "
                "the memory; for a real trace raise --max-bytes"
            )

    def _decompressed(self, file: BinaryIO) -> Iterator[bytes]:
        member, is_begun = zlib.decompressobj(_GZIP), False
        while data := file.read(_COMPRESSED_BYTES):
            while data:
                is_begun = True
                try:
                    chunk = member.decompress(data, CHUNK_BYTES)
                except zlib.error as error:
                    place = f"before byte {file.tell()} of the compressed file"
                    raise TraceError(f"{self.path}: corrupt gzip data {place}; copy the file anew") from error
                if chunk:
                    yield chunk
                data = member.unused_data.lstrip(b"\0") if member.eof else member.unconsumed_tail
                if member.eof:
                    member, is_begun = zlib.decompressobj(_GZIP), False
        if is_begun:
            self.damage = "the gzip data are cut short"


def _plain(file: BinaryIO) -> Generator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _ahead(chunks: Iterator[bytes]) -> Generator[bytes]:
    """Yield the chunks, which a thread fetches some ahead of time: zlib works without the interpreter's lock."""
    fetched: SimpleQueue[bytes | Exception] = SimpleQueue()
    room = Semaphore(MOST_AHEAD)
    is_over = False

    def fetch() -> None:
        try:
            while room.acquire() and not is_over and (chunk := next(chunks, b"")):
                fetched.put(chunk)
            fetched.put(b"")
        except Exception as error:  # noqa: BLE001 - raised where the chunk is asked for
            fetched.put(error)

    thread = Thread(target=fetch, daemon=True)
    thread.start()
    try:
        while chunk := fetched.get():
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk
            room.release()
    finally:
        is_over = True
        room.release()
        thread.join()
