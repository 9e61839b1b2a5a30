from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from dpdoctor.records import PHASES, POINT_TO_POINT, TENSOR_PARALLEL, Strategy
from dpdoctor.worker.ablations import _wire as wire
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.base.structure import tensors
from dpdoctor.worker.facts import strategies
from dpdoctor.worker.timing import exchanges as seen_by
from dpdoctor.worker.timing.exchanges import LOCAL_COPIES, Call, Exchanges
from dpdoctor.worker.timing.phases import BACKWARD, COMMUNICATION, OPTIMIZER, PhaseClock


class Ticks:
    """A clock that moves by one at each look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def phases() -> PhaseClock:
    return PhaseClock(Ticks())


@pytest.fixture
def exchanges(tmp_path: Path, phases: PhaseClock) -> Iterator[Exchanges]:
    """Give what sees a group of this process alone; afterwards nothing of it is left in torch."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    patches, seen = Patches(), Exchanges(phases)
    seen.watch(patches)
    yield seen
    patches.undo()
    dist.all_reduce(torch.ones(1))  # what was put back works
    dist.destroy_process_group()


def test_collectives_of_every_group_are_counted(exchanges: Exchanges) -> None:
    other = dist.new_group([0])
    exchanges.lap()
    dist.all_reduce(torch.ones(2))
    dist.broadcast(torch.ones(2), 0, group=other)
    dist.barrier()
    assert (exchanges.lap(), exchanges.last.called) == (3, 3)
    assert (exchanges.lap(), exchanges.last.called) == (0, 0)


