"""throttling: NVML's reasons and clocks while something is measured."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Finding, Sample
from dpdoctor.records import Device
from dpdoctor.rules import CannotTell
from dpdoctor.rules.throttling import RULE
from tests.builders import cases
from tests.builders.cases import Case
from tests.builders.specs import MS

POWER_CAP, THERMAL, BRAKE = 0x4, 0x20, 0x80


def readings(*reasons: int, clock: float = 1500, source: str = "gpu0", at: int = 100, uuid: str = "") -> list[Sample]:
    """Return one reading for each reason, throttled ones at this clock, the others at 2,000 MHz."""
    return [
        Sample(
            at_ns=(at + number) * MS,
            source=source,
            uuid=uuid,
            values={"throttle_reasons": float(bits), "sm_clock_mhz": clock if bits & ~POWER_CAP else 2000.0},
        )
        for number, bits in enumerate(reasons)
    ]


def of(samples: list[Sample], device: str = "cuda:0", devices: tuple[Device, ...] = ()) -> Case:
    """Return a mode on a GPU with these readings; `devices` are the GPUs that its rank sees."""
    return cases.case("single", of=cases.ranks(device=device, devices=devices), samples=samples)


# A rank that somebody else started sees two GPUs, and used the first.
FIRST_OF_TWO = (Device(name="GPU", uuid="GPU-0", peak_memory_bytes=10**9), Device(name="GPU", uuid="GPU-1"))
NONE_TOLD = (Device(name="GPU", uuid="GPU-0"), Device(name="GPU", uuid="GPU-1"))
UNKNOWN = Sample(
    at_ns=100 * MS, source="gpu0", values={"sm_clock_mhz": 1500.0}, unknown={"throttle_reasons": "not here"}
)
FIRES = {
    "hot half of the time": of(readings(THERMAL, 0, THERMAL, 0)),
    "hot all the time": of(readings(THERMAL, THERMAL)),
    "another GPU is not": of([*readings(BRAKE, BRAKE), *readings(0, 0, source="gpu1")]),
    "the GPU that was used, under a number that is another rank's for another": of(
        readings(THERMAL, 0, source="gpu1", uuid="GPU-0"), devices=FIRST_OF_TWO
    ),
    "nobody tells which GPU was used": of(readings(THERMAL, 0, source="gpu1"), devices=NONE_TOLD),
}
SILENT = {
    "free": of(readings(0, 0)),
    "the power cap is usual": of(readings(POWER_CAP, POWER_CAP)),
    "the clock hardly falls": of(readings(THERMAL, 0, clock=1950)),
    "before anything was measured": of(readings(THERMAL, THERMAL, at=-100)),
    "on the CPU": of([], device="cpu"),
    "only a GPU of another job": of([*readings(0, 0), *readings(THERMAL, 0, source="gpu1")], devices=FIRST_OF_TWO),
    "only a GPU of another job, which has another number where other ranks see others": of(
        [*readings(0, 0, source="gpu1", uuid="GPU-0"), *readings(THERMAL, 0, source="gpu2", uuid="GPU-1")],
        devices=FIRST_OF_TWO,
    ),
}


def finding(case: Case) -> Finding:
    found = RULE.check(case)
    assert isinstance(found, Finding)
    return found


def test_the_cost_is_the_clock_that_is_lost() -> None:
    found = finding(FIRES["hot half of the time"])
    assert found.cost.value == pytest.approx(0.125)
    assert "thermal slowdown by the driver" in found.evidence[0]


def test_without_a_free_clock_the_cost_is_unknown() -> None:
    found = finding(FIRES["hot all the time"])
    assert (found.cost.value, found.speedup) == (None, None)


def test_what_is_measured_on_another_host_is_so_by_another_clock() -> None:
    """The GPU was hot before anything was measured; by the clock of the other host that began long ago."""
    here, there = cases.ranks(2, device="cuda:0")
    assert there.record is not None
    elsewhere = replace(
        there,
        record=replace(there.record, host="other"),
        windows=tuple(replace(w, begin_ns=w.begin_ns - 10**15, end_ns=w.end_ns - 10**15) for w in there.windows),
    )
    samples = [*readings(THERMAL, THERMAL, at=0), *readings(0, 0)]
    assert RULE.check(cases.case("ddp", of=[here, elsewhere], samples=samples)) is None


def test_a_clock_of_nothing_is_not_known() -> None:
    blind = [replace(one, values={**one.values, "sm_clock_mhz": 0.0}) for one in readings(THERMAL, 0)]
    found = RULE.check(of(blind))
    assert isinstance(found, Finding)
    assert (found.cost.value, len(found.evidence)) == (None, 1)


def test_another_gpu_s_clock_will_do() -> None:
    assert finding(FIRES["another GPU is not"]).cost.value == pytest.approx(0.25)


def test_the_clock_of_a_gpu_that_was_not_used_says_nothing_of_one_that_was() -> None:
    free_elsewhere = [*readings(BRAKE, BRAKE), *readings(0, 0, source="gpu1")]
    assert finding(of(free_elsewhere, devices=FIRST_OF_TWO)).cost.value is None


def test_a_driver_that_does_not_tell() -> None:
    found = RULE.check(of([UNKNOWN]))
    assert isinstance(found, CannotTell)
    assert found.reason.endswith("not here")
