"""Every real trace: the figures of the folder that holds them, by an algebra written anew."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdoctor.trace.model import UNKNOWN, Kind, Trace
from dpdoctor.trace.reader import read
from tests.builders.documents import REAL, needs_real_traces

EXPECTED: dict[str, Any] = json.loads((REAL / "expected.json").read_text()) if REAL.is_dir() else {}
COMMUNICATION = "nccl|rccl|cross_device_reduce|nvshmem|oneccl|msccl"


def covered(spans: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[n - 1]: which stretches between n edges any span covers."""
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, np.searchsorted(edges, spans[:, 0]), 1)
    np.add.at(change, np.searchsorted(edges, spans[:, 1]), -1)
    return np.cumsum(change)[:-1] > 0


def figures(trace: Trace, device: int) -> dict[str, float]:
    """Return what expected.json holds of one device, by sweeping over all edges."""
    events = trace.events[trace.events.device == device]
    spans = events.spans
    edges = np.unique(spans)
    width = np.diff(edges) / 1000
    is_communication = trace.named(COMMUNICATION)[events.name] & (events.kind == Kind.KERNEL)
    is_compute = np.isin(events.kind, (Kind.KERNEL, Kind.MEMSET)) & ~is_communication
    is_upload = trace.named("HtoD|HostToDevice")[events.name] & (events.kind == Kind.MEMCPY)
    compute, comm, upload, anything = (
        covered(spans[mask], edges) for mask in (is_compute, is_communication, is_upload, np.ones(len(events), bool))
    )
    return {
        "compute_us": width[compute].sum(),
        "exposed_comm_us": width[comm & ~compute].sum(),
        "h2d_us": width[upload & ~compute & ~comm].sum(),
        "copy_us": width[anything & ~compute & ~comm & ~upload].sum(),
        "idle_us": width[~anything].sum(),
        "total_us": width.sum(),
        "comm_us": width[comm].sum(),
        "n_compute": int(is_compute.sum()),
        "n_comm": int(is_communication.sum()),
    }


@needs_real_traces
@pytest.mark.parametrize("name", EXPECTED)
def test_every_real_trace_holds_what_it_should(name: str) -> None:
    trace = read(REAL / name)
    assert trace.damage is None
    assert trace.notes == ()
    assert {str(device) for device in np.unique(trace.events.device).tolist() if device != UNKNOWN} == set(
        EXPECTED[name]
    )
    for device, expected in EXPECTED[name].items():
        assert figures(trace, int(device)) == pytest.approx(expected, rel=1e-3, abs=1.0)


@needs_real_traces
@pytest.mark.parametrize(
    ("name", "rank", "world_size", "backend", "has_base"),
    [
        ("v100x2_ddp_rank1.json.gz", 1, 2, "nccl", False),
        ("a100x2_ddp_rank0_collective_args.json.gz", 0, 2, "nccl", True),
        ("two_ranks_of_128/rank-1.json.gz", 1, 128, "nccl", False),
        ("gloo_world300_rank34.json.gz", 34, 300, "gloo", True),
        ("mi250_minitoy.json.gz", None, None, None, True),
        ("resnet50_num_workers_0.json.gz", None, None, None, False),
    ],
)
def test_headers(name: str, rank: int | None, world_size: int | None, backend: str | None, has_base: bool) -> None:
    trace = read(REAL / name)
    assert (trace.rank, trace.world_size, trace.backend) == (rank, world_size, backend)
    assert (trace.base_ns > 10**18) == has_base


@needs_real_traces
@pytest.mark.parametrize(
    "name", ["v100x2_ddp_rank1.json.gz", "resnet50_num_workers_4.json.gz", "mi250_minitoy.json.gz"]
)
def test_every_kernel_finds_its_launch(name: str) -> None:
    events = read(REAL / name).events
    kernels = events.correlation[events.kind == Kind.KERNEL]
    assert np.isin(kernels, events.correlation[events.kind == Kind.RUNTIME]).all()
    assert UNKNOWN not in kernels


@needs_real_traces
def test_collectives_say_their_sizes_and_groups() -> None:
    trace = read(REAL / "a100x2_ddp_rank0_collective_args.json.gz")
    said = [item for item in trace.collectives if item.name == "allreduce"]
    assert {(item.dtype, item.group, item.group_size, item.ranks) for item in said} == {("Float", "0", 2, (0, 1))}
    assert 2_049_000 * 4 in {item.in_bytes for item in said}
    assert trace.groups[0].ranks == (0, 1)


@needs_real_traces
def test_memory_events_of_2021() -> None:
    memory = read(REAL / "resnet50_num_workers_0.json.gz").memory
    assert len(memory) == 12_838
    assert set(np.unique(memory.device).tolist()) == {UNKNOWN, 0}
