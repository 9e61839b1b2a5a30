"""memory_imbalance: over the GPUs of one process, and over ranks."""

from __future__ import annotations

import re

from msgspec.structs import replace

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


def of_ranks(*held: tuple[Device, ...], hosts: tuple[str, ...] = ("box", "box", "box")) -> Case:
    """Return ranks that see these GPUs."""
    of = [
        replace(rank, record=replace(rank.record, devices=seen, host=host))
        for rank, seen, host in zip(cases.ranks(len(held), device="cuda:0"), held, hosts, strict=False)
        if rank.record
    ]
    return cases.case("ddp", world_size=len(held), of=of)


def ranks(*gigabytes: float) -> Case:
    """Return ranks with a GPU each."""
    return of_ranks(*((device,) for device in devices(*gigabytes)))


def dp(*gigabytes: float | None) -> Case:
    """Return one process with several GPUs."""
    return cases.case("dp", of=cases.ranks(device="cuda:0", devices=devices(*gigabytes)))


# Every rank keeps a copy of something on the first GPU, beside what it trains on its own.
ON_THE_FIRST = of_ranks(devices(20, None, None), devices(8, 20, None), devices(8, None, 20))
FIRES = {
    "the first GPU of DataParallel": dp(40, 20),
    "one rank": ranks(20, 20, 40),
    "copies of all ranks on one GPU": ON_THE_FIRST,
}
SILENT = {
    "even": dp(40, 38),
    "even ranks": ranks(20, 21),
    "not known": dp(40, None),
    "on the CPU": cases.case("single"),
}


def test_who_and_how_much() -> None:
    found = RULE.check(FIRES["the first GPU of DataParallel"])
    assert isinstance(found, Finding)
    assert found.title == "GPU 0 holds 2.00x what another GPU holds"
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
    assert found.title == "rank 0's GPU holds all that is held, and no other GPU anything"


def test_what_several_ranks_hold_on_one_gpu_is_added_up_as_a_bound() -> None:
    assert [(peak.name, peak.ranks, peak.num_bytes / 1e9) for peak in ON_THE_FIRST.memory_peaks] == [
        ("GPU 0", (0, 1, 2), 36),
        ("GPU 1", (1,), 20),
        ("GPU 2", (2,), 20),
    ]
    found = RULE.check(ON_THE_FIRST)
    assert isinstance(found, Finding)
    assert found.title == "GPU 0 holds up to 1.80x what another GPU holds"
    assert found.ranks == (0, 1, 2)
    assert found.evidence[1] == "3 ranks use it: their peaks are added up, and need not have come at once"


def test_gpus_of_two_hosts_are_two_gpus_whatever_they_are_called() -> None:
    (first,), hosts = devices(20), ("box", "other")
    assert [peak.ranks for peak in of_ranks((first,), (first,), hosts=hosts).memory_peaks] == [(0,), (1,)]