@pytest.fixture
def of_two(phases: PhaseClock) -> Iterator[Exchanges]:
    """Give what sees the groups of one of two ranks, whose calls go nowhere."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    patches, seen = Patches(), Exchanges(phases)
    seen.watch(patches)
    yield seen
    patches.undo()
    dist.destroy_process_group()


def test_what_a_rank_does_in_a_group_of_its_own_is_no_exchange(
    of_two: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = {dist.group.WORLD: 0, dist.new_group([0]): 0}
    monkeypatch.setattr(seen_by, "_sequence_number", issued.__getitem__)  # the fake backend counts none
    of_two.is_known = of_two.is_on = True
    of_two.lap()
    for group in issued:
        dist.all_reduce(torch.ones(2), group=group)
        issued[group] += 1
    assert (of_two.lap(), of_two.last.called, of_two.kinds) == (1, 1, {"all_reduce": 1})


def test_without_arms_calls_are_counted_and_timed_and_no_more(exchanges: Exchanges, phases: PhaseClock) -> None:
    exchanges.looks = False
    exchanges.lap()
    dist.all_reduce(torch.ones(2))
    assert (exchanges.lap(), exchanges.last.called) == (1, 1)
    assert phases.lap().phases_ns()[COMMUNICATION] > 0
    assert not exchanges.sites
    exchanges.is_on = True  # in the step that is looked at closely
    dist.all_reduce(torch.ones(2))
    assert exchanges.kinds == {"all_reduce": 1}


def test_what_the_reducer_exchanges_is_counted_too(exchanges: Exchanges) -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))
    exchanges.lap()
    model(torch.ones(1, 2)).sum().backward()
    assert (exchanges.lap(), exchanges.last.called) == (1, 0)


def test_python_does_not_call_what_operators_and_other_threads_exchange(
    exchanges: Exchanges, phases: PhaseClock
) -> None:
    phases.belongs_here()
    exchanges.lap()
    assert dist.group.WORLD is not None
    functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).sum()
    thread = threading.Thread(target=dist.barrier)
    thread.start()
    thread.join()
    assert (exchanges.lap(), exchanges.last.called) == (2, 0)


def test_time_in_collectives_is_a_phase_of_its_own(exchanges: Exchanges, phases: PhaseClock) -> None:
    phases.lap()
    dist.all_reduce(torch.ones(2))
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    work.wait()
    notes = phases.lap()
    duration, told = notes.duration_ns, notes.phases_ns()
    assert len(told) == len(PHASES) + 1
    assert told[COMMUNICATION] > 0
    assert sum(told) == duration
    assert exchanges.is_known


def test_what_the_script_itself_exchanges_is_named_with_its_line(exchanges: Exchanges, phases: PhaseClock) -> None:
    exchanges.is_on = True
    gradients = [torch.ones(100), torch.ones(50)]
    for gradient in gradients:
        dist.all_reduce(gradient)
    dist.all_reduce(torch.ones(1))  # a loss that is logged
    phases.push(BACKWARD)
    for gradient in gradients:
        dist.all_reduce(gradient, async_op=True).wait()
    first, second = strategies.found([], [], exchanges, trained_bytes=600)
    assert (first.name, first.facts) == (
        "hand-written",
        "2 calls of all_reduce in a step, 600 B, outside of the backward pass",
    )
    assert second.facts == "2 calls of all_reduce in a step, 600 B, while the backward pass goes on"
    assert first.line.startswith(f"{__file__}:")


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_what_torch_wraps_has_the_scripts_line_too(exchanges: Exchanges) -> None:
    exchanges.is_on = True
    whole, part = torch.ones(8), torch.ones(8)
    for call in (
        lambda: dist.all_gather_into_tensor(whole, part),
        lambda: dist.reduce_scatter_tensor(part, whole),
        lambda: dist.all_reduce_coalesced([part, whole]),
    ):
        call()
    assert [call.operation for call in exchanges.calls] == ["all_gather", "reduce_scatter", "all_reduce"]
    assert {call.line.partition(":")[0] for call in exchanges.calls} == {__file__}
    assert len(exchanges.sites) == 3


def test_what_an_optimizer_exchanges_once_one_that_it_holds_has_updated_is_no_gradient(
    exchanges: Exchanges, phases: PhaseClock
) -> None:
    exchanges.is_on = True
    phases.pop(phases.push(BACKWARD))
    sharded = phases.push(OPTIMIZER)
    dist.all_reduce(torch.ones(2))
    phases.pop(phases.push(OPTIMIZER))
    dist.broadcast(torch.ones(2), 0)
    phases.pop(sharded)
    assert [call.before_update for call in exchanges.calls] == [True, False]


def test_wrappers_are_named_with_their_facts(exchanges: Exchanges) -> None:
    model = nn.Sequential(DistributedDataParallel(nn.Linear(2, 2), find_unused_parameters=True))
    (found,) = strategies.found([model], [], exchanges, trained_bytes=24)
    assert found == Strategy(
        name="ddp", facts="1 bucket of 24 B at most, find_unused_parameters", buffers=0, trainable_bytes=24
    )


@pytest.mark.parametrize(("broadcasts", "buffers"), [(True, 3), (False, 0)])
def test_buffers_that_a_wrapper_broadcasts_are_counted(exchanges: Exchanges, broadcasts: bool, buffers: int) -> None:
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    option = {"forward_sync_buffers" if newer else "broadcast_buffers": broadcasts}
    model = DistributedDataParallel(nn.BatchNorm1d(2), **option)
    (found,) = strategies.found([model], [], exchanges, trained_bytes=16)
    assert found.buffers == buffers


@pytest.mark.parametrize(
    ("per_step", "names"), [([0, 0, 0, 0], ["none"]), ([0, 0, 0, 5], ["now and then"]), ([1, 1, 1, 1], [])]
)
def test_what_is_exchanged_in_no_step_or_in_few_is_said(
    phases: PhaseClock, per_step: list[int], names: list[str]
) -> None:
    seen = Exchanges(phases)
    for collectives in per_step:
        seen.counted(collectives)
    assert [found.name for found in strategies.of_run((), seen)] == names


@pytest.mark.parametrize(
    ("looked_at", "told"), [({"all_reduce": 4}, "calls are those of a step in which it is"), ({}, "was not seen")]
)
def test_calls_that_were_not_looked_at_are_not_said_to_be_told(
    phases: PhaseClock, looked_at: dict[str, int], told: str
) -> None:
    seen = Exchanges(phases)
    seen.kinds.update(looked_at)
    for collectives in (0, 0, 0, 4):
        seen.counted(collectives)
    (found,) = strategies.of_run((), seen)
    assert found.facts.endswith(told)


@pytest.mark.parametrize(
    ("per_step", "is_told"),
    [([0, 0, 5, 0, 0, 5, 0, 0, 5], False), ([0, 0, 0, 0, 5, 0, 0, 0, 0], True), ([1, 1, 1, 1, 1, 1, 1, 1, 1], False)],
)
def test_where_no_rhythm_of_rare_exchanges_was_seen_windows_need_not_hold_it(
    phases: PhaseClock, per_step: list[int], is_told: bool
) -> None:
    seen = Exchanges(phases)
    for collectives in per_step:
        seen.counted(collectives)
    assert (strategies.doubt(strategies.of_run((), seen), seen.period()) is not None) == is_told


def test_steps_from_which_an_ablation_takes_the_exchange_do_not_count(phases: PhaseClock) -> None:
    seen = Exchanges(phases)
    for instead, collectives in ((None, 8), (wire.instead, 0), (wire.instead, 0), (None, 8)):
        seen.instead = instead
        seen.counted(collectives)
    assert strategies.of_run((), seen) == ()


@pytest.mark.parametrize(("num_bytes", "names"), [(4, []), (8, []), (6, [POINT_TO_POINT])])
def test_ranks_that_send_all_that_they_train_are_no_stages(
    phases: PhaseClock, num_bytes: int, names: list[str]
) -> None:
    seen = Exchanges(phases)
    seen.kinds.update(send=1, recv=1)
    seen.calls = [Call(f"gossip.py:{line}", kind, num_bytes, False) for line, kind in enumerate(("send", "recv"))]
    found = strategies.found([], [], seen, trained_bytes=4)
    assert [way.name for way in found] == ["hand-written", "hand-written", *names]


def test_stages_that_send_each_other_tensors_are_named(phases: PhaseClock) -> None:
    seen = Exchanges(phases)
    seen.kinds.update(send=2, recv=2)
    (found,) = strategies.found([], [], seen, trained_bytes=4)
    assert found == Strategy(
        name=POINT_TO_POINT, facts="4 sends and receives in a step, as of pipeline parallel stages"
    )


@pytest.mark.parametrize(
    ("per_step", "period"),
    [
        ([7, 7, 7, 1, 1, 1, 1, 1, 1], 1),
        ([9, 9, 9, *[0, 0, 0, 5] * 3], 4),
        ([1, 1, 1, *[1] * 9, 2, *[1] * 9, 2, *[1] * 9, 2], 10),
        ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 1),
        ([1, 1], 1),
    ],
)
def test_the_rhythm_of_what_is_exchanged_is_known_once_it_was_seen_twice(
    phases: PhaseClock, per_step: list[int], period: int
) -> None:
    seen = Exchanges(phases)
    for collectives in per_step:
        seen.counted(collectives)
    assert seen.period() == period


def test_what_autograds_own_threads_exchange_in_a_backward_pass_is_the_scripts(
    exchanges: Exchanges, phases: PhaseClock
) -> None:
    """On a GPU hooks of gradients run in such a thread."""
    exchanges.is_on = True
    phases.belongs_here()

    def exchange() -> None:
        dist.all_reduce(torch.ones(100))

    def in_a_thread() -> None:
        thread = threading.Thread(target=exchange)
        thread.start()
        thread.join()

    in_a_thread()  # beside the training
    assert not exchanges.calls
    depth = phases.push(BACKWARD)
    in_a_thread()
    phases.pop(depth)
    in_a_thread()
    assert [(call.operation, call.in_backward, call.before_update) for call in exchanges.calls] == [
        ("all_reduce", True, True)
    ]
    assert exchanges.kinds == {"all_reduce": 1}


def test_parameters_that_a_mesh_shards_beside_fully_shard_are_tensor_parallel(exchanges: Exchanges) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    split, sharded, both = (nn.Linear(4, 4) for _ in range(3))
    for module in (split, both):
        parallelize_module(module, mesh["tensor"], ColwiseParallel())
    for module in (sharded, both):
        fully_shard(module, mesh=mesh["data"])

    def names(module: nn.Module) -> list[str]:
        return [way.name for way in strategies.found([module], [], exchanges, 1)]

    assert (names(split), names(sharded), names(both)) == (
        [TENSOR_PARALLEL],
        ["fsdp2"],
        ["fsdp2", TENSOR_PARALLEL],
    )


RANK, SIZE = 1, 3


class Group:
    """Three ranks, of which this is the second."""

    def rank(self) -> int:
        return RANK

    def size(self) -> int:
        return SIZE


def mine(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def empty(*shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan)


@pytest.mark.parametrize("method", ["allreduce", "allreduce_coalesced", "broadcast", "reduce"])
def test_a_sum_is_left_as_this_ranks_part(method: str) -> None:
    given = [mine(2), mine(3)]
    LOCAL_COPIES[method](Group(), given)
    assert [tensor.tolist() for tensor in given] == [[1, 2], [1, 2, 3]]


def test_gathered_lists_hold_this_ranks_part_for_every_rank() -> None:
    places = [empty(2, 2) for _ in range(SIZE)]
    LOCAL_COPIES["allgather"](Group(), [places], [mine(2, 2)])
    assert all(torch.equal(place, mine(2, 2)) for place in places)
    of_ranks = [[empty(2), empty(3)] for _ in range(SIZE)]
    LOCAL_COPIES["allgather_coalesced"](Group(), of_ranks, [mine(2), mine(3)])
    assert all(torch.equal(place, mine(place.numel())) for place in tensors(of_ranks))


def test_parts_of_another_size_are_no_garbage() -> None:
    places = [empty(2), empty(3), empty(3)]
    LOCAL_COPIES["allgather"](Group(), [places], [mine(3)])
    assert [place.tolist() for place in places] == [[0, 0], [1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("method", ["_allgather_base", "all_gather_single"])
@pytest.mark.parametrize("shape", [(SIZE * 4,), (SIZE, 4), (SIZE * 2, 2)])
def test_one_tensor_is_gathered_also_in_place(method: str, shape: tuple[int, ...]) -> None:
    apart = empty(*shape)
    LOCAL_COPIES[method](Group(), apart, mine(4))
    in_place = empty(*shape)
    part = in_place.view(SIZE, -1)[RANK]
    part.copy_(mine(4))
    LOCAL_COPIES[method](Group(), in_place, part)
    for found in (apart, in_place):
        assert found.view(SIZE, -1).tolist() == [[1, 2, 3, 4]] * SIZE


@pytest.mark.parametrize("method", ["_reduce_scatter_base", "reduce_scatter_single"])
def test_of_what_is_scattered_a_rank_takes_its_own_part(method: str) -> None:
    output = empty(2, 2)
    LOCAL_COPIES[method](Group(), output, mine(SIZE * 2, 2))
    assert output.tolist() == [[5, 6], [7, 8]]
    listed = empty(2)
    LOCAL_COPIES["reduce_scatter"](Group(), [listed], [[mine(2), 10 * mine(2), 100 * mine(2)]])
    assert listed.tolist() == [10, 20]


def test_several_at_once_are_as_one_after_the_other() -> None:
    gathered, scattered = [empty(SIZE * 2), empty(SIZE)], [empty(1), empty(2)]
    LOCAL_COPIES["all_gather_single_coalesced"](Group(), gathered, [mine(2), mine(1)])
    LOCAL_COPIES["reduce_scatter_single_coalesced"](Group(), scattered, [mine(SIZE), mine(SIZE * 2)])
    assert [found.tolist() for found in (*gathered, *scattered)] == [[1, 2] * SIZE, [1] * SIZE, [2], [3, 4]]
