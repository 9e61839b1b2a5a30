from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdoctor.attribution.fsdp_units import shard_units
from dpdoctor.digest import ShardUnit
from dpdoctor.trace.model import Kind, Trace
from tests.builders.kineto import (
    AUTOGRAD,
    GLOO_A,
    US,
    Kineto,
    Observed,
    covered_ns,
    of_two_ranks,
    recorded,
    rows_named,
    shapes,
)


def units_of(observed: Observed) -> tuple[ShardUnit, ...]:
    return shard_units(observed.trace, observed.steps, observed.devices, observed.found)


def gathered(kineto: Kineto, unit: str, called: float, begin: float, end: float, *, ahead: str = "") -> None:
    """Write an all-gather of NCCL: 100 floats of each of four ranks; `ahead` names the kind of prefetch."""
    if ahead:
        kineto.span(f"FSDP::{ahead}_prefetch for {unit}", called - 2, called + 8)
    kineto.span(f"FSDP::all_gather ({unit})" if unit else "FSDP::all_gather", called - 1, called + 7)
    metadata = {"Collective name": "_allgather_base", "dtype": "Float", "In msg nelems": 100, "Out msg nelems": 400}
    kineto.op("record_param_comms", called + 1, called + 5, **metadata, **{"Group size": 4})
    kineto.kernel("ncclDevKernel_AllGather_RING_LL", begin, end, called=called + 2)


def scattered(kineto: Kineto, unit: str, called: float, begin: float, end: float) -> None:
    kineto.span(f"FSDP::post_backward_reduce ({unit})", called, called + 8, thread=AUTOGRAD)
    metadata = {"Collective name": "_reduce_scatter_base", "dtype": "Float", "In msg nelems": 400, "Group size": 4}
    kineto.op("record_param_comms", called + 1, called + 5, thread=AUTOGRAD, **metadata)
    kineto.kernel("ncclDevKernel_ReduceScatter_Sum", begin, end, called=called + 2, thread=AUTOGRAD)


def test_units_of_a_device_by_hand(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000, 2000, 3000, 4000)
    for at in (0, 1000, 2000, 3000):  # the first and last do not count
        gathered(kineto, "", at + 10, at + 20, at + 50)
        gathered(kineto, "layers.0", at + 30, at + 60, at + 100)
        gathered(kineto, "layers.0", at + 200, at + 250, at + 300, ahead="backward")
        scattered(kineto, "layers.0", at + 400, at + 420, at + 500)
        kineto.kernel("gemm", at + 80, at + 260, called=at + 70)
    root, layer = units_of(kineto.observe(tmp_path))
    assert root == ShardUnit(
        name="root",
        all_gathers=1,
        reduce_scatters=0,
        gathered_bytes=1600,
        scattered_bytes=0,
        exposed_ns=30 * US,
        prefetched=0,
    )
    assert layer == ShardUnit(
        name="layers.0",
        all_gathers=2,
        reduce_scatters=1,
        gathered_bytes=3200,
        scattered_bytes=1600,
        exposed_ns=(20 + 40 + 80) * US,
        prefetched=0.5,
    )


