"""Traces that went wrong in many ways, the same ones in every run: for the reader and for what builds on it."""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.builders.documents import complete, kernel, members

STRANGE = (
    None, True, -1, 0, 0.5, -0.0, 1e15, -1e15, 9e15, 1e19, 1e300, 2**31, 2**63, -(2**63), 2**64, 10**40, 10**4000,
    "", "x", "0x1F", "7", "stream 7", "-1", "\x00", "</script>", "\ud800", "n" * 5000, [], {}, [[]], [{}], {"a": {}},
    [1, 2], ["0"], [[2, 3]], [[[2, 3]], []], "[0, 1, ...]", "[0, 1", "NaN", "ProfilerStep#99999999999999999999",
)  # fmt: skip
# What JSON's encoder would not write, put in place of a number.
RAW = (b"NaN", b"-Infinity", b"inf", b"1e400", b"01", b"+1", b"1.", b"--1", b"tru", b"None", b"'x'", b"", b"1" * 5000)


def seed_trace() -> dict[str, Any]:
    """Return a small trace in which every field that is read occurs."""
    collective = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 10, "Out msg nelems": 10, "Seq": 3}
    group = {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    shapes = {"Input Dims": [[4, 5], [[2], [3]]], "Input type": ["float", "TensorList"], "External id": 9}
    events = [
        *({**complete(f"ProfilerStep#{step}", 100.0 * step, 99.0), "cat": "user_annotation"} for step in range(4)),
        *(kernel(f"gemm {at}", 40.0 * at, 30.5, correlation=at, **{"External id": at}) for at in range(8)),
        *(
            complete("cudaLaunchKernel", 40.0 * at - 9, 2.5, cat="cuda_runtime", args={"correlation": at})
            for at in range(8)
        ),
        *(kernel("ncclDevKernel_AllReduce", 100.0 * at, 50.0, correlation=9, **collective, **group) for at in range(3)),
        complete("gloo:all_reduce", 5.0, 6.0, cat="user_annotation", args=shapes),
        complete("aten::add", 5.5, 6.0, args=shapes),
        complete("Memcpy HtoD", 7, 1, cat="gpu_memcpy", pid=1, tid=20, args={"device": 1, "stream": 20, "bytes": 800}),
        complete("Memset", 7, 1, cat="Memset", pid=0, tid="stream 7", args={"external id": 4}),
        {"ph": "i", "name": "[memory]", "ts": 8.5, "args": {"Device Type": 1, "Device Id": 0, "Total Allocated": 5}},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 7, "args": {"name": "python"}},
        {"ph": "s", "id": 1, "pid": 5, "tid": 7, "ts": 5, "cat": "ac2g", "name": "ac2g"},
    ]
    header = {
        "distributedInfo": {
            "backend": "nccl",
            "rank": 0,
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
        },
        "deviceProperties": [{"id": 0, "name": "A100"}, {"id": 1, "name": "A100"}],
        "baseTimeNanoseconds": 1767189312000000000,
        "host_name": "node",
    }
    return {**header, "traceEvents": events}


