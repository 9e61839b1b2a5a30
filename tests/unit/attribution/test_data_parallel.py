"""Traces of two GPUs are written, with the names of DataParallel's parts; that of two replicas on one GPU is real."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor.attribution.data_parallel import data_parallel_cost
from dpdoctor.attribution.digesting import digest
from dpdoctor.digest import DataParallelCost
from tests.builders.documents import needs_real_traces
from tests.builders.kineto import AUTOGRAD, MAIN, US, Kineto, Observed, real, recorded

REPLICA_A, REPLICA_B = 11, 12


def cost_of(observed: Observed) -> DataParallelCost | None:
    return data_parallel_cost(observed.trace, observed.steps, observed.devices)


def step(kineto: Kineto, at: float, *, threads: tuple[int, int] = (REPLICA_A, REPLICA_B)) -> None:
    """Write a step of two replicas."""
    kineto.span("DataParallel.forward", at, at + 300)
    kineto.op("Scatter", at + 10, at + 30)
    kineto.kernel("Memcpy PtoP", at + 15, at + 35, called=at + 12, device=1)
    kineto.op("Broadcast", at + 40, at + 70)
    for device in (0, 1):
        kineto.kernel("ncclDevKernel_Broadcast_RING_LL", at + 60, at + 110, called=at + 50 + device, device=device)
    for device, thread in enumerate(threads):
        kineto.kernel("gemm", at + 120, at + 200 + 10 * device, called=at + 100 + device, thread=thread, device=device)
    kineto.op("Gather", at + 220, at + 250)
    kineto.kernel("Memcpy PtoP", at + 230, at + 255, called=at + 225, device=0)
    kineto.kernel("nll_loss", at + 310, at + 320, called=at + 305, device=0)
    kineto.op("GatherBackward", at + 400, at + 430, thread=AUTOGRAD)
    kineto.op("Scatter", at + 405, at + 425, thread=AUTOGRAD)
    kineto.kernel("Memcpy PtoP", at + 410, at + 415, called=at + 406, thread=AUTOGRAD, device=1)
    for device in (0, 1):
        kineto.kernel("gemm", at + 440, at + 600, called=at + 435 + device, thread=AUTOGRAD, device=device)
    kineto.op("BroadcastBackward", at + 610, at + 690, thread=AUTOGRAD)
    kineto.op("ReduceAddCoalesced", at + 620, at + 680, thread=AUTOGRAD)
    for device in (0, 1):
        kineto.kernel(
            "ncclDevKernel_Reduce_Sum", at + 630, at + 700, called=at + 625 + device, thread=AUTOGRAD, device=device
        )
    kineto.kernel("sgd", at + 800, at + 850, called=at + 795, device=0)


def test_every_part_by_hand(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000, 2000, 3000, 4000)
    for at in (0, 1000, 2000, 3000):
        step(kineto, at)
    cost = cost_of(kineto.observe(tmp_path))
    assert cost is not None
    assert cost.scatter_ns == (20 + 20) * US  # of the inputs, and of the gradients of the outputs
    assert cost.replicate_ns == (100 - 40) * US  # until a replica's thread launches
    assert cost.parallel_apply_ns == (220 - 100) * US
    assert cost.gather_ns == 30 * US
    assert cost.reduce_ns == 60 * US
    first, second = cost.device_ns[0], cost.device_ns[1]
    assert first == {
        "scatter": 0,
        "replicate": 50 * US,
        "parallel_apply": 80 * US,
        "gather": 25 * US,
        "reduce": 70 * US,
        "other": (10 + 160 + 50) * US,  # loss, backward, update
        "busy": (50 + 80 + 25 + 70 + 220) * US,
    }
    assert second == {
        "scatter": 25 * US,
        "replicate": 50 * US,
        "parallel_apply": 90 * US,
        "gather": 0,
        "reduce": 70 * US,
        "other": 160 * US,
        "busy": (25 + 50 + 90 + 70 + 160) * US,
    }
    assert first["busy"] - second["busy"] == 50 * US


def test_replicas_whose_launches_are_not_seen_run_from_the_end_of_the_broadcast(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    step(kineto, 0, threads=(MAIN, MAIN))
    cost = cost_of(kineto.observe(tmp_path))
    assert cost is not None
    assert (cost.replicate_ns, cost.parallel_apply_ns) == (30 * US, 150 * US)


def test_one_device_needs_no_replicas(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.span("DataParallel.forward", 100, 300)
    kineto.op("Scatter", 110, 130)
    kineto.kernel("gemm", 150, 280, called=140)
    cost = cost_of(kineto.observe(tmp_path))
    assert cost is not None
    assert (cost.scatter_ns, cost.replicate_ns, cost.parallel_apply_ns, cost.gather_ns) == (20 * US, 0, 170 * US, 0)
    assert cost.device_ns[0]["parallel_apply"] == cost.device_ns[0]["busy"] == 130 * US


def test_several_forwards_in_a_step_add_up(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 2000)
    step(kineto, 0)
    step(kineto, 1000)
    cost = cost_of(kineto.observe(tmp_path))
    assert cost is not None
    assert (cost.scatter_ns, cost.replicate_ns, cost.parallel_apply_ns) == (80 * US, 120 * US, 240 * US)


def test_other_scatters_and_gathers_are_not_taken_for_these(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 1000)
    kineto.op("aten::scatter", 10, 20)
    kineto.op("aten::gather", 30, 40)
    kineto.span("DistributedDataParallel.forward", 0, 100)
    kineto.kernel("gemm", 50, 80, called=40)
    assert cost_of(kineto.observe(tmp_path)) is None


@needs_real_traces
def test_ddp_is_not_taken_for_data_parallel() -> None:
    assert cost_of(real("a100x2_ddp_rank0_collective_args.json.gz")) is None


def test_two_replicas_on_a_real_gpu() -> None:
    seen = recorded("h100_dp_two_replicas.json.gz")
    cost = cost_of(seen)
    assert cost is not None
    host = (cost.replicate_ns, cost.parallel_apply_ns, cost.reduce_ns, cost.scatter_ns, cost.gather_ns)
    assert [round(ns / 1e6, 1) for ns in host] == [5.6, 5.9, 2.2, 0.4, 0.3]
    (gpu,) = cost.device_ns.values()
    assert gpu["busy"] == pytest.approx(sum(ns for part, ns in gpu.items() if part != "busy"), rel=0.01)
    assert digest(seen.trace).unknown_communication is None  # one process, though it flattens gradients
