from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dpdoctor.spec import BATCH_RULES, ModeSpec, Recording, RunSpec

MODE = ModeSpec(name="ddp", world_size=2, num_devices=2, distributed=True, batch_rule="per-device")
SPEC = RunSpec(
    target="/home/me/train.py", cwd="/home/me", modes=(MODE,), requested_modes=("ddp",), threads_per_device=1
)


@pytest.mark.parametrize(
    ("valid", "change", "message"),
    [
        (MODE, {"world_size": 0}, "world_size is 0"),
        (MODE, {"batch_rule": "split"}, "known: per-device, global"),
        (Recording(), {"warmup": 0}, "warmup is 0; it must be at least 1"),
        (Recording(), {"steps": 0}, "steps is 0; it must be at least 1"),
        (Recording(), {"rounds": 0}, "rounds is 0; it must be at least 1"),
        (Recording(), {"trace_steps": -1}, "trace_steps is -1; it must be at least 0"),
        (Recording(), {"time_budget_s": 0.0}, "time_budget_s is 0.0; it must be above 0"),
        (Recording(), {"time_budget_s": float("nan")}, "time_budget_s is nan"),
        (SPEC, {"threads_per_device": 0}, "threads_per_device is 0"),
        (SPEC, {"repeat": 0}, "repeat is 0"),
        (SPEC, {"timeout_s": -1.0}, "timeout_s is -1.0"),
    ],
)
def test_a_value_that_cannot_be_is_refused_at_birth(valid: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(valid, **change)


@pytest.mark.parametrize("change", [{"trace_steps": 0}, {"warmup": None}, {"steps": 1}, {"time_budget_s": 0.1}])
def test_the_least_value_is_allowed(change: dict[str, Any]) -> None:
    recording = replace(Recording(), **change)
    assert {name: getattr(recording, name) for name in change} == change


@pytest.mark.parametrize("rule", BATCH_RULES)
def test_every_batch_rule_is_known(rule: str) -> None:
    assert replace(MODE, batch_rule=rule).batch_rule == rule


def test_a_spec_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(SPEC), type=RunSpec) == SPEC


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SPEC.seed = 1  # type: ignore[misc]


def test_a_target_is_named_as_a_command_beside_it_names_it() -> None:
    assert SPEC.named == "train.py"
    assert replace(SPEC, target="pkg.train", is_module=True).named == "-m pkg.train"