def mutants(num: int, *, first: int = 0) -> Iterator[bytes]:
    """Yield the content of so many damaged trace files, each with one to four mutations, some of them compressed.

    Those of another `first`, at least so many apart, are others.
    """
    for seed in range(first, first + num):
        rng = random.Random(seed)
        trace = seed_trace()
        for _ in range(rng.randrange(3)):
            rng.choice(STRUCTURAL)(rng, trace)
        content = json.dumps(trace, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5)
        data = content.encode("utf-8", "surrogatepass")
        for _ in range(rng.randrange(1, 3)):
            data = rng.choice(TEXTUAL)(rng, data)
        yield rng.choice(WRAPPINGS)(rng, data)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Return every place of a JSON value: (container, key or index)."""
    if not isinstance(value, (dict, list)):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [spot for key in keys for spot in ((value, key), *spots(value[key]))]


def replace(rng: random.Random, trace: Any) -> None:
    """Put something strange somewhere."""
    container, key = rng.choice(spots(trace))
    container[key] = copy.deepcopy(rng.choice(STRANGE))


def replace_in_all(rng: random.Random, trace: Any) -> None:
    """Give every event the same strange value in one field, or in one of its arguments."""
    field, strange = rng.choice(("ts", "dur", "pid", "tid", "name", "cat", "args")), rng.choice(STRANGE)
    events = trace.get("traceEvents")
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict):
            event[field] = copy.deepcopy(strange)


def drop(rng: random.Random, trace: Any) -> None:
    """Take something away."""
    container, key = rng.choice(spots(trace))
    del container[key]


def shuffle(rng: random.Random, trace: Any) -> None:
    """Change the order of the events and double some."""
    events = trace.get("traceEvents")
    if isinstance(events, list) and events:
        events += rng.choices(events, k=5)
        rng.shuffle(events)


def nest(rng: random.Random, trace: Any) -> None:
    """Put a value into many lists."""
    container, key = rng.choice(spots(trace))
    for _ in range(rng.choice((3, 300))):
        container[key] = [container[key]]


def cut(rng: random.Random, data: bytes) -> bytes:
    """End anywhere."""
    return data[: rng.randrange(len(data) + 1)]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Change some bytes to anything, which is often not UTF-8."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6) if data else 0):
        changed[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(changed)


def structure(rng: random.Random, data: bytes) -> bytes:
    """Put in a character that means something to a parser."""
    at = rng.randrange(len(data) + 1)
    return (
        data[:at]
        + rng.choice((b"{", b"}", b"[", b"]", b'"', b",", b"\\", b":", b"},{", b'"traceEvents":['))
        + data[at:]
    )


def raw_number(rng: random.Random, data: bytes) -> bytes:
    """Write a number as no JSON has it."""
    numbers = list(re.finditer(rb"(?<=: )[-\d.e]+", data))
    if not numbers:
        return data
    begin, end = rng.choice(numbers).span()
    return data[:begin] + rng.choice(RAW) + data[end:]


def double_key(rng: random.Random, data: bytes) -> bytes:
    """Write a key twice, with another value."""
    keys = list(re.finditer(rb'"[\w ]+": ', data))
    if not keys:
        return data
    key = rng.choice(keys)
    return data[: key.start()] + key[0] + json.dumps(rng.choice(STRANGE)).encode() + b", " + data[key.start() :]


def repeat(rng: random.Random, data: bytes) -> bytes:
    """Write a part twice, or leave it out."""
    begin, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:end] + data[begin:] if rng.random() < 0.5 else data[:begin] + data[end:]


def deep(rng: random.Random, data: bytes) -> bytes:
    """Nest deeper than any parser goes."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice((b"[", b'{"a":')) * 20_000 + data[at:]


def same(rng: random.Random, data: bytes) -> bytes:  # noqa: ARG001 - one of those that take a generator
    """Change nothing."""
    return data


def compressed(rng: random.Random, data: bytes) -> bytes:
    """Compress into one or more members."""
    return members(data, rng.choice((1, 3))) if data else gzip.compress(data)


def compressed_and_damaged(rng: random.Random, data: bytes) -> bytes:
    """Compress, then damage."""
    return rng.choice((cut, flip, repeat))(rng, compressed(rng, data))


Textual = Callable[[random.Random, bytes], bytes]
STRUCTURAL: tuple[Callable[[random.Random, Any], None], ...] = (replace, replace, replace_in_all, drop, shuffle, nest)
TEXTUAL: tuple[Textual, ...] = (same, same, same, cut, flip, structure, raw_number, double_key, repeat, deep)
WRAPPINGS: tuple[Textual, ...] = (same, same, same, same, compressed, compressed_and_damaged)
