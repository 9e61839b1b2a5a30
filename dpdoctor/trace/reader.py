"""A file into a Trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dpdoctor.trace.build import Builder
from dpdoctor.trace.document import Document
from dpdoctor.trace.events import plain
from dpdoctor.trace.model import Group, Trace
from dpdoctor.trace.numbers import is_whole, whole_numbers
from dpdoctor.trace.stream import MAX_BYTES, Stream

_RANK_IN_NAME = re.compile(r"(?<![a-z])rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)
_USED_KEYS = {"distributedInfo", "baseTimeNanoseconds", "host_name", "deviceProperties"}
# Until it has seen a block of about this size freed, the C library gives every freed buffer back to the system
# (M_MMAP_THRESHOLD in mallopt(3)); getting new pages for the next slice then takes a sixth of the time.
_FREED_BYTES = 31 << 20


def read(path: Path, *, max_bytes: int = MAX_BYTES) -> Trace:
    """Return one rank's trace: Kineto JSON, plain or gzip, of any version since 2021, up to its damage if it has any.

    Raises:
        TraceError: not readable, no trace, or more than `max_bytes` of JSON.
    """
    bytes(_FREED_BYTES)  # zeros of the system: none of these pages is ever touched
    document = Document(Stream(path, max_bytes=max_bytes))
    builder = Builder()
    for events in document:
        builder.add(events)
    header = {key: plain(raw) for key, raw in document.header.items() if key in _USED_KEYS}
    distributed = _object(header.get("distributedInfo"))
    rank = _whole(distributed.get("rank"))
    return Trace(
        path=path,
        rank=rank_of(path) if rank is None else rank,
        world_size=_whole(distributed.get("world_size")),
        backend=_text(distributed.get("backend")),
        host=_text(header.get("host_name")),
        base_ns=_whole(header.get("baseTimeNanoseconds")) or 0,
        devices=tuple(str(_object(device).get("name", "")) for device in _list(header.get("deviceProperties"))),
        groups=tuple(_group(_object(group)) for group in _list(distributed.get("pg_config"))),
        names=builder.names,
        threads=builder.threads,
        events=builder.events(),
        memory=builder.memory(),
        collectives=tuple(builder.collectives),
        damage=document.damage,
        notes=builder.notes,
    )


def rank_of(path: Path) -> int | None:
    """Return the rank that the file's name says, else its folder's (`ddp/rank3/trace.json.gz`); None: neither does."""
    found = _RANK_IN_NAME.findall(path.name) or _RANK_IN_NAME.findall(path.parent.name)
    return int(found[-1]) if found else None


def _group(group: dict[str, Any]) -> Group:
    return Group(
        name=str(group.get("pg_name", "")),
        description=str(group.get("pg_desc", "")),
        ranks=whole_numbers(group.get("ranks")),
    )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    """Return a count or a time; None: this is neither."""
    return int(value) if is_whole(value) and value >= 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
