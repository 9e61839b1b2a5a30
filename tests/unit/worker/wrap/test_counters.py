from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dpdoctor.records import Collective, Counters, InputTensor
from dpdoctor.worker.wrap.counters import StepProfile, _sizes


def profiled(num_layers: int, inputs: Sequence[torch.Tensor] = ()) -> Counters:
    """Return what one training step of so many linear layers does."""
    module = nn.Sequential(*(nn.Linear(3, 3) for _ in range(num_layers)))
    x = torch.randn(4, 3)
    module(x).mean().backward()
    profile = StepProfile()
    profile.start()
    module(x).mean().backward()
    profile.stop()
    return profile.counters(inputs)


def test_the_same_step_has_the_same_operators_every_time() -> None:
    few, again, many = profiled(1), profiled(1), profiled(3)
    assert few == again
    assert many.operators > few.operators > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, its blocks are counted")
def test_each_block_of_memory_that_is_taken_counts() -> None:
    profile = StepProfile()
    profile.start()
    kept = [torch.empty(1000) for _ in range(3)]
    kept.clear()
    torch.empty(7)
    profile.stop()
    torch.empty(7)
    assert profile.counters([]).allocations == 4


class Ones(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3)


def test_what_arrives_from_loader_processes_is_no_part_of_the_step() -> None:
    profile, batches = StepProfile(), iter(DataLoader(Ones(), batch_size=2, num_workers=1))
    next(batches)
    profile.start()
    for batch in batches:
        batch.add_(batch)
    profile.stop()
    # Three batches; however many tensors were unpickled meanwhile.
    assert profile.counters([]).operators == 3


def test_inputs_are_described() -> None:
    inputs = [torch.ones(4, 3, dtype=torch.bfloat16), torch.ones(4, 3)[:, 0], torch.tensor(1.0), torch.empty(0, 3)]
    counters = profiled(1, inputs)
    assert counters.inputs == (
        InputTensor(dtype="bfloat16", shape=(4, 3), num_bytes=24),
        InputTensor(dtype="float32", shape=(4,), num_bytes=16),
        InputTensor(dtype="float32", shape=(), num_bytes=4),
        InputTensor(dtype="float32", shape=(0, 3), num_bytes=0),
    )
    assert counters.collectives == {}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Give a process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8],
)
def test_bytes_of_collectives_are_those_of_their_tensors(dtype: torch.dtype) -> None:
    tensors = [torch.ones(5, dtype=dtype), torch.ones(2, 3, dtype=dtype), torch.ones((), dtype=dtype)]
    profile = StepProfile()
    profile.start()
    for tensor in tensors:
        dist.all_reduce(tensor)
    dist.broadcast(tensors[1], src=0)
    dist.barrier()
    profile.stop()
    found = profile.counters([]).collectives
    assert found == {
        "all_reduce": Collective(count=3, num_bytes=12 * tensors[0].element_size()),
        "broadcast": Collective(count=1, num_bytes=6 * tensors[0].element_size()),
        "barrier": Collective(count=1, num_bytes=0),
    }


# What torch calls them since 2.14, and before.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@pytest.mark.usefixtures("alone")
def test_the_collectives_of_sharding_count_once_and_with_their_whole_tensor() -> None:
    part, whole = torch.ones(6), torch.ones(6)
    profile = StepProfile()
    profile.start()
    ALL_GATHER(whole, part)
    REDUCE_SCATTER(part, whole)
    dist.all_reduce(torch.ones(2))
    profile.stop()
    assert profile.counters([]).collectives == {
        "all_gather": Collective(count=1, num_bytes=24),
        "all_reduce": Collective(count=1, num_bytes=8),
        "reduce_scatter": Collective(count=1, num_bytes=24),
    }


@pytest.mark.parametrize(
    ("args", "num_bytes"),
    [
        ({}, 0),
        ({"Input Dims": [[2, 3], []], "Input type": ["float", "c10::BFloat16"]}, 26),
        ({"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}, 24),
        ({"Input Dims": [[2], [[2, 3], [4]]], "Input type": ["bool", "TensorList"]}, 2),
        ({"Input Dims": [[7]], "Input type": ["short int"]}, 14),
    ],
)
def test_sizes_of_inputs(args: dict[str, object], num_bytes: int) -> None:
    assert sum(_sizes(args)) == num_bytes
