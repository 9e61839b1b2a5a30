from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.gate.workload import script_of, workload
from dpdoctor.spec import Recording, RunSpec
from tests.builders.specs import mode_spec

SPEC = RunSpec(
    target="/home/me/base/scripts/train.py",
    args=("--epochs", "2", "--note", "two words"),
    cwd="/home/me/base",
    modes=(mode_spec("ddp", 2),),
    requested_modes=("ddp",),
    threads_per_device=1,
)


def changed(**fields: Any) -> RunSpec:
    return replace(SPEC, **fields)


def test_two_checkouts_have_the_same_workload() -> None:
    head = changed(target="/tmp/head/scripts/train.py", cwd="/tmp/head", seed=7)
    assert workload(head) == workload(SPEC)
    assert script_of(head) == "scripts/train.py"


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "/home/me/base/scripts/other.py"},
        {"args": ("--epochs", "3")},
        {"modes": (mode_spec("ddp", 4),)},
        {"devices": ("0", "1")},
        {"threads_per_device": 2},
        {"samples_per_step": 5},
        {"fsdp_wrap": ("Block",)},
        {"recording": Recording(warmup=3)},
        {"recording": Recording(steps=4)},
        {"recording": Recording(rounds=3)},
        {"recording": Recording(time_budget_s=3.0)},
    ],
)
def test_what_makes_another_workload_is_in_its_name(fields: dict[str, Any]) -> None:
    assert workload(changed(**fields)) != workload(SPEC)
    assert str(workload(changed(**fields))) != str(workload(SPEC))


@pytest.mark.parametrize(
    "fields", [{"seed": 3}, {"repeat": 5}, {"recording": Recording(trace_steps=0, ablations=("no_comm",))}]
)
def test_what_makes_no_other_workload(fields: dict[str, Any]) -> None:
    assert str(workload(changed(**fields))) == str(workload(SPEC))


def test_in_words() -> None:
    told = str(workload(changed(recording=Recording(steps=4, warmup=3))))
    assert told == (
        "scripts/train.py --epochs 2 --note 'two words' on 2 CPUs with 1 thread each, 10 windows, "
        "warm-up steps: 3, steps per window: 4"
    )


def test_secrets_are_not_in_it_and_redacting_twice_changes_nothing() -> None:
    spec = changed(args=("--token", "abc123secret"))
    once = workload(spec)
    assert "abc123secret" not in str(once)
    again = workload(changed(args=("--token", "<redacted>")))
    assert again == once


def test_of_a_module() -> None:
    assert script_of(changed(target="package.train", is_module=True)) == "package.train"
