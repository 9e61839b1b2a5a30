"""memory_pressure: of a GPU whose size is known, and of the host."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Finding, Sample
from dpdoctor.records import Device
from dpdoctor.rules.diagnose import conclusions
from dpdoctor.rules.memory_pressure import RULE
from dpdoctor.spec import Gpu
from tests.builders import cases
from tests.builders.cases import Case
from tests.builders.specs import MS
from tests.builders.traced_cases import case as traced
from tests.builders.traced_cases import digest

GPU = Gpu(name="GPU", uuid="GPU-0", memory_bytes=100_000_000_000)
STARVED = digest(world_size=1, compute=90, idle_by={"allocator": 10})


def with_gpu(made: Case) -> Case:
    """Return the case on a machine whose GPU has 100 GB."""
    summary = made.analysis.summary
    known = replace(summary, fingerprint=replace(summary.fingerprint, gpus=(GPU,)))
    return cases.case_of(replace(made.analysis, summary=known), made.name)


def gpu(gigabytes: int, ranks: int = 1, samples: Sequence[Sample] = ()) -> Case:
    """Return ranks that held so much each of one GPU's 100 GB."""
    held = Device(name="GPU", uuid="GPU-0", peak_memory_bytes=gigabytes * 10**9)
    of = cases.ranks(ranks, device="cuda:0", devices=(held,))
    return with_gpu(cases.case("ddp", world_size=ranks, of=of, samples=samples))


def mig(gigabytes: int) -> Case:
    """Return a rank that held so much of a MIG instance of 20 GB, which NVML does not name among the GPUs."""
    held = Device(name="GPU", uuid="GPU-7", peak_memory_bytes=gigabytes * 10**9, memory_bytes=20 * 10**9)
    return with_gpu(cases.case("single", of=cases.ranks(device="cuda:0", devices=(held,))))


def reading(ratio: float) -> list[Sample]:
    """Return what a host whose memory is so full tells."""
    return [Sample(at_ns=MS, source="host", values={"memory_used_bytes": ratio * 1e10, "memory_total_bytes": 1e10})]


def host(ratio: float) -> Case:
    """Return one rank on such a host."""
    return cases.case("single", samples=reading(ratio))


FULL_HOST = reading(0.93)
FULL = Device(name="GPU", uuid="GPU-0", peak_memory_bytes=95 * 10**9)
FIRES = {
    "a GPU": gpu(95),
    "a GPU, very full": gpu(98),
    "a GPU of two ranks": gpu(60, ranks=2),
    "a MIG instance": mig(19),
    "the host": host(0.93),
    "a GPU with a trace": with_gpu(traced("single", STARVED, record={"devices": (FULL,)})),
}
SILENT = {
    "room": gpu(80),
    "room in a MIG instance": mig(15),
    "room on the host": host(0.5),
    "nothing known": cases.case("single"),
}


@pytest.mark.parametrize(
    ("gigabytes", "told"), [(95, "the host's memory was 99% full"), (98, "rank 0's GPU was 98% full")]
)
def test_what_is_critical_is_not_hidden_by_what_is_not(gigabytes: int, told: str) -> None:
    found = RULE.check(gpu(gigabytes, samples=reading(0.99)))
    assert isinstance(found, Finding)
    assert (found.title, found.severity) == (told, "critical")


@pytest.mark.parametrize(("which", "level"), [("a GPU", "warning"), ("a GPU, very full", "critical")])
def test_how_full(which: str, level: str) -> None:
    found = RULE.check(FIRES[which])
    assert isinstance(found, Finding)
    assert (found.severity, found.cost.value) == (level, None)


def test_the_remedy_is_one_that_there_is() -> None:
    held = (FULL,)
    sharded = with_gpu(cases.case("fsdp", world_size=2, of=cases.ranks(2, device="cuda:0", devices=held)))
    copied = with_gpu(cases.case("ddp", world_size=2, of=cases.ranks(2, device="cuda:0", devices=held)))
    alone = with_gpu(cases.case("single", of=cases.ranks(device="cuda:0", devices=held)))
    told = {case: RULE.check(case).remedy for case in (sharded, copied, alone)}
    assert [("FSDP" in remedy) for remedy in told.values()] == [False, True, False]
    with_workers = cases.case("single", samples=FULL_HOST, loader=cases.loader(num_workers=2))
    assert "workers" in RULE.check(with_workers).remedy
    assert "workers" not in RULE.check(FIRES["the host"]).remedy


def test_the_trace_says_what_the_allocator_costs() -> None:
    found = RULE.check(FIRES["a GPU with a trace"])
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.1)


def test_a_full_gpu_is_told_where_the_allocator_costs_nothing() -> None:
    idle = digest(world_size=1, compute=90, idle_by={"python": 10})
    case = with_gpu(traced("single", idle, record={"devices": (FULL,)}))
    found = conclusions(case)["memory_pressure"]
    assert isinstance(found, Finding)
    assert (found.title, found.cost.value) == ("rank 0's GPU was 95% full", None)


def test_what_the_allocator_takes_in_too_few_steps_has_no_cost_and_stays_idle_time() -> None:
    whole = digest(world_size=1, compute=60, idle_by={"allocator": 40}, delay_us=3_000)
    one_step = tuple(replace(device, steps=device.steps[:1]) for device in whole.devices)
    made = traced("single", replace(whole, devices=one_step), record={"devices": (FULL,)})
    said = conclusions(with_gpu(made))
    full = said["memory_pressure"]
    assert isinstance(full, Finding)
    assert "in these the GPU idles 40% of the time for memory" in str(full.cost.reason)
    assert isinstance(said["device_idle"], Finding)


@pytest.mark.parametrize(("gigabytes", "title"), [(98, "rank 2's GPU was 98% full"), (80, "GPU 0 was up to 100% full")])
def test_a_gpu_that_is_full_for_certain_goes_before_one_that_may_be(gigabytes: int, title: str) -> None:
    shared = Device(name="GPU", uuid="GPU-0", peak_memory_bytes=60 * 10**9, memory_bytes=100 * 10**9)
    own = Device(name="GPU", uuid="GPU-1", peak_memory_bytes=gigabytes * 10**9, memory_bytes=100 * 10**9)
    ranks = [
        replace(rank, record=replace(rank.record, devices=(device,)))
        for rank, device in zip(cases.ranks(3, device="cuda:0"), (shared, shared, own), strict=True)
    ]
    found = RULE.check(cases.case("ddp", world_size=3, of=ranks))
    assert isinstance(found, Finding)
    assert (found.title, found.severity) == (title, "critical" if gigabytes == 98 else "warning")


def test_a_full_host_goes_before_a_gpu_that_may_be_full_alone() -> None:
    titles = [RULE.check(gpu(*held, samples=FULL_HOST)).title for held in ((60, 2), (98, 1))]
    assert titles == ["the host's memory was 93% full", "rank 0's GPU was 98% full"]


def test_peaks_of_several_ranks_are_a_bound_and_no_more_than_there_is() -> None:
    found = RULE.check(FIRES["a GPU of two ranks"])
    assert isinstance(found, Finding)
    assert (found.title, found.severity) == ("GPU 0 was up to 100% full", "warning")
    assert found.evidence[0] == "torch's allocator held 120 GB of 100 GB at most"
    assert found.evidence[1].startswith("2 ranks use it")
