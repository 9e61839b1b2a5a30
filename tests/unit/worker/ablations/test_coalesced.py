"""coalesced: one call takes the place of many, and leaves the gradients that they would."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dpdoctor.records import Collective, Counters
from dpdoctor.worker.ablations.coalesced import IN_EACH, LEFT_OVER, NOTHING, Coalesced
from dpdoctor.worker.base.agreement import Alone
from dpdoctor.worker.timing.exchanges import Exchanges
from tests.unit.worker.ablations.test_wire import exchange, gradients_of, issued, wire_of

RANKS = 2


def by_hand(model: nn.Linear) -> list[torch.Tensor]:
    """Reduce and halve the gradients of a step one after the other, as for two ranks, and exchange a flag."""
    model.zero_grad()
    gradients = gradients_of(model)
    for gradient in gradients:
        exchange(gradient)
        gradient.div_(RANKS)
    dist.all_reduce(torch.ones(1))
    return gradients


def after(
    exchanges: Exchanges, model: nn.Linear, *steps: Callable[[], object], counters: Counters | None = None
) -> SimpleNamespace:
    """Return what the ablation looks at after these steps, in which lines were learnt."""
    wire = wire_of(exchanges, model)
    for step in steps:
        step()
        issued(exchanges)
    wire.settle(Alone(), counters)
    return SimpleNamespace(world_size=RANKS, wire=wire)


def test_gradients_are_reduced_in_one_call_and_are_the_same_after_it(exchanges: Exchanges) -> None:
    model, ablation = nn.Linear(30, 10), Coalesced()
    context = after(exchanges, model, *[lambda: by_hand(model)] * 2)
    assert ablation.unfit(context) is None
    before = [gradient.clone() for gradient in by_hand(model)]
    assert issued(exchanges) == (3, 0)
    ablation.begin(context)
    for _ in range(2):
        assert all(map(torch.equal, by_hand(model), before))
        assert (*issued(exchanges), exchanges.last.kept) == (2, 2, 1)
    assert ablation.end(context) is None
    by_hand(model)
    assert issued(exchanges) == (3, 0)


def test_types_of_numbers_and_groups_have_a_call_each(exchanges: Exchanges) -> None:
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30).double())
    other = dist.new_group([0])

    def step() -> None:
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, number)
        works = [
            dist.all_reduce(p.grad, group=other if p.dim() == 1 else None, async_op=True) for p in model.parameters()
        ]
        for work in works:
            work.wait()

    wire = wire_of(exchanges, model)
    step()
    issued(exchanges)
    wire.settle(Alone(), None)
    Coalesced().begin(SimpleNamespace(world_size=RANKS, wire=wire))
    step()
    assert issued(exchanges) == (4, 4)
    assert [parameter.grad.unique().tolist() for parameter in model.parameters()] == [[0], [1], [2], [3]]


def test_gradients_that_still_wait_at_the_end_of_a_window_make_it_none(exchanges: Exchanges) -> None:
    model, ablation = nn.Linear(30, 10), Coalesced()
    context = after(exchanges, model, lambda: by_hand(model))
    ablation.begin(context)
    exchange(gradients_of(model)[0])
    fault = ablation.end(context)
    assert fault is not None
    assert (fault.reason, fault.final) == (LEFT_OVER, True)


def of_parameters(model: nn.Linear) -> None:
    """Average parameters, as local SGD does."""
    exchange(*(parameter.data for parameter in model.parameters()))


def of_all(model: nn.Linear) -> None:
    """Average all gradients in one tensor."""
    exchange(torch.cat([gradient.flatten() for gradient in gradients_of(model)]))


def of_one(model: nn.Linear) -> None:
    """Average one gradient of two."""
    exchange(gradients_of(model)[0])


@pytest.mark.parametrize(
    "steps", [(of_parameters, of_parameters), (of_all, of_all), (of_one, of_one), (by_hand, of_one), (by_hand, of_all)]
)
def test_what_else_ranks_exchange_is_not_put_together(
    exchanges: Exchanges, steps: tuple[Callable[[nn.Linear], object], ...]
) -> None:
    model = nn.Linear(30, 10)
    context = after(exchanges, model, *(lambda step=step: step(model) for step in steps))
    assert Coalesced().unfit(context) == NOTHING


class Fewer(Alone):
    """A second rank, which exchanges at the same lines, one gradient less."""

    def gather(self, numbers: list[int]) -> list[list[int]]:
        return [numbers, [1] if numbers == [2] else numbers]


def test_ranks_that_reduce_another_number_of_gradients_would_wait_for_each_other(exchanges: Exchanges) -> None:
    model = nn.Linear(30, 10)
    wire = wire_of(exchanges, model)
    by_hand(model)
    issued(exchanges)
    wire.settle(Fewer(), None)
    assert wire.unfit() is None
    assert Coalesced().unfit(SimpleNamespace(world_size=RANKS, wire=wire)) == NOTHING


@pytest.mark.parametrize(("times", "reason"), [(1, None), (2, IN_EACH)])
def test_gradients_of_each_micro_batch_are_another_question(
    exchanges: Exchanges, times: int, reason: str | None
) -> None:
    model = nn.Linear(30, 10)
    reduced = {"all_reduce": Collective(count=2 * times, num_bytes=310 * 4 * times)}
    counters = Counters(operators=1, inputs=(), collectives=reduced)

    def step() -> None:
        for _ in range(times):
            exchange(*gradients_of(model))

    assert Coalesced().unfit(after(exchanges, model, step, step, counters=counters)) == reason
