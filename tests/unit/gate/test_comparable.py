from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.machine import NOT_TRIED
from dpdoctor.gate import comparable
from dpdoctor.gate.comparable import NOT_CONCERNED, Tier, differences, of_a_pair, of_machines, uncounted, unsound
from dpdoctor.gate.model import Refusal
from dpdoctor.gate.recorded import Conditions, Recorded, RecordedMode
from dpdoctor.records import Check, Conversion, InputTensor
from dpdoctor.spec import Fingerprint, Gpu, Recording
from tests.builders import cases
from tests.builders.launched_runs import COUNTERS, LOADER, mode, of

BASE = of(10, 10, 10)
MACHINE = BASE.header.fingerprint
GPU = Gpu(name="Example 9000", uuid="GPU-0", memory_bytes=80_000_000_000)
# What differs: field of the fingerprint, its value, the refusal's field, hard for time, hard for counters.
MACHINES = [
    ({"gpus": (GPU,)}, "gpus", True, True),
    ({"driver": "590.1"}, "driver", True, False),
    ({"cpu": "Another CPU"}, "cpu", True, False),
    ({"cores": 4}, "cores", True, False),
    ({"python": "3.12.1"}, "python", True, False),
    ({"python": "3.11.8"}, "python release", False, False),
    ({"packages": {**MACHINE.packages, "torch": "2.16.0"}}, "torch", True, True),
    ({"packages": {**MACHINE.packages, "nvidia-nccl-cu12": "2.30"}}, "nccl (CUDA 12)", True, False),
    ({"packages": {**MACHINE.packages, "nvidia-nccl-cu13": "2.30"}}, "nccl (CUDA 13)", True, False),
    ({"packages": {**MACHINE.packages, "triton": "3.9"}}, "triton", True, False),
    ({"packages": {**MACHINE.packages, "torchvision": "0.30"}}, "torchvision", False, False),
    ({"packages": {**MACHINE.packages, "numpy": "3.0"}}, "numpy", False, False),
    ({"host": "another"}, "host", False, False),
    ({"system": "Linux 7.0"}, "system", False, False),
    ({"memory_bytes": 32_000_000_000}, "memory", False, False),
    ({"governor": "powersave"}, "governor", False, False),
]
RUNS = [
    ({"target": "other.py"}, "script", True, True),
    ({"args": ("--epochs", "3")}, "arguments", True, True),
    ({"threads_per_device": 2}, "threads_per_device", True, False),
    ({"fsdp_wrap": ("Block",)}, "fsdp_wrap", True, True),
    ({"seed": 7}, "seed", False, True),
    ({"seed_per_rank": True}, "seed_per_rank", True, True),
    ({"recording": Recording(ablations=("no_comm",))}, "ablations", False, False),
    ({"allow_writes": True}, "allow_writes", False, False),
    ({"recording": Recording(steps=3)}, "recording", True, False),
    ({"samples_per_step": 3}, "recording", True, False),
]
HALF = InputTensor(dtype="float16", shape=(32, 3), num_bytes=192)
MODES = [
    ({"world_size": 4}, {}, "world_size", True, True),
    ({"num_devices": 4}, {}, "devices", True, True),
    ({"placement": "2 replicas on one GPU: 0,0"}, {}, "placement", True, True),
    ({"backend": "nccl"}, {}, "backend", True, True),
    ({"counters": replace(COUNTERS, inputs=(HALF,))}, {}, "input dtype", True, False),
    ({"conversion": Conversion(loaders=(replace(LOADER, dataset="Other"),))}, {}, "dataset", True, False),
    ({"conversion": Conversion(loaders=(replace(LOADER, num_batches=9),))}, {}, "dataset", True, False),
    ({"native": cases.OWN}, {}, "launcher", True, False),
    ({"edges_are_steady": True}, {}, "steady steps", True, False),
    ({}, {"batch": 128}, "global batch", True, False),
    ({}, {"compiled": True}, "compile", True, False),
]


def with_machine(**changes: Any) -> Recorded:
    return with_header(fingerprint=replace(MACHINE, **changes))


def with_header(**changes: Any) -> Recorded:
    return replace(BASE, header=replace(BASE.header, **changes))


def with_spec(**changes: Any) -> Recorded:
    return with_header(spec=replace(BASE.header.spec, **changes))


def changed_mode(summary: dict[str, Any] | None = None, **changes: Any) -> RecordedMode:
    return replace(mode(BASE), summary=replace(mode(BASE).summary, **(summary or {})), **changes)


def with_mode(found: RecordedMode) -> Recorded:
    return replace(BASE, modes={"ddp": found})


def told(head: Recorded, tier: Tier = "time") -> dict[str, Refusal]:
    return {refusal.field: refusal for refusal in differences(BASE, head, ("ddp",), tier)}


