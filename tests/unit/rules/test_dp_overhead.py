"""dp_overhead: the parts on the host, capped by what the GPUs leave, and ddp beside it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis, Finding
from dpdoctor.analysis.base.summary import Batch
from dpdoctor.digest import DataParallelCost
from dpdoctor.rules.dp_overhead import RULE
from tests.builders.cases import Case, case_of, figure
from tests.builders.traced_cases import case, digest

BATCH = Batch(per_device=16.0, global_=32.0, rule="global", source="test")


def dp(replicate_ms: float = 20, own_ms: float = 60) -> Case:
    """Return steps of 100 ms that replicate so long, and in which a GPU computes so long for training itself."""
    cost = DataParallelCost(
        scatter_ns=1e6,
        replicate_ns=replicate_ms * 1e6,
        parallel_apply_ns=4e7,
        gather_ns=1e6,
        reduce_ns=8e6,
        device_ns={0: {"parallel_apply": own_ms * 5e5, "other": own_ms * 5e5, "busy": 9e7}},
    )
    found = digest(world_size=1, compute=100, num_devices=1, data_parallel=cost)
    return case("dp", found, throughput=figure(100, 1, "samples/s"), batch=BATCH, num_devices=2)


def beside_ddp(rate: float, per_device: float = 16.0) -> Case:
    """Return the same with a ddp on as many devices that trains so fast."""
    made = dp()
    ddp = replace(
        made.mode,
        throughput=figure(rate, 1, "samples/s"),
        batch=Batch(per_device=per_device, global_=None, rule="global", source="test"),
    )
    summary = replace(made.analysis.summary, modes={**made.analysis.summary.modes, "ddp": ddp})
    return case_of(Analysis(summary=summary, run=made.analysis.run), "dp")


FIRES = {"alone": dp(), "ddp is faster": beside_ddp(150), "ddp had another batch": beside_ddp(150, 32)}
SILENT = {
    "short": dp(replicate_ms=-8),
    "the GPU is busy all the time": dp(own_ms=98),
    "ddp is slower": beside_ddp(80),
    "ddp is hardly faster": beside_ddp(101),
    "ddp is surely faster, by little": beside_ddp(103),
    "no DataParallel": case("ddp", digest(0), digest(1)),
}


def finding(of: Case) -> Finding:
    found = RULE.check(of)
    assert isinstance(found, Finding)
    return found


def test_the_parts_add_up() -> None:
    found = finding(FIRES["alone"])
    assert (found.status, found.cost.value) == ("inferred", pytest.approx(0.3))
    parts = ("scatter 1.00 ms", "replicate 20.0 ms", "gather 1.00 ms", "reduce 8.00 ms")
    assert all(part in found.evidence[0] for part in parts)


def test_never_more_than_the_gpu_leaves() -> None:
    assert finding(dp(own_ms=85)).cost.value == pytest.approx(0.15)


def test_ddp_with_the_same_batch_is_the_experiment() -> None:
    found = finding(FIRES["ddp is faster"])
    assert found.status == "confirmed"
    assert found.speedup is not None
    assert (found.speedup.value, found.speedup_basis) == (pytest.approx(1.5), "measured")
    assert finding(FIRES["ddp had another batch"]).status == "inferred"


def test_it_costs_no_more_than_ddp_gives() -> None:
    found = finding(beside_ddp(110))
    assert (found.status, found.speedup_basis) == ("confirmed", "measured")
    assert found.cost.value == pytest.approx(1 - 1 / 1.1)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1.1)


def test_what_else_ddp_does_better_is_no_part_of_it() -> None:
    assert finding(beside_ddp(200)).cost.value == pytest.approx(0.3)
