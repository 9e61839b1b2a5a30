"""A trace's JSON, read in slices: header, runs of events that decode by themselves, tail, and where it is damaged.

A slice of the event array is cut where one event ends and the next begins. Whether a cut is right needs no second
parser: a slice that starts between two events decodes if and only if it ends between two.
"""

from __future__ import annotations

import functools
import operator
import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.errors import TraceError
from dpdoctor.trace.model import UNKNOWN, Damage
from dpdoctor.trace.stream import Stream

# Exporters disagree on the types: CUDA writes `"stream": 7`, ROCm `"stream": "0x0"`, old files `"tid": "stream 7"`.
Loose = int | float | str | None


class Args(msgspec.Struct, frozen=True, gc=False):
    """What is used of a complete event's arguments; of any type, as a wrong one is no reason to refuse the trace.

    Names of files from 2021 are in lower case.
    """

    correlation: Any = UNKNOWN
    device: Any = None
    stream: Any = None
    num_bytes: Any = msgspec.field(name="bytes", default=UNKNOWN)
    external_id: Any = msgspec.field(name="External id", default=None)
    external_id_2021: Any = msgspec.field(name="external id", default=UNKNOWN)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    collective: Any = msgspec.field(name="Collective name", default=None)
    dtype: Any = None
    in_nelems: Any = msgspec.field(name="In msg nelems", default=None)
    out_nelems: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=UNKNOWN)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=msgspec.Raw())
    seq: Any = msgspec.field(name="Seq", default=UNKNOWN)


