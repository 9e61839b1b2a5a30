"""Real traces of several ranks whose communication has names that nobody knows: they read right, or unknown."""

from __future__ import annotations

import functools
import gzip
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dpdoctor.attribution.digesting import digest, digest_file
from dpdoctor.digest import Digest
from dpdoctor.trace.model import Kind
from dpdoctor.trace.reader import read
from tests.builders.documents import REAL, needs_real_traces
from tests.builders.kineto import WITH_COLLECTIVES

FILES = (
    *WITH_COLLECTIVES,
    "two_ranks_of_128/rank-1.json.gz",
    "gloo_world300_rank34.json.gz",
)
NAMES = re.compile("nccl|rccl|gloo", re.IGNORECASE)
TOLD = re.compile(r"^(?:record_param_comms$|nccl:|_?c10d)")
NEAR = 0.02

# What the JSON of an event holds that one of the renamings changes.
CHANGED = (b"nccl", b"rccl", b"gloo", b"record_param_comms", b"c10d", b"collective name")

Event = dict[str, Any]
Rename = Callable[[Event], Event | None]


def by_name() -> Rename:
    """Give each communication kernel, and each of gloo's spans, a name of no meaning, the same for the same name."""
    known: dict[str, str] = {}

    def rename(event: Event) -> Event:
        if not is_communication(event):
            return event
        return {**event, "name": known.setdefault(event["name"], f"void zq{len(known)}::main<float>(int)")}

    return rename


def one_by_one() -> Rename:
    """Give each of them a name of its own."""
    numbers = count()
    return lambda event: {**event, "name": f"void zq{next(numbers)}(int)"} if is_communication(event) else event


def with_nothing_told() -> Rename:
    """Leave out, too, what the host and the kernels' own arguments say of collectives."""
    rename = by_name()

    def leave_out(event: Event) -> Event | None:
        if TOLD.search(event.get("name", "")):
            return None
        args = {key: value for key, value in event.get("args", {}).items() if key != "Collective name"}
        return rename({**event, "args": args})

    return leave_out


def is_communication(event: Event) -> bool:
    on_host = event.get("cat") == "user_annotation" and event["name"].startswith("gloo:")
    return on_host or (event.get("cat") in {"kernel", "Kernel"} and NAMES.search(event["name"]) is not None)


def is_changed(event: msgspec.Raw) -> bool:
    text = bytes(event).lower()
    return any(word in text for word in CHANGED)


def renamed(name: str, rename: Rename, folder: Path) -> Digest:
    """Return the digest of a copy with other names; events that no renaming concerns are copied as they are written."""
    text = gzip.decompress((REAL / name).read_bytes())
    document: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    events = msgspec.json.decode(document["traceEvents"], type=list[msgspec.Raw])
    kept = (rename(msgspec.json.decode(event)) if is_changed(event) else event for event in events)
    document["traceEvents"] = [event for event in kept if event is not None]
    path = folder / "trace.json"
    path.write_bytes(msgspec.json.encode(document))
    return digest_file(path)


@functools.cache
def read_as_it_is(name: str) -> Digest:
    """Return the digest of a real trace, whose communication is known."""
    found = digest_file(REAL / name)
    assert found.unknown_communication is None
    return found


def num_named(found: Digest) -> int:
    """Return how many calls are known by their operation."""
    return sum(call.count for call in found.collectives if call.operation != "unknown")


def exposed_ns(found: Digest) -> list[int | None]:
    """Return exposed communication of every device, over all that was traced and of each whole step."""
    devices = found.devices
    return [d.whole.exposed_comm_ns for d in devices] + [s.breakdown.exposed_comm_ns for d in devices for s in d.steps]


@needs_real_traces
@pytest.mark.parametrize("name", FILES)
class TestRenamed:
    """Right is what the original reads; never 0."""

    def test_what_the_host_tells_is_enough(self, name: str, tmp_path: Path) -> None:
        original, found = read_as_it_is(name), renamed(name, by_name(), tmp_path)
        if name.startswith("gloo"):
            assert "gloo, mpi, ucc" in str(found.unknown_communication)
            assert set(exposed_ns(found)) == {None}
            return
        assert found.unknown_communication is None
        assert exposed_ns(found) == pytest.approx(exposed_ns(original), rel=NEAR)
        assert num_named(found) >= 0.9 * num_named(original)

    def test_where_no_two_names_are_alike(self, name: str, tmp_path: Path) -> None:
        original, found = read_as_it_is(name), renamed(name, one_by_one(), tmp_path)
        if found.unknown_communication is None:
            assert exposed_ns(found) == pytest.approx(exposed_ns(original), rel=NEAR)
        else:
            assert set(exposed_ns(found)) == {None}

    def test_where_nothing_tells_it_the_largest_suspect_is_right(self, name: str, tmp_path: Path) -> None:
        found = renamed(name, with_nothing_told(), tmp_path)
        assert found.unknown_communication is not None
        assert found.has_device is ("the largest that may: zq" in found.unknown_communication)
        assert set(exposed_ns(found)) == {None}


@needs_real_traces
@pytest.mark.parametrize("name", ["a100_alexnet.json.gz", "mi250_minitoy.json.gz", "resnet50_num_workers_4.json.gz"])
def test_one_device_alone_communicates_nothing(name: str) -> None:
    trace = read(REAL / name)
    assert len(trace.rows(Kind.KERNEL))
    found = digest(trace)
    assert found.unknown_communication is None
    assert {device.whole.exposed_comm_ns for device in found.devices} == {0}
