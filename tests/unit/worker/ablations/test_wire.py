from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpdoctor.worker.ablations import _wire as wires
from dpdoctor.worker.ablations._wire import Wire
from dpdoctor.worker.base.agreement import Alone
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.modes import fsdp
from dpdoctor.worker.timing.exchanges import Exchanges
from dpdoctor.worker.timing.phases import PhaseClock


class Trained:
    """Stands for what has wrapped these modules."""

    def __init__(self, *modules: nn.Module) -> None:
        self.modules = list(modules)

    def is_compiled(self, module: nn.Module) -> bool:  # noqa: ARG002
        return False


@pytest.fixture
def exchanges(tmp_path: Path) -> Iterator[Exchanges]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    patches, seen = Patches(), Exchanges(PhaseClock(iter(range(10**9)).__next__), times=False)
    seen.watch(patches)
    yield seen
    patches.undo()
    dist.destroy_process_group()


def wire_of(exchanges: Exchanges, model: nn.Module) -> Wire:
    return Wire(exchanges, Trained(model), (), lambda: list(model.parameters()))


def exchange(*tensors: torch.Tensor) -> None:
    """Exchange all of them at one line."""
    for tensor in tensors:
        dist.all_reduce(tensor)


def issued(exchanges: Exchanges) -> tuple[int | None, int]:
    """End a step; return what was issued in it and what was dropped."""
    return exchanges.lap(), exchanges.last.dropped


def gradients_of(model: nn.Linear) -> list[torch.Tensor]:
    """Return the gradients after a backward pass."""
    model(torch.ones(1, model.in_features)).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_gradients_stay_and_flags_and_barriers_go_out(exchanges: Exchanges) -> None:
    model = nn.Linear(30, 10)
    found = wire_of(exchanges, model)

    def step() -> None:
        model(torch.ones(1, 30)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_reduce(torch.zeros(1))
        dist.all_reduce(torch.zeros(400, dtype=torch.long))
        dist.barrier()

    step()
    issued(exchanges)
    found.settle(Alone(), None)
    assert found.unfit() is None
    found.cut()
    step()
    assert issued(exchanges) == (3, 2)
    found.mend()
    step()
    assert issued(exchanges) == (5, 0)


def test_single_numbers_among_gradients_are_told_from_flags_or_the_ablation_refuses(exchanges: Exchanges) -> None:
    model = nn.Linear(30, 1)
    gradients = gradients_of(model)
    found = wire_of(exchanges, model)
    exchange(*gradients)
    issued(exchanges)
    found.settle(Alone(), None)
    found.cut()
    exchange(*gradients)
    assert issued(exchanges) == (0, 2)
    found.mend()


def test_one_line_for_numbers_of_both_kinds_is_refused(exchanges: Exchanges) -> None:
    model = nn.Linear(30, 1)
    gradients = gradients_of(model)
    found = wire_of(exchanges, model)
    exchange(*gradients, torch.zeros(1))
    issued(exchanges)
    found.settle(Alone(), None)
    assert f"all_reduce at {__file__}" in (found.unfit() or "")


def test_what_dpdoctor_exchanges_where_it_wraps_is_no_exchange_of_the_script(exchanges: Exchanges) -> None:
    model = nn.Sequential(nn.Linear(30, 1), nn.BatchNorm1d(1))
    found = wire_of(exchanges, model)
    fsdp._broadcast(model)  # a bias of one element, and num_batches_tracked, through one line
    issued(exchanges)
    found.settle(Alone(), None)
    assert found.unfit() == wires.NOTHING


def test_flags_through_the_line_of_gradients_go_out(exchanges: Exchanges) -> None:
    model = nn.Linear(30, 10)
    gradients = gradients_of(model)
    found = wire_of(exchanges, model)
    exchange(*gradients, torch.zeros(1))
    issued(exchanges)
    found.settle(Alone(), None)
    found.cut()
    exchange(*gradients, torch.zeros(1))
    assert issued(exchanges) == (1, 2)
    found.mend()


def test_ranks_that_only_exchange_a_loss_have_nothing_to_leave_out(exchanges: Exchanges) -> None:
    found = wire_of(exchanges, nn.Linear(30, 10))
    exchange(torch.zeros(1))
    issued(exchanges)
    found.settle(Alone(), None)
    assert found.unfit() == wires.NOTHING


class Other(Alone):
    """A second rank, which exchanges nothing anywhere."""

    def gather(self, numbers: list[int]) -> list[list[int]]:
        theirs = list(b"nowhere")
        is_length = len(numbers) == 1
        return [numbers, [len(theirs)] if is_length else theirs + [0] * (len(numbers) - len(theirs))]


def test_ranks_that_exchange_at_other_lines_would_wait_for_each_other(exchanges: Exchanges) -> None:
    found = wire_of(exchanges, nn.Linear(30, 10))
    exchange(torch.zeros(300))
    issued(exchanges)
    found.settle(Other(), None)
    assert "rank 1 exchanges gradients or parameters elsewhere" in (found.unfit() or "")


@pytest.mark.parametrize("reduces", [True, False])
def test_the_wrapper_reduces_nothing_and_keeps_the_scripts_own_setting(exchanges: Exchanges, reduces: bool) -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = DistributedDataParallel(inner)
    forward = DistributedDataParallel.forward
    found = wire_of(exchanges, model)
    exchanges.lap()
    found.settle(Alone(), None)
    assert found.unfit() is None
    found.cut()
    model.require_backward_grad_sync = reduces
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert issued(exchanges) == (0, 0)
    assert model.require_backward_grad_sync is reduces
    assert model.require_forward_param_sync is reduces
    found.mend()
    assert DistributedDataParallel.forward is forward
    model(torch.ones(2, 4)).sum().backward()
    assert (exchanges.lap() or 0) > 0 or not reduces


def test_work_that_is_left_out_is_done(exchanges: Exchanges) -> None:  # noqa: ARG001
    tensor = torch.ones(3)
    work = wires.instead("allreduce", dist.group.WORLD, ([tensor],))
    assert work.wait()
    assert work.is_completed()
    assert isinstance(work, dist.Work)
    assert [value.tolist() for value in work.get_future().value()] == [[1, 1, 1]]


def test_a_flag_that_is_exchanged_is_known_beside_gradients_that_are_sparse(exchanges: Exchanges) -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
    found = wire_of(exchanges, model)
    model(torch.tensor([1])).sum().backward()
    exchange(torch.zeros(1))
    issued(exchanges)
    found.settle(Alone(), None)
    assert found.unfit() == wires.NOTHING