class Complete(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """Something with a begin and a duration, in microseconds."""

    cat: str = ""
    name: str = ""
    pid: Loose = None
    tid: Loose = None
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None


class InstantArgs(msgspec.Struct, frozen=True, gc=False):
    """What is used of a memory event."""

    device_type: Any = msgspec.field(name="Device Type", default=None)
    device: Any = msgspec.field(name="Device Id", default=UNKNOWN)
    allocated: Any = msgspec.field(name="Total Allocated", default=UNKNOWN)
    reserved: Any = msgspec.field(name="Total Reserved", default=UNKNOWN)


class Instant(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="i"):
    """Something without duration; of interest are those named [memory]."""

    name: str = ""
    ts: float = 0.0
    args: InstantArgs | None = None


class MetaArgs(msgspec.Struct, frozen=True, gc=False):
    """The name that a metadata event gives."""

    name: Any = ""


class Meta(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="M"):
    """A name for a process or thread."""

    name: str = ""
    pid: Loose = None
    tid: Loose = None
    args: MetaArgs | None = None


# Flows and the other letters of the Trace Event Format carry nothing that is used: decoded into nothing.
_UNUSED = tuple(
    msgspec.defstruct(f"Unused{number}", [], frozen=True, gc=False, tag_field="ph", tag=letter)
    for number, letter in enumerate("BEICbnestfPNODSTpFVvRc(),=")
)
Event = Complete | Instant | Meta | Any  # what a slice holds; Any: one of _UNUSED
_DECODER: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(
    list[functools.reduce(operator.or_, _UNUSED, Complete | Instant | Meta)]  # type: ignore[misc]
)
NO_ARGS = Args()
NO_INSTANT_ARGS = InstantArgs()


# Small enough for a slice's objects to stay in the processor's cache.
SLICE_BYTES = 1 << 20
# One event, the header or the tail: none has a reason to be larger.
MAX_PIECE_BYTES = 64 << 20
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_MAX_ARRAYS = 8  # a key of that name may be a part of something else, but hardly often
_BOUNDARY = re.compile(rb"\}[ \t\r\n]*(,)[ \t\r\n]*\{")
_LAST_BYTES = 1 << 14  # the end of a slice in which a boundary is looked for: a few events
_BLANK = b" \t\r\n"


_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Document:
    """Iterates over slices of decoded events; `header` and `damage` are complete after the last one.

    Attributes:
        header: every key beside `traceEvents`, before or behind it, its value undecoded.
        damage: where reading stopped; None: the document is whole.
    """

    def __init__(self, stream: Stream) -> None:
        self.header: dict[str, msgspec.Raw] = {}
        self.damage: Damage | None = None
        self._stream = stream
        self._chunks = iter(stream)
        self._buffer = b""  # what was read and is not decoded yet
        self._is_open = True  # the stream may have more

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield the events of the file in order.

        Raises:
            TraceError: this is no trace, or neither cut short nor free of errors.
        """
        is_object = self._read_head()
        more = True
        while more:
            self._fill(SLICE_BYTES)
            events = self._quick_slice()
            if events is None:
                events, more = self._careful_slice()
            yield events
        if self.damage is None:
            self._read_tail(is_object=is_object)

    def _fill(self, size: int) -> None:
        """Read until the buffer holds at least `size` bytes, or all there is."""
        parts, held = [self._buffer], len(self._buffer)
        while held < size and self._is_open:
            chunk = next(self._chunks, b"")
            self._is_open = bool(chunk)
            parts.append(chunk)
            held += len(chunk)
        self._buffer = b"".join(parts)

    def _grow(self) -> None:
        """Read as much again as the buffer holds."""
        if len(self._buffer) >= MAX_PIECE_BYTES:
            raise self._error(0, f"one piece is larger than {units.size(MAX_PIECE_BYTES)}")
        self._fill(2 * max(len(self._buffer), SLICE_BYTES))

    def _read_head(self) -> bool:
        """Move to the first event; return whether the document is an object (else it is a bare array of events)."""
        self._fill(SLICE_BYTES)
        while not self._buffer.lstrip(_BLANK).startswith(b"["):
            for match in islice(_ARRAY.finditer(self._buffer), _MAX_ARRAYS):
                if self._is_head(self._buffer[: match.end()]):
                    self._buffer = self._buffer[match.end() :]
                    return True
            if not self._is_open:
                raise self._no_events()
            self._grow()
        self._buffer = self._buffer[self._buffer.index(b"[") + 1 :]
        return False

    def _is_head(self, text: bytes) -> bool:
        """Keep the header that ends in the opening bracket of `traceEvents`; False: the array is a part of its keys."""
        try:
            self.header = _HEADER.decode(text + b"]}")
        except UNDECODABLE as error:
            found = _fault(text, error, is_cut=True)
            if found.is_damage and found.offset == len(text):
                return False
            raise self._error(found.offset, f"not JSON ({found.reason})") from error
        return True

    def _no_events(self) -> TraceError:
        """Return why no array of events was found."""
        if not self._buffer.strip(_BLANK):
            return self._error(0, "empty")
        try:
            msgspec.json.decode(self._buffer, type=msgspec.Raw)
        except UNDECODABLE as error:
            found = _fault(self._buffer, error, is_cut=False)
            return self._error(found.offset, f"not JSON ({self._stream.damage or found.reason})")
        return self._error(0, 'JSON without a "traceEvents" array')

    def _quick_slice(self) -> list[Event] | None:
        """Return the events up to the last place in the buffer that looks like a boundary; None: it is none."""
        likely = list(_BOUNDARY.finditer(self._buffer, max(len(self._buffer) - _LAST_BYTES, 0)))
        if not likely:
            return None
        cut = likely[-1].start(1)
        try:
            events = _DECODER.decode(b"".join((b"[", memoryview(self._buffer)[:cut], b"]")))
        except UNDECODABLE:
            return None
        self._buffer = self._buffer[cut + 1 :]
        return events

    def _careful_slice(self) -> tuple[list[Event], bool]:
        """Return the next events and whether there may be more: what is hard to cut, damaged, or the array's end."""
        commas, end = elements(self._buffer)
        while end is None and not len(commas) and self._is_open:
            self._grow()
            commas, end = elements(self._buffer)
        is_cut = end is None and not self._is_open
        stop = len(self._buffer) if is_cut else int(commas[-1]) if end is None else end
        text = self._buffer[:stop]
        try:
            events = _events(text)
        except UNDECODABLE:
            events = self._before_fault(text, [*commas[commas < stop].tolist(), stop], is_cut=is_cut)
        else:
            if is_cut:
                self._mark(stop, _CUT_SHORT)
        self._buffer = self._buffer[stop + (end is None) :]
        return events, end is None and self.damage is None

    def _before_fault(self, text: bytes, bounds: list[int], *, is_cut: bool) -> list[Event]:
        """Return the events of `text`, which end at `bounds`, before the first that does not decode; mark its place.

        Raises:
            TraceError: it is not for damage that the event does not decode.
        """
        num_good = bisect_left(bounds, True, key=lambda bound: not _is_decodable(text[:bound]))
        begin = bounds[num_good - 1] + 1 if num_good else 0
        is_cut = is_cut and bounds[num_good] == len(text)
        event = b"[" + text[begin : bounds[num_good]]
        try:
            _DECODER.decode(event if is_cut else event + b"]")
        except UNDECODABLE as error:
            found = _fault(event, error, is_cut=is_cut)
            place = begin + max(found.offset - 1, 0)
            if not found.is_damage:
                raise self._error(place, found.reason) from error
            self._mark(place, found.reason)
        return _events(text[: begin - 1]) if num_good else []

    def _read_tail(self, *, is_object: bool) -> None:
        """Read the keys behind the events; the buffer begins with the bracket that closes them."""
        while self._is_open:
            self._grow()
        opening = b'{"":[' if is_object else b"["
        text = opening + self._buffer
        try:
            if is_object:
                self.header |= _HEADER.decode(text)
            else:
                msgspec.json.decode(text, type=list[None])
        except UNDECODABLE as error:
            found = _fault(text, error, is_cut=True)
            if not found.is_damage:
                raise self._error(found.offset - len(opening), found.reason) from error
            self._mark(found.offset - len(opening), found.reason, behind_events=True)
        else:
            if self._stream.damage:
                self._mark(len(self._buffer), self._stream.damage, behind_events=True)

    def _mark(self, place: int, reason: str, *, behind_events: bool = False) -> None:
        """Note damage at this place of the buffer."""
        reason = self._stream.damage or reason
        self.damage = Damage(offset=self._offset + place, reason=reason, behind_events=behind_events)

    @property
    def _offset(self) -> int:
        """The offset of the buffer's first byte in the decompressed file."""
        return self._stream.position - len(self._buffer)

    def _error(self, place: int, why: str) -> TraceError:
        return TraceError(
            f"{self._stream.path}: byte {self._offset + place}: {why}; is it a trace of the PyTorch profiler?"
        )


def _events(text: bytes) -> list[Event]:
    """Return the events of a part of the array; a comma at its end, which some writers leave, is let pass."""
    return _DECODER.decode(b"[" + text.rstrip(_BLANK).removesuffix(b",") + b"]")


def _is_decodable(text: bytes) -> bool:
    try:
        _events(text)
    except UNDECODABLE:
        return False
    return True


_STEP = np.zeros(256, np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1
_IS_STRUCTURE = _STEP != 0
_IS_STRUCTURE[ord(",")] = True


def elements(text: bytes) -> tuple[NDArray[np.int64], int | None]:
    """Return the offsets of the commas between elements, and of the bracket that closes the array (None: not there).

    `text` starts inside of the array, outside of every element.
    """
    data = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(_IS_STRUCTURE[data])
    at = at[np.searchsorted(_quotes(data), at) % 2 == 0]
    step = _STEP[data[at]]
    depth = np.cumsum(step, dtype=np.int64)
    closed = np.flatnonzero(depth < 0)
    num = int(closed[0]) if len(closed) else len(at)
    commas = at[:num][(step[:num] == 0) & (depth[:num] == 0)]
    return commas, int(at[num]) if len(closed) else None


def _quotes(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the offsets of the quotes that begin or end a string: those after an even number of backslashes."""
    quotes = np.flatnonzero(data == ord('"'))
    slashes = np.flatnonzero(data == ord("\\"))
    if not len(slashes):
        return quotes
    begins = np.concatenate(([True], np.diff(slashes) > 1))
    run_begin = np.maximum.accumulate(np.where(begins, slashes, 0))
    last = np.maximum(np.searchsorted(slashes, quotes) - 1, 0)  # the slash before each quote
    is_next = slashes[last] == quotes - 1
    run = np.where(is_next, quotes - run_begin[last], 0)
    return np.compress(run % 2 == 0, quotes)


UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_CUT_SHORT = "the file is cut short"
# Of msgspec from 0.23 on, which raised UnicodeDecodeError before.
_NOT_UTF8 = "Invalid UTF-8"
_PLACE = re.compile(r" \(byte (\d+)\)")
# Not JSON, but what C++ and Python print. The decoder notices a few bytes after it begins.
_NOT_A_NUMBER = re.compile(rb"[-+]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_NOTICED_WITHIN = 4
_LONGEST = 9  # len("-Infinity")


class _Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong.

    Attributes:
        offset: of the byte where it is wrong, in the bytes that were decoded.
        is_damage: what comes before it can be trusted: the file was cut short, or holds a bare NaN.
    """

    offset: int
    reason: str
    is_damage: bool


def _fault(text: bytes, error: Exception, *, is_cut: bool) -> _Fault:
    """Return why decoding `text` raised this error, one of UNDECODABLE; `is_cut`: nothing comes after `text`."""
    if isinstance(error, msgspec.ValidationError):
        return _Fault(offset=0, reason=str(error).replace("$[0]", "event"), is_damage=False)
    if isinstance(error, UnicodeDecodeError) or _NOT_UTF8 in str(error):
        return _Fault(offset=0, reason="text that is not UTF-8", is_damage=False)
    if isinstance(error, RecursionError):
        return _Fault(offset=0, reason="nested too deeply", is_damage=False)
    named = _PLACE.search(str(error))
    offset = int(named[1]) if named else len(text)
    if is_cut and offset >= len(text):
        return _Fault(offset=len(text), reason=_CUT_SHORT, is_damage=True)
    begin = max(offset - _NOTICED_WITHIN, 0)
    number = _NOT_A_NUMBER.search(text, begin, offset + _LONGEST)
    if number is not None and number.start() <= offset:
        return _Fault(offset=number.start(), reason=f"{number[0].decode()} is not JSON", is_damage=True)
    return _Fault(offset=offset, reason=_PLACE.sub("", str(error)), is_damage=False)