def hardness(head: Recorded) -> dict[str, tuple[bool, bool]]:
    """Return what differs, and whether it refuses a gate by time and by counters."""
    by_time, by_counters = told(head, "time"), told(head, "exact")
    return {name: (refusal.hard, by_counters[name].hard) for name, refusal in by_time.items()}


def test_what_is_alike_has_no_differences() -> None:
    assert differences(BASE, of(11, 11, 11), ("ddp",), "time") == ()
    assert differences(BASE, of(11, 11, 11), ("ddp",), "exact") == ()


@pytest.mark.parametrize(("changes", "name", "time", "exact"), MACHINES)
def test_machines_that_differ(changes: dict[str, Any], name: str, time: bool, exact: bool) -> None:
    # Another minor version of Python is another release, too.
    also = {"python release": (False, False)} if name == "python" else {}
    assert hardness(with_machine(**changes)) == {name: (time, exact), **also}


@pytest.mark.parametrize(("changes", "name", "time", "exact"), RUNS)
def test_runs_that_differ(changes: dict[str, Any], name: str, time: bool, exact: bool) -> None:
    assert hardness(with_spec(**changes)) == {name: (time, exact)}


def test_another_dpdoctor_is_told() -> None:
    assert hardness(with_header(dpdoctor="9.0")) == {"dpdoctor": (False, False)}


@pytest.mark.parametrize(("summary", "changes", "name", "time", "exact"), MODES)
def test_modes_that_differ(
    summary: dict[str, Any], changes: dict[str, Any], name: str, time: bool, exact: bool
) -> None:
    assert hardness(with_mode(changed_mode(summary, **changes))) == {f"ddp: {name}": (time, exact)}


def test_another_rule_for_batches() -> None:
    batch = replace(mode(BASE).summary.batch, rule="global")
    assert hardness(with_mode(changed_mode({"batch": batch}))) == {"ddp: batch rule": (True, True)}


def test_another_kind_of_device() -> None:
    ranks = tuple(replace(rank, device_type="cuda") for rank in mode(BASE).summary.ranks)
    assert hardness(with_mode(changed_mode({"ranks": ranks}))) == {"ddp: device": (True, True)}


@pytest.mark.parametrize("tier", ["time", "exact"])
def test_every_difference_has_both_values_and_a_way_out(tier: Tier) -> None:
    heads = [
        *(with_machine(**changes) for changes, *_ in MACHINES),
        *(with_spec(**changes) for changes, *_ in RUNS),
        *(with_mode(changed_mode(summary, **changes)) for summary, changes, *_ in MODES),
    ]
    refusals = [refusal for head in heads for refusal in told(head, tier).values()]
    assert len(refusals) >= len(heads)
    assert [refusal for refusal in refusals if refusal.base == refusal.head or not refusal.remedy] == []


def test_every_field_of_the_tables_is_tried_here() -> None:
    tried = {name for _, name, _, _ in (*MACHINES, *RUNS)} | {name for _, _, name, _, _ in MODES}
    tried |= {"dpdoctor", "warmup", "batch rule", "device"}
    assert {field.name for field in (*comparable.MACHINE, *comparable.RUN, *comparable.MODE)} == tried


def test_the_hard_ones_come_first_with_both_values() -> None:
    found = differences(BASE, with_machine(host="another", cores=4), ("ddp",), "time")
    assert [(one.field, one.base, one.head, one.hard) for one in found] == [
        ("cores", "2", "4", True),
        ("host", "node", "another", False),
    ]


def test_modes_that_are_not_judged_may_differ() -> None:
    assert differences(BASE, with_mode(changed_mode({"world_size": 4})), (), "time") == ()


@pytest.mark.parametrize(
    ("base", "head", "name"),
    [
        ({"pressure": 0.10}, {"pressure": 0.20}, "ddp: time with a task waiting for a core"),
        ({"throttled": 0}, {"throttled": 3}, "ddp: throttled quota periods"),
        ({"throttled": 3}, {}, "ddp: throttled quota periods"),
        ({"sm_clock_mhz": 1980.0}, {"sm_clock_mhz": 1700.0}, "ddp: SM clock"),
    ],
)
def test_other_conditions_are_told_and_forbid_nothing(base: dict[str, Any], head: dict[str, Any], name: str) -> None:
    unknown = Conditions(pressure=None, throttled=None, sm_clock_mhz=None)
    one, other = (changed_mode(conditions=replace(unknown, **side)) for side in (base, head))
    (found,) = differences(with_mode(one), with_mode(other), ("ddp",), "time")
    assert (found.field, found.hard) == (name, False)


