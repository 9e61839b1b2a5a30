"""Slices: however small, they hold what a whole parse holds; and what damage does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.errors import TraceError
from dpdoctor.trace import document as document_file
from dpdoctor.trace import stream as stream_file
from dpdoctor.trace.document import Complete, Document
from dpdoctor.trace.model import Damage
from dpdoctor.trace.stream import Stream
from tests.builders.documents import complete, document, event_names, read_bytes

HOSTILE = st.text(st.sampled_from('{}[],:"\\ \nae\u00e9\U0001f680'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | HOSTILE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=6,
)
ARRAYS_OF_OBJECTS = st.lists(st.dictionaries(HOSTILE, VALUES, max_size=2), min_size=2, max_size=4)
EVENTS = st.builds(
    lambda name, ts, args: {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "args": {f"unused {name}": args}},
    HOSTILE,
    st.floats(-1e6, 1e6),
    VALUES | ARRAYS_OF_OBJECTS,
) | st.builds(lambda id_, more: {"ph": "f", "id": id_, "more": more}, st.integers(), ARRAYS_OF_OBJECTS)
LAYOUTS = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
KEYS = st.dictionaries(HOSTILE.map(lambda text: f"key {text}"), VALUES, max_size=3)


@contextmanager
def slices_of(num_bytes: int) -> Iterator[None]:
    """Make slices and chunks this small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_file, "SLICE_BYTES", num_bytes)
        patch.setattr(stream_file, "CHUNK_BYTES", max(num_bytes // 3, 1))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all examples of a property may write to."""
    return tmp_path_factory.mktemp("traces")


def read_all(path: Path) -> tuple[Document, list[Any]]:
    """Return the document once read, and all its events."""
    found = Document(Stream(path))
    return found, [event for events in found for event in events]


@given(
    events=st.lists(EVENTS, max_size=12),
    head=KEYS,
    tail=KEYS,
    layout=LAYOUTS,
    is_array=st.booleans(),
    num_bytes=st.integers(1, 400),
)
def test_slices_hold_what_a_whole_parse_holds(  # noqa: PLR0917 hypothesis passes what it draws
    folder: Path,
    events: list[dict[str, Any]],
    head: dict[str, Any],
    tail: dict[str, Any],
    layout: dict[str, Any],
    is_array: bool,
    num_bytes: int,
) -> None:
    path = folder / "trace.json"
    content = events if is_array else {**head, "traceEvents": events, **tail}
    path.write_text(json.dumps(content, **layout), "utf-8")
    with slices_of(num_bytes):
        found, read = read_all(path)
    whole = json.loads(path.read_text("utf-8"))
    expected = whole if is_array else whole["traceEvents"]
    assert len(read) == len(expected)
    assert [(event.name, event.ts) for event in read if isinstance(event, Complete)] == [
        (event["name"], event["ts"]) for event in expected if event["ph"] == "X"
    ]
    assert found.damage is None
    if not is_array:
        keys = {key: json.loads(bytes(raw)) for key, raw in found.header.items() if key not in {"", "traceEvents"}}
        assert keys == {key: value for key, value in whole.items() if key != "traceEvents"}


def test_slices_are_small_where_events_are(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(document(*(complete() for _ in range(1000))))
    with slices_of(2000):
        sizes = [len(events) for events in Document(Stream(path))]
    assert sum(sizes) == 1000
    assert max(sizes) <= 30


EVENT = complete('a } , { \\" ] é', 12.25, -1e-5, args={"shapes": [{"a": [1]}, {"b": {}}], "flag": True, "none": None})
CUT = document(complete("first"), EVENT, complete("last"), deviceProperties=[{"name": "A"}, {"name": "B"}])
CUT = CUT[:-1] + b', "traceName": "x", "more": [{}, {"a": 1.5e3}]}'
BEGIN = CUT.index(b'"traceEvents"') + len(b'"traceEvents": [')
END = CUT.index(b'], "traceName"')


@pytest.mark.parametrize("num_bytes", [1, 50, 1 << 20])
def test_a_file_cut_short_anywhere_is_read_up_to_the_cut(tmp_path: Path, num_bytes: int) -> None:
    ends = [match.end() for match in re.finditer(rb"\}(?=, \{\"ph|\], \"traceName)", CUT)]
    path = tmp_path / "trace.json"
    for cut in range(BEGIN, len(CUT)):
        path.write_bytes(CUT[:cut])
        with slices_of(num_bytes):
            found, events = read_all(path)
        assert len(events) == sum(end <= cut for end in ends), CUT[:cut]
        behind = cut > END
        assert found.damage == Damage(offset=cut, reason="the file is cut short", behind_events=behind), CUT[:cut]


def test_a_file_cut_before_its_events_is_an_error(tmp_path: Path) -> None:
    for cut in range(BEGIN):
        with pytest.raises(TraceError, match=r"trace.json: byte \d+: (empty|not JSON)"):
            read_bytes(tmp_path, CUT[:cut])


@pytest.mark.parametrize("number", ["NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf"])
@pytest.mark.parametrize("place", ["ts", "args", "unused"])
@pytest.mark.parametrize("num_bytes", [20, 1 << 20])
def test_a_bare_nan_ends_the_trace_where_it_stands(tmp_path: Path, number: str, place: str, num_bytes: int) -> None:
    bad = complete("bad", **{place: {"correlation": "HERE"} if place == "args" else "HERE"})
    content = document(complete("a"), complete("b"), bad, complete("c")).replace(b'"HERE"', number.encode())
    with slices_of(num_bytes):
        trace = read_bytes(tmp_path, content)
    assert event_names(trace) == ["a", "b"]
    assert trace.damage is not None
    assert trace.damage.offset == content.index(f": {number}".encode()) + 2
    assert number.lower() in trace.damage.reason.lower()


def test_a_bare_nan_behind_the_events_leaves_the_events(tmp_path: Path) -> None:
    content = document(complete("a"))[:-1] + b', "x": NaN}'
    trace = read_bytes(tmp_path, content)
    assert event_names(trace) == ["a"]
    assert trace.damage == Damage(offset=content.index(b"NaN"), reason="NaN is not JSON", behind_events=True)


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        (b"", 0, "empty"),
        (b" \n", 0, "empty"),
        (b"hello", 0, "not JSON"),
        (b'{"a": 1}', 0, 'JSON without a "traceEvents" array'),
        (b'{"traceEvents": {}}', 0, 'JSON without a "traceEvents" array'),
        (b'{"a": {"traceEvents": [{"ph": "X"}]}}', 0, 'JSON without a "traceEvents" array'),
        (b'{"a": NaN, "traceEvents": []}', 6, "NaN"),
        (b'{"a": oops, "traceEvents": []}', 6, "not JSON"),
        (b"[1, 2]", 1, "Expected `object`, got `int`"),
        (b'[{"ph": "X", "ts": "soon"}]', 1, "Expected `float`, got `str` - at `event.ts`"),
        (b'[{"ph": "X"}, {"ts": 1}]', 13, "missing required field `ph`"),
        (b'[{"ph": "X"}, {"ph": "Y"}]', 13, "Invalid value 'Y'"),
        (b'[{"ph": "X"}, {"ph": "X", "ts": 1e999}]', 13, "out of range"),
        (b'[{"ph": "X"} {"ph": "X"}]', 13, "expected ',' or ']'"),
        (b'[{"ph": "X"}}, {"ph": "X"}]', 12, "invalid character"),
        (b'[{"ph": "X"}] more', 15, "trailing characters"),
        (b'{"traceEvents": [{"ph": "X"}]} more', 32, "trailing characters"),
        (b'{"traceEvents": [{"ph": "X"}], more}', 31, "must be strings"),
        (b'[{"ph": "X", "name": "a\nb"}]', 23, "invalid character"),
        (b'[{"ph": "X", "name": "a\xff"}]', 1, "not UTF-8"),
        (b'[{"ph": "X", "more": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]", 1, "nested too deeply"),
        (b"\x00\x01\x02", 0, "not JSON"),
    ],
)
def test_anything_else_is_an_error_with_its_place(tmp_path: Path, content: bytes, place: int, reason: str) -> None:
    with pytest.raises(TraceError, match=re.escape(reason)) as caught:
        read_bytes(tmp_path, content)
    assert f"{tmp_path / 'trace.json'}: byte {place}:" in str(caught.value)


def test_an_error_far_into_the_file_has_its_place(tmp_path: Path) -> None:
    content = document(*(complete() for _ in range(500)), complete("odd", ts="soon"), complete())  # type: ignore[arg-type]
    with slices_of(3000), pytest.raises(TraceError) as caught:
        read_bytes(tmp_path, content)
    begin = content.rindex(b"{", 0, content.index(b"soon"))
    assert f"byte {begin - 1}:" in str(caught.value)


def test_a_piece_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_file, "MAX_PIECE_BYTES", 20_000)
    content = document(complete(), complete("n" * 50_000), complete())
    with slices_of(1000), pytest.raises(TraceError, match="one piece is larger than 20"):
        read_bytes(tmp_path, content)
    monkeypatch.setattr(document_file, "MAX_PIECE_BYTES", 200_000)
    with slices_of(1000):
        assert len(read_bytes(tmp_path, content).events) == 3
