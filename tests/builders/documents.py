"""Small traces made by hand, and the real ones that lie beside the repository when it is worked on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dpdoctor.trace.model import Trace
from dpdoctor.trace.reader import read

REAL = Path(__file__).parents[3] / "shared" / "traces"
needs_real_traces = pytest.mark.skipif(
    not REAL.is_dir(), reason="the folder of real traces is not beside this checkout"
)


def complete(name: str = "aten::add", ts: float = 1.0, dur: float = 2.0, **fields: Any) -> dict[str, Any]:
    """Return a complete event; of an operator on thread 7 of process 5 unless said otherwise."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 5, "tid": 7, "ts": ts, "dur": dur, **fields}


def kernel(name: str = "gemm", ts: float = 1.0, dur: float = 2.0, **args: Any) -> dict[str, Any]:
    """Return a kernel on stream 20 of device 1."""
    return complete(name, ts, dur, cat="kernel", pid=1, tid=20, args={"device": 1, "stream": 20, **args})


def document(*events: dict[str, Any], **header: Any) -> bytes:
    """Return a trace as Kineto writes it: the events last."""
    return json.dumps({**header, "traceEvents": list(events)}).encode()


def read_bytes(folder: Path, content: bytes, **options: Any) -> Trace:
    """Return the trace that a file of this content holds."""
    path = folder / "trace.json"
    path.write_bytes(content)
    return read(path, **options)


def members(content: bytes, num: int) -> bytes:
    """Return gzip data of so many members."""
    step = -(-len(content) // num)
    return b"".join(gzip.compress(content[at : at + step]) for at in range(0, len(content), step))


def event_names(trace: Trace) -> list[str]:
    """Return the name of each event, in order."""
    return [trace.names[name] for name in trace.events.name.tolist()]
