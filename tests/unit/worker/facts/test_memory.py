"""What the memory holds, against adding up the numbers of elements on paper."""

from __future__ import annotations

import mmap

import torch
from torch import nn

from dpdoctor.records import MemoryRecord
from dpdoctor.worker.facts.memory import memory, page_faults

FLOAT = 4


def look(modules: list[nn.Module], *optimizers: torch.optim.Optimizer) -> MemoryRecord:
    return memory(modules, optimizers, at_ns=5, window=3)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool = True) -> None:
    model(torch.ones(2, 10)).sum().backward()
    optimizer.step()
    if not keep:
        optimizer.zero_grad(set_to_none=True)


def test_each_kind_is_as_large_as_its_tensors() -> None:
    model = nn.Linear(10, 3)
    optimizer = torch.optim.Adam(model.parameters())
    before = look([model], optimizer)
    assert (before.parameters_bytes, before.gradients_bytes, before.optimizer_bytes) == (33 * FLOAT, 0, 0)
    trained(model, optimizer)
    found = look([model], optimizer)
    assert (found.at_ns, found.window) == (5, 3)
    assert (found.parameters_bytes, found.gradients_bytes) == (33 * FLOAT, 33 * FLOAT)
    # Two moments of each parameter, and the number of steps of each of the two tensors.
    assert found.optimizer_bytes == 2 * 33 * FLOAT + 2 * FLOAT


def test_gradients_that_were_set_to_none_are_gone() -> None:
    model = nn.Linear(10, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained(model, optimizer, keep=False)
    found = look([model], optimizer)
    assert (found.gradients_bytes, found.optimizer_bytes) == (0, 0)


def test_what_is_shared_counts_once_and_what_is_frozen_counts() -> None:
    model = nn.Sequential(
        nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False), nn.BatchNorm1d(10, affine=False)
    )
    model[1].weight = model[0].weight
    frozen = nn.Linear(10, 5, bias=False).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained(model, optimizer)
    found = look([model, frozen], optimizer)
    buffers = 2 * 10 * FLOAT + 8  # running mean and variance, and an int64 that counts batches
    assert found.parameters_bytes == (100 + 50) * FLOAT + buffers
    assert found.gradients_bytes == 100 * FLOAT


def test_views_of_one_storage_count_once() -> None:
    """As gradients that are views of DDP's buckets, or parameters of FSDP's flat one."""
    flat = torch.zeros(64)
    model = nn.ParameterList([nn.Parameter(flat[:32]), nn.Parameter(flat[32:])])
    assert look([model], torch.optim.SGD(model.parameters(), lr=0.1)).parameters_bytes == 64 * FLOAT


def test_the_cpu_has_no_allocator_to_ask() -> None:
    found = look([nn.Linear(2, 2)])
    assert found.allocated_bytes is found.reserved_bytes is found.peak_allocated_bytes is None
    assert found.resident_bytes is not None
    held = torch.ones(50_000_000)
    assert look([nn.Linear(2, 2)]).resident_bytes - found.resident_bytes > 0.8 * held.nbytes


def test_other_kinds_of_tensors_do_not_stop_it() -> None:
    embedding = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(list(embedding.parameters()))
    embedding(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert look([embedding], optimizer).parameters_bytes == 30 * FLOAT


def test_each_page_that_is_touched_for_the_first_time_is_a_page_fault() -> None:
    # Huge pages would make it one.
    with mmap.mmap(-1, 1000 * mmap.PAGESIZE) as memory_of_ours:
        memory_of_ours.madvise(mmap.MADV_NOHUGEPAGE)
        before = page_faults()
        for page in range(1000):
            memory_of_ours[page * mmap.PAGESIZE] = 1
        touched = page_faults()
        for page in range(1000):
            memory_of_ours[page * mmap.PAGESIZE] = 2
        assert 1000 <= touched - before < 1500
        assert page_faults() - touched < 500
