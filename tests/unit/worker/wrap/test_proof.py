from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

from dpdoctor.records import Check, Collective, Counters
from dpdoctor.worker.base.agreement import Alone
from dpdoctor.worker.base.mode import Evidence, Mode, Passes
from dpdoctor.worker.modes.ddp import DDP
from dpdoctor.worker.wrap.proof import Proof, checksum
from tests.builders.heap import taken

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]


def holding(*tensors: torch.Tensor) -> list[nn.Parameter]:
    return [nn.Parameter(tensor) for tensor in tensors]


def flipped(tensor: torch.Tensor, byte: int, bit: int) -> torch.Tensor:
    """Return a copy in which one bit differs."""
    data = tensor.contiguous().flatten().view(torch.uint8).clone()
    data[byte] ^= 1 << bit
    return data.view(tensor.dtype).reshape(tensor.shape)


@given(st.sampled_from(TYPES), st.integers(1, 40), st.data())
def test_every_bit_counts(dtype: torch.dtype, length: int, data: st.DataObject) -> None:
    tensor = torch.randn(length, dtype=torch.float64).to(dtype)
    byte = data.draw(st.integers(0, length * tensor.element_size() - 1))
    bit = data.draw(st.integers(0, 7))
    before = checksum(holding(tensor))
    assert checksum(holding(tensor.clone())) == before
    assert checksum(holding(flipped(tensor, byte, bit))) != before


@pytest.mark.parametrize("dtype", TYPES)
def test_signs_count_wherever_they_stand(dtype: torch.dtype) -> None:
    tensor = torch.ones(9, dtype=dtype)
    sums = {checksum(holding(torch.cat([tensor[:i], -tensor[i:]]))) for i in range(10)}
    assert len(sums) == 10


@given(st.permutations(range(6)))
def test_places_count(order: list[int]) -> None:
    tensor = torch.arange(6.0)
    same = order == list(range(6))
    assert (checksum(holding(tensor[order])) == checksum(holding(tensor))) is same


def test_only_values_count() -> None:
    square = torch.randn(4, 4)
    assert checksum(holding(square.t())) == checksum(holding(square.t().contiguous()))
    assert checksum(holding(square.t())) != checksum(holding(square))
    assert checksum(holding(torch.tensor(3.0))) == checksum(holding(torch.tensor([3.0])))


def test_parameters_of_any_shape_have_a_sum() -> None:
    assert checksum([]) == 0
    assert checksum(holding(torch.empty(0, 3))) == 0
    assert checksum(holding(torch.tensor(1.0))) != 0
    assert checksum(holding(torch.zeros(2), torch.ones(2))) != checksum(holding(torch.ones(2), torch.zeros(2)))


def test_a_change_far_into_a_large_parameter_counts() -> None:
    tensor = torch.ones((1 << 20) + 100)
    before = checksum(holding(tensor))
    for place in (1 << 20, -1):
        changed = tensor.clone()
        changed[place] = -1
        assert checksum(holding(changed)) != before


NO_COUNTERS = Counters(operators=0, collectives={}, inputs=())
DENSE = {"all_reduce": Collective(count=1, num_bytes=400)}
SPARSE = Counters(
    operators=1, collectives={**DENSE, "sparse_all_reduce": Collective(count=1, num_bytes=500)}, inputs=()
)


class Noting(Mode):
    """Notes the evidence; passes when the parameters moved."""

    evidence: Evidence

    def checks(self, evidence: Evidence) -> list[Check]:
        self.evidence = evidence
        return [Check(name="moved", ok=evidence.moved, text="moved")]


def proved(act: Callable[[nn.Module], None]) -> tuple[Evidence, tuple[Check, ...]]:
    module = nn.Linear(3, 1)
    proof = Proof(list(module.parameters()))
    act(module)
    proof.stop()
    mode = Noting()
    checks = proof.checks(mode, NO_COUNTERS, {}, (), Alone(), made_late="")
    gradients_after = proof._gradient_bytes
    module(torch.ones(2, 3)).mean().backward()
    assert proof._gradient_bytes == gradients_after, "the hooks are gone"
    return mode.evidence, checks


def train(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        module(torch.ones(2, 3)).mean().backward()
    optimizer.step()


def test_little_of_it_stays_among_the_memory_of_the_script() -> None:
    # What torch keeps from its first pass, and its profiler from its first recording, is there before.
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(300)))
    kept = []
    for _ in range(2):
        gc.collect()
        before = taken()
        proof = Proof(list(module.parameters()))
        module(torch.ones(2, 64)).sum().backward()
        proof.stop()
        assert proof.counters([]).operators > 3000
        kept.append(taken() - before)
        del proof
    # Of a recording, 40 MB would stay until Python collects cycles.
    assert kept[1] < 4e6


