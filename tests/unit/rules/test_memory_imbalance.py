"""memory_imbalance: over the GPUs of one process, and over ranks."""

from __future__ import annotations

import dataclasses
import re

from dpdoctor.analysis import Finding
from dpdoctor.records import Device
from dpdoctor.rules.memory_imbalance import RULE
from tests.builders import cases
from tests.builders.cases import Case


def devices(*gigabytes: float | None) -> tuple[Device, ...]:
    """Return GPUs that held so much at most."""
    return tuple(
        Device(name="GPU", uuid=f"GPU-{index}", peak_memory_bytes=None if size is None else round(size * 1e9))
        for index, size in enumerate(gigabytes)
    )


def ranks(*gigabytes: float) -> Case:
    """Return ranks with a GPU each."""
    of = [
        dataclasses.replace(rank, record=dataclasses.replace(rank.record, devices=devices(size)))
        for rank, size in zip(cases.ranks(len(gigabytes), device="cuda:0"), gigabytes, strict=True)
        if rank.record
    ]
    return cases.case("ddp", world_size=len(gigabytes), of=of)


def dp(*gigabytes: float | None) -> Case:
    """Return one process with several GPUs."""
    return cases.case("dp", of=cases.ranks(device="cuda:0", devices=devices(*gigabytes)))


FIRES = {"the first GPU of DataParallel": dp(40, 20), "one rank": ranks(20, 20, 40)}
SILENT = {
    "even": dp(40, 38),
    "even ranks": ranks(20, 21),
    "not known": dp(40, None),
    "on the CPU": cases.case("single"),
}


def test_who_and_how_much() -> None:
    found = RULE.check(FIRES["the first GPU of DataParallel"])
    assert isinstance(found, Finding)
    assert found.title == "GPU 0 holds 2.00x what the other GPUs hold"
    assert "gathered" in (found.remedy or "")
    (text,) = found.evidence
    assert re.findall(r"GPU \d|[\d.]+ GB", text) == ["GPU 0", "40.0 GB", "20.0 GB"]
    assert (found.ranks, found.cost.value) == ((), None)
    found = RULE.check(FIRES["one rank"])
    assert isinstance(found, Finding)
    assert found.ranks == (2,)
    assert "gathered" not in (found.remedy or "")


def test_of_two_gpus_of_which_one_holds_nothing_no_ratio_is_told() -> None:
    found = RULE.check(ranks(40, 0))
    assert isinstance(found, Finding)
    assert found.title == "rank 0's GPU holds all that is held, and the other GPUs nothing"