def test_calls_that_fsdp_does_not_name_belong_to_no_unit(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.span("FSDP::all_gather_copy_out (layers.0)", 5, 50)
    kineto.kernel("ncclDevKernel_AllGather_RING_LL", 10, 20, called=8)
    kineto.span("FSDP::backward_prefetch for all_gather", 60, 90)
    kineto.kernel("ncclDevKernel_AllGather_RING_LL", 70, 80, called=68)
    assert units_of(kineto.observe(tmp_path)) == ()


@pytest.mark.parametrize(
    ("suffix", "name"),
    [("", "root"), (" ()", "root"), (" (blocks.0.mlp)", "blocks.0.mlp"), (" (blocks.0) [pg=3]", "blocks.0 [pg=3]")],
)
def test_units_are_called_as_torch_writes_them(tmp_path: Path, suffix: str, name: str) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.span(f"FSDP::post_backward_reduce{suffix}", 5, 50)
    kineto.kernel("ncclDevKernel_ReduceScatter_Sum", 10, 20, called=8)
    (unit,) = units_of(kineto.observe(tmp_path))
    assert (unit.name, unit.reduce_scatters, unit.scattered_bytes, unit.prefetched) == (name, 1, None, None)


def test_units_of_a_host_by_hand(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.steps(0, 1000)
    kineto.span("FSDP::all_gather (head)", 10, 60)
    kineto.op("c10d::_allgather_base_", 12, 14, **shapes(20, 10))
    kineto.span("gloo:all_gather", 15, 55, thread=GLOO_A, **shapes(10))
    kineto.span("FSDP::post_backward_reduce (head)", 100, 160)
    kineto.op("c10d::_reduce_scatter_base_", 102, 104, **shapes(10, 20))
    kineto.span("gloo:all_reduce", 105, 155, thread=GLOO_A, **shapes(20))
    (unit,) = units_of(kineto.observe(tmp_path))
    assert (unit.gathered_bytes, unit.scattered_bytes, unit.exposed_ns) == (80, 80, 90 * US)


def test_without_steps_nothing_is_per_step(tmp_path: Path) -> None:
    kineto = Kineto()
    gathered(kineto, "layers.0", 10, 20, 30)
    assert units_of(kineto.observe(tmp_path)) == ()


def test_recorded_units_are_those_of_the_model() -> None:
    units = {unit.name: unit for unit in units_of(recorded("gloo_fsdp_rank0.json.gz"))}
    assert list(units) == ["root", "blocks.0", "blocks.1"]
    for name, num_bytes, all_gathers in (("root", 30_760, 1), ("blocks.0", 9_446_400, 2), ("blocks.1", 9_446_400, 2)):
        unit = units[name]
        assert (unit.all_gathers, unit.reduce_scatters) == (all_gathers, 1)
        assert (unit.gathered_bytes, unit.scattered_bytes) == (all_gathers * num_bytes, num_bytes)
    # The root keeps its parameters for the backward; each block's are asked for ahead of its backward.
    assert [unit.prefetched for unit in units.values()] == [0, 0.5, 0.5]


def pieces_between_hooks(trace: Trace, thread: int) -> NDArray[np.int64]:
    """Return when operators of a thread ran, cut where hooks of fully_shard in them begin and end, one by one."""
    hooks = [span for name, span in spans_of(trace, Kind.ANNOTATION, thread) if name.startswith("FSDP::")]
    pieces = []
    for _, (begin, end) in spans_of(trace, Kind.CPU_OP, thread):
        reached = begin
        for first, last in sorted(hooks):
            if reached <= first and last <= end:
                pieces.append((reached, first))
                reached = last
        pieces.append((reached, end))
    return np.array(pieces)


def spans_of(trace: Trace, kind: Kind, thread: int) -> list[tuple[str, tuple[int, int]]]:
    events = trace.events
    rows = [row for row in range(len(events)) if events.kind[row] == kind and events.thread[row] == thread]
    return [(trace.names[events.name[row]], (int(events.begin_ns[row]), int(events.end_ns[row]))) for row in rows]


def test_recorded_exposed_time_is_what_a_plain_loop_finds() -> None:
    observed = recorded("gloo_fsdp_rank0.json.gz")
    trace, events = observed.trace, observed.trace.events
    operators = pieces_between_hooks(trace, observed.steps.thread)
    total = 0
    for step in ("ProfilerStep#2", "ProfilerStep#3"):
        (row,) = rows_named(trace, Kind.ANNOTATION, step).tolist()
        for span in rows_named(trace, Kind.ANNOTATION, "gloo:").tolist():
            begin, end = int(events.begin_ns[span]), int(events.end_ns[span])
            if events.begin_ns[row] <= begin < events.end_ns[row]:
                total += end - begin - covered_ns((begin, end), operators)
    assert sum(unit.exposed_ns for unit in units_of(observed)) == total / 2
