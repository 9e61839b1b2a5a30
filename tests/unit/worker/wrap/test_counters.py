from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dpdoctor.records import Collective, Counters, InputTensor
from dpdoctor.worker.base.profiler import Profile
from dpdoctor.worker.wrap.counters import (
    ByObserver,
    ByProfiler,
    LostStepError,
    Operator,
    Recording,
    StepProfile,
    _sizes,
    step_recording,
)


@pytest.fixture(params=[ByProfiler, ByObserver])
def profile(request: pytest.FixtureRequest) -> StepProfile:
    """Give a profile by each way to record: where there is a GPU, it is the observer."""
    return StepProfile(request.param())


def profiled(num_layers: int, inputs: Sequence[torch.Tensor] = (), by: type[Recording] = ByProfiler) -> Counters:
    """Return what one training step of so many linear layers does."""
    module = nn.Sequential(*(nn.Linear(3, 3) for _ in range(num_layers)))
    x = torch.randn(4, 3)
    module(x).mean().backward()
    profile = StepProfile(by())
    profile.start()
    module(x).mean().backward()
    profile.stop()
    return profile.counters(inputs)


def test_the_same_step_has_the_same_operators_every_time() -> None:
    few, again, many = profiled(1), profiled(1), profiled(3)
    assert few == again
    assert many.operators > few.operators > 0


def test_an_observer_sees_the_operators_that_a_profiler_sees() -> None:
    by_profiler, by_observer = profiled(3), profiled(3, by=ByObserver)
    assert replace(by_profiler, allocations=0) == replace(by_observer, allocations=0)


def test_names_of_the_scripts_own_do_not_matter() -> None:
    recording = ByObserver()
    recording.start()
    with torch.profiler.record_function('a "name",\n  "id": 7 \\ of its own'):
        torch.ones(2).masked_fill(torch.ones(2) > 0, -math.inf)
    recording.stop()
    operators = [operator.name for operator in recording.recorded().operators if not operator.is_span]
    assert operators.count("aten::masked_fill") == 1


def test_a_script_with_an_observer_of_its_own_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    theirs = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "theirs.json"))
    try:
        assert isinstance(step_recording(), ByProfiler)
    finally:
        theirs.unregister_callback()
    ours = step_recording()
    assert isinstance(ours, ByObserver)
    ours.start()
    ours.stop()


def test_each_block_of_memory_that_is_taken_counts() -> None:
    profile = StepProfile(ByProfiler())
    profile.start()
    kept = [torch.empty(1000) for _ in range(3)]
    kept.clear()
    torch.empty(7)
    profile.stop()
    torch.empty(7)
    assert profile.counters([]).allocations == 4


@pytest.mark.parametrize("left", [None, b'{"traceEvents": ['])
def test_a_step_whose_recording_cannot_be_read_again_is_told_with_what_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: bytes | None
) -> None:
    def full(_: Profile, path: str) -> None:
        if left is not None:
            Path(path).write_bytes(left)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Profile, "export_chrome_trace", full)
    profile = StepProfile(ByProfiler())
    profile.start()
    profile.stop()
    with pytest.raises(LostStepError, match=f"could not be written to {tmp_path}, where .*B are free, and read again"):
        profile.counters([])


def test_a_step_is_lost_too_where_no_disk_has_room_for_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = StepProfile(ByProfiler())
    profile.start()
    profile.stop()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(LostStepError, match=r"to a directory for temporary files and read .*No usable temporary"):
        profile.counters([])


class Ones(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3)


def test_what_arrives_from_loader_processes_is_no_part_of_the_step(profile: StepProfile) -> None:
    batches = iter(DataLoader(Ones(), batch_size=2, num_workers=1))
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
def test_bytes_of_collectives_are_those_of_their_tensors(dtype: torch.dtype, profile: StepProfile) -> None:
    tensors = [torch.ones(5, dtype=dtype), torch.ones(2, 3, dtype=dtype), torch.ones((), dtype=dtype)]
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
def test_the_collectives_of_sharding_count_once_and_with_their_whole_tensor(profile: StepProfile) -> None:
    part, whole = torch.ones(6), torch.ones(6)
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
    ("dims", "types", "num_bytes"),
    [
        ([], [], 0),
        ([[2, 3], []], ["float", "c10::BFloat16"], 26),
        ([[2, 3], []], ["float", "Scalar"], 24),
        ([[2], [[2, 3], [4]]], ["bool", "TensorList"], 2),
        ([[7]], ["short int"], 14),
    ],
)
def test_sizes_of_inputs(dims: list[object], types: list[str], num_bytes: int) -> None:
    assert sum(_sizes(Operator(name="", is_span=False, dims=dims, types=types))) == num_bytes