def test_the_evidence_of_one_step() -> None:
    evidence, checks = proved(train)
    assert evidence.moved
    assert evidence.gradient_bytes == 2 * (3 + 1) * 4, "every accumulation counts"
    assert list(evidence.accumulated.values()) == [2, 2]
    assert len(evidence.checksums) == 1
    assert [check.ok for check in checks] == [True]


def replace_gradients(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.ones(2, 3)).mean().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad + 1
    optimizer.step()


@pytest.mark.parametrize(("act", "replaced"), [(train, False), (replace_gradients, True)])
def test_gradients_that_others_are_put_in_the_place_of_are_seen(
    act: Callable[[nn.Module], None], *, replaced: bool
) -> None:
    found, _ = proved(act)
    assert found.replaced is replaced
    differ = DDP().checks(replace(found, checksums=(1, 2)))[1]
    assert ("p.grad = ..." in differ.text) is replaced


def test_a_module_that_is_frozen_when_the_step_begins_is_seen_once_it_trains() -> None:
    module = nn.Linear(3, 1).requires_grad_(False)
    proof = Proof(list(module.parameters()))
    assert not any(parameter.requires_grad for parameter in module.parameters())
    train(module.requires_grad_())
    proof.stop()
    assert list(proof.touched.values()) == [2, 2]


def test_a_step_that_moves_nothing_is_seen() -> None:
    evidence, checks = proved(lambda _: None)
    assert not evidence.moved
    assert evidence.gradient_bytes == 0
    assert [check.ok for check in checks] == [False]


class OtherRankFailed(Alone):
    """Two ranks: this one, and one on which everything failed."""

    def gather(self, numbers: list[int]) -> list[list[int]]:
        return [numbers, [1] * len(numbers)]


def test_what_failed_on_one_rank_failed_on_all() -> None:
    module = nn.Linear(3, 1)
    proof = Proof(list(module.parameters()))
    train(module)
    proof.stop()
    (check,) = proof.checks(Noting(), NO_COUNTERS, {}, (), OtherRankFailed(), made_late="")
    assert check.ok is False
    assert check.text.startswith("failed on rank 1")


def evidence(**fields: object) -> Evidence:
    counters = Counters(operators=1, collectives=DENSE, inputs=())
    good = {
        "checksums": (7, 7),
        "moved": True,
        "unwrapped": (),
        "forwards": {},
        "gradient_bytes": 400,
        "accumulated": {},
        "counters": counters,
    }
    return Evidence(**{**good, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [True, True, True]),
        ({"checksums": (7, 8)}, [True, False, True]),
        ({"moved": False}, [True, None, True]),
        ({"moved": False, "checksums": (7, 8)}, [True, False, True]),
        ({"gradient_bytes": 401}, [True, True, False]),
        ({"counters": NO_COUNTERS}, [True, True, False]),
        ({"gradient_bytes": 900, "counters": SPARSE}, [True, True, True]),
        ({"gradient_bytes": 901, "counters": SPARSE}, [True, True, False]),
        ({"unwrapped": ("a parameter of shape (2,) in SGD",)}, [False, True, True]),
    ],
)
def test_what_proves_ddp(fields: dict[str, object], expected: list[bool | None]) -> None:
    checks = DDP().checks(evidence(**fields))
    assert [check.ok for check in checks] == expected
    assert all(check.text for check in checks)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "as many bytes were all-reduced as there are gradients"),  # each by a learning rate of its own, say
        ({"gradient_bytes": 401}, "gradients were not synchronised: parameters differ"),
        ({"replaced": True}, "gradients were not synchronised: between backward pass and update"),
    ],
)
def test_gradients_that_were_averaged_are_not_why_parameters_differ(fields: dict[str, object], told: str) -> None:
    _, equal, _ = DDP().checks(evidence(checksums=(7, 8), **fields))
    assert told in equal.text


@pytest.mark.parametrize("puts_off", [False, True])
def test_a_step_in_the_backward_pass_comes_before_ddp_reduces_unless_the_wrapper_puts_it_off(puts_off: bool) -> None:
    mode, wrapper = DDP(), nn.Module()
    wrapper.module = nn.Linear(3, 1)
    if puts_off:
        vars(wrapper.module.weight)["_in_backward_optimizers"] = []
    mode.wrappers, mode.passes = [wrapper], Passes(with_step="train.py:7")  # type: ignore[list-item]
    checks = mode.checks(evidence())
    assert [check.ok for check in checks] == [True, True, puts_off]
    assert ("optimizer.step at train.py:7" in checks[-1].text) is not puts_off


def test_a_copied_module_has_the_same_sum() -> None:
    module = nn.Linear(3, 1)
    assert checksum(copy.deepcopy(module).parameters()) == checksum(module.parameters())