@pytest.mark.parametrize(("seconds", "told"), [(0.00025, True), (0.00015, True), (0.00021, False), (None, False)])
def test_cores_that_compute_at_another_pace_are_told_and_forbid_nothing(seconds: float | None, told: bool) -> None:
    base, head = (
        changed_mode(summary={"core_benchmark": replace(NOT_TRIED, value=value)}) for value in (0.0002, seconds)
    )
    found = differences(with_mode(base), with_mode(head), ("ddp",), "time")
    assert [(one.field, one.hard) for one in found] == [("ddp: the same arithmetic on a core", False)] * told


@pytest.mark.parametrize("head", [{"pressure": 0.12}, {"sm_clock_mhz": 1950.0}, {"throttled": 0}, {}])
def test_conditions_that_hardly_differ(head: dict[str, Any]) -> None:
    base = Conditions(pressure=0.10, throttled=0, sm_clock_mhz=1980.0)
    one, other = changed_mode(conditions=base), changed_mode(conditions=replace(base, **head))
    assert differences(with_mode(one), with_mode(other), ("ddp",), "time") == ()


def test_a_mode_that_was_not_run() -> None:
    (found,) = unsound("head", "fsdp", None)
    assert (found.field, found.base, found.head) == ("fsdp: mode", NOT_CONCERNED, "it was not run")
    assert "--modes fsdp" in found.remedy


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"status": "failed", "reason": "it raised"}, "it raised"),
        ({"status": "skipped", "reason": "never begun"}, "never begun"),
        ({"status": "interrupted", "reason": "Ctrl-C"}, "it is interrupted: Ctrl-C"),
        ({"status": "inactive", "reason": "no GPU"}, "it is inactive: no GPU"),
        (
            {"conversion": Conversion(proof=(Check(name="checksums", ok=False, text="they differ"),))},
            "conversion was not proved: checksums: they differ",
        ),
    ],
)
def test_a_mode_that_did_not_end_well(summary: dict[str, Any], said: str) -> None:
    (found,) = unsound("base", "ddp", changed_mode(summary))
    assert (found.field, found.base, found.head, found.hard) == ("ddp: mode", said, NOT_CONCERNED, True)


def test_too_few_steps() -> None:
    (found,) = unsound("head", "ddp", changed_mode(steps=19))
    assert (found.field, found.head) == ("ddp: steps", "19 steps measured")
    assert "Measure 20 at least" in found.remedy
    assert unsound("head", "ddp", changed_mode(steps=20)) == ()
    assert uncounted("head", "ddp", changed_mode(steps=0)) == ()


def test_disturbed_launches() -> None:
    disturbed = changed_mode(disturbed=("launch 1: hot", "launch 2: hot"))
    assert [found.head for found in unsound("head", "ddp", disturbed)] == ["launch 1: hot", "launch 2: hot"]
    assert uncounted("head", "ddp", disturbed) == ()


def test_a_pair_must_do_the_same_work() -> None:
    assert of_a_pair("ddp", mode(BASE), changed_mode()) == ()
    (found,) = of_a_pair("ddp", mode(BASE), changed_mode(batch=128))
    assert (found.field, found.base, found.head) == ("ddp: global batch", "64 samples", "128 samples")


def test_what_head_may_change_of_a_pair() -> None:
    changed = changed_mode({"counters": replace(COUNTERS, inputs=(HALF,))}, compiled=True)
    assert of_a_pair("ddp", mode(BASE), changed) == ()


def test_machines_alone() -> None:
    other: Fingerprint = replace(MACHINE, host="another", cpu=None)
    assert [(found.field, found.hard) for found in of_machines(MACHINE, other, "time")] == [
        ("cpu", True),
        ("host", False),
    ]


def test_counters_are_of_the_same_step_only_after_a_warm_up_of_a_given_length() -> None:
    fixed = with_spec(recording=Recording(warmup=5))
    assert "warmup" not in told(BASE, "exact")
    until_steady = with_header(created="2026-02-03T04:05:06Z")
    assert told(until_steady, "exact")["warmup"].hard
    assert told(fixed, "exact")["warmup"].hard
    later = replace(fixed, header=replace(fixed.header, created="2026-02-03T04:05:06Z"))
    assert "warmup" not in {refusal.field for refusal in differences(fixed, later, ("ddp",), "exact")}


def test_steps_that_never_settled_are_told_and_judged() -> None:
    found = told(with_mode(changed_mode({"warmup_steady": False})))["ddp: warm-up"]
    assert (found.head, found.hard) == ("never steady", False)


def test_a_mode_that_failed_may_want_the_baseline() -> None:
    failed = changed_mode({"status": "failed", "reason": "parameters got no gradient"})
    (refusal,) = unsound("head", "ddp", failed)
    assert "add single to --modes" in refusal.remedy
    (refusal,) = unsound("head", "single", failed)
    assert "--modes" not in refusal.remedy
