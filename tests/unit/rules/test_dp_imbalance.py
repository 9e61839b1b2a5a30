"""dp_imbalance: one GPU busier than the mean of all."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import asdict, replace

from dpdoctor.analysis import Finding
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.digest import DataParallelCost
from dpdoctor.records import Device
from dpdoctor.rules.dp_imbalance import RULE
from tests.builders.cases import Case
from tests.builders.traced_cases import case, digest

DEVICES = tuple(
    Device(name="GPU", uuid=f"GPU-{index}", peak_memory_bytes=gigabytes * 10**9)
    for index, gigabytes in enumerate((30, 20))
)


def dp(first: float, second: float | None) -> list:
    """Return a step of 100 ms of nn.DataParallel whose GPUs are busy for so many ms."""
    busy = {index: ms for index, ms in enumerate((first, second)) if ms is not None}
    cost = DataParallelCost(
        scatter_ns=1e6,
        replicate_ns=5e6,
        parallel_apply_ns=4e7,
        gather_ns=1e6,
        reduce_ns=3e6,
        device_ns={
            index: {"parallel_apply": 3e7, "other": ms * 1e6 - 3e7, "busy": ms * 1e6} for index, ms in busy.items()
        },
    )
    return [digest(world_size=1, compute=100, num_devices=2, data_parallel=cost)]


FIRES = {"the first is busier": case("dp", *dp(90, 60), record={"devices": DEVICES})}
SILENT = {
    "even": case("dp", *dp(62, 60)),
    "one device": case("dp", *dp(90, None)),
    "no DataParallel": case("ddp", digest(0), digest(1)),
}


def test_cost_part_and_memory() -> None:
    found = RULE.check(FIRES["the first is busier"])
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.15)
    assert any("backward" in text and "30.0 ms" in text for text in found.evidence)
    assert ["30.0 GB", "20.0 GB"] in [re.findall(r"[\d.]+ GB", text) for text in found.evidence]


def test_memory_is_of_the_launch_whose_trace_it_is() -> None:
    made = FIRES["the first is busier"]
    (launch,) = made.launches
    (rank,) = launch.ranks
    assert rank.record is not None
    # A launch in which every step begins an epoch is left out where another one has steady steps.
    edges = replace(
        rank,
        steps=tuple(replace(step, epoch_edge=True) for step in rank.steps),
        record=replace(rank.record, devices=tuple(replace(device, peak_memory_bytes=1) for device in DEVICES)),
    )
    left_out = LaunchFacts.of(replace(launch, ranks=(edges,)))
    found = RULE.check(Case(**{**asdict(made), "launches": (left_out, launch)}))
    assert isinstance(found, Finding)
    assert ["30.0 GB", "20.0 GB"] in [re.findall(r"[\d.]+ GB", text) for text in found.evidence]
