"""Damaged traces give a result or a TraceError: nothing else, and within bounds."""

from __future__ import annotations

import os
import resource
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dpdoctor.errors import TraceError
from dpdoctor.trace.model import UNKNOWN, Kind, Trace
from dpdoctor.trace.reader import read
from tests.builders.mutations import mutants

HUNDRED_YEARS_NS = 3_200_000_000_000_000_000


def check(trace: Trace) -> None:
    """Assert what holds for every trace."""
    events = trace.events
    assert {len(column) for column in (events.end_ns, events.kind, events.num_bytes, events.thread)} <= {len(events)}
    assert (events.end_ns >= events.begin_ns).all()
    assert (np.abs(events.begin_ns) <= HUNDRED_YEARS_NS).all()
    assert np.isin(events.kind, list(Kind)).all()
    assert ((events.name >= 0) & (events.name < len(trace.names))).all()
    assert ((events.thread >= 0) & (events.thread < len(trace.threads))).all()
    assert (events.device >= UNKNOWN).all()
    assert all(0 <= said.row < len(events) for said in trace.collectives)
    assert all(said.in_bytes is None or 0 <= said.in_bytes < 1 << 63 for said in trace.collectives)
    "".join(trace.names).encode()  # no half of a surrogate pair, which no output could take
    assert trace.damage is None or trace.damage.offset >= 0


# Any whole number; .ci/run prints the one that it takes.
SEED_VARIABLE = "DPDOCTOR_MUTATIONS"


@pytest.mark.parametrize("num", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_traces_give_a_result_or_a_trace_error(tmp_path: Path, num: int) -> None:
    path = tmp_path / "trace.json"
    outcomes: Counter[str] = Counter()
    for content in mutants(num, first=num * int(os.environ.get(SEED_VARIABLE, "0"))):
        path.write_bytes(content)
        try:
            trace = read(path)
        except TraceError as error:
            outcomes["error" if str(path) in error.message else "error without its file"] += 1
        else:
            check(trace)
            outcomes["damaged" if trace.damage else "whole"] += 1
    assert outcomes.keys() == {"error", "damaged", "whole"}
    assert min(outcomes.values()) > num / 50
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2e9 / 1024
