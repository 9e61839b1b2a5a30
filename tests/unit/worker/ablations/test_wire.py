from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpdoctor.worker.ablations import _wire as wires
from dpdoctor.worker.ablations._wire import Counted, Wire, fingerprint
from dpdoctor.worker.base.agreement import Alone
from dpdoctor.worker.modes import fsdp
from dpdoctor.worker.timing.exchanges import Exchanges, Issued


class Trained:
    """Stands for what has wrapped these modules."""

    def __init__(self, *modules: nn.Module) -> None:
        self.modules = list(modules)

    def is_compiled(self, module: nn.Module) -> bool:  # noqa: ARG002
        return False


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


def test_what_ranks_send_each_other_is_not_said_to_be_nothing(exchanges: Exchanges) -> None:
    found = wire_of(exchanges, nn.Linear(30, 10))
    exchanges.kinds["send"] += 1
    issued(exchanges)
    found.settle(Alone(), None)
    assert found.unfit() == wires.SENT


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


def counted(*, has_reducer: bool = False, first: Issued | None = None) -> Counted:
    """Return what has seen a first full window, by default with 5 collectives of payload and 1 flag in each step."""
    found = Counted(SimpleNamespace(has_reducer=has_reducer, least=100.0))
    assert found.full(first or full(), anew=True) is None
    return found


def full(steps: int = 10, payload: int = 50, kept: int = 10, unseen: int = 0) -> Issued:
    return Issued(steps=steps, collectives=payload + kept + unseen, payload=payload, kept=kept, kept_elements=1)


def without(steps: int = 10, issued: int = 10, kept: int = 10, kept_elements: int = 1, payload: int = 50) -> Issued:
    return Issued(
        steps=steps,
        collectives=issued,
        payload=payload,
        dropped=payload,
        kept=kept,
        kept_elements=kept_elements,
    )


def test_full_windows_of_other_lengths_are_alike() -> None:
    assert counted().full(full(steps=30, payload=150, kept=30), anew=False) is None


@pytest.mark.parametrize("payload", [0, 25, 100])
def test_a_full_window_that_exchanges_something_else_after_an_ablation_is_none(payload: int) -> None:
    assert "did not come off" in (counted().full(full(payload=payload), anew=False) or "")


def test_a_script_that_goes_on_otherwise_by_itself_is_taken_as_it_is() -> None:
    found = counted()
    assert found.full(full(payload=500), anew=True) is None
    assert found.full(full(payload=500), anew=False) is None
    assert found.full(full(), anew=False) is not None


def test_a_first_window_that_is_unlike_warm_up_is_none() -> None:
    found = Counted(SimpleNamespace(has_reducer=False, least=100.0), lambda: full(payload=100))
    assert (
        found.full(full(payload=40), anew=True)
        == "it exchanges 5.00 collectives in a step, the steps before it 11.0 collectives"
    )
    assert found.apart(without()) == wires.NO_FULL
    assert (found.full(full(payload=10), anew=False), found.has_full) == (None, True)
    assert found.full(full(payload=10), anew=False) is None


def test_a_first_window_that_is_unlike_warm_up_in_each_of_its_steps_is_one() -> None:
    # As where a script accumulates more micro-batches by the end of its warm-up, and each is reduced.
    before, after = (full(1, payload=payload, kept=0) for payload in (5, 8))
    warmup = lambda: stepwise(*4 * [before])  # noqa: E731
    settled, turning = (Counted(SimpleNamespace(has_reducer=False, least=100.0), warmup) for _ in range(2))
    assert settled.full(stepwise(*4 * [after]), anew=True) is None
    assert settled.has_full
    assert "the steps before it 5.00" in (turning.full(stepwise(*2 * [before], *2 * [after]), anew=True) or "")


def test_what_is_logged_now_and_then_is_no_other_window() -> None:
    assert counted().full(full(kept=11), anew=False) is None


def stepwise(*steps: Issued) -> Issued:
    """Return a window of these steps."""
    window = Issued()
    for step in steps:
        window.add(step)
    return window


def test_a_step_in_which_a_script_logs_makes_no_window_another_one() -> None:
    usual, logged = (full(1, payload=5, kept=kept) for kept in (0, 1))
    shown, hidden = stepwise(*3 * [usual], logged), stepwise(*4 * [usual])
    for first, later in ((shown, hidden), (hidden, shown)):
        assert counted(first=first).full(later, anew=False) is None
    dropped, both = (Issued(steps=1, collectives=kept, payload=5, dropped=5, kept=kept) for kept in (0, 1))
    for first in (shown, hidden):
        for later in (stepwise(*4 * [dropped]), stepwise(*3 * [dropped], both)):
            assert counted(first=first).apart(later) is None
    # What most steps do otherwise is something else.
    assert counted(first=hidden).apart(stepwise(dropped, *3 * [both])) is not None
    assert counted(first=hidden).full(stepwise(usual, *3 * [logged]), anew=False) is not None


def test_a_window_without_communication_issues_exactly_what_is_kept() -> None:
    assert counted().apart(without()) is None
    assert counted().apart(without(steps=20, issued=20, kept=20, payload=100)) is None


@pytest.mark.parametrize("issued", [0, 11, 20, 60])
def test_a_window_that_issues_anything_else_is_none(issued: int) -> None:
    assert "could not keep" in (counted().apart(without(issued=issued)) or "")


def test_what_the_reducer_issues_must_go_and_what_operators_issue_stays() -> None:
    first = full(payload=0, kept=0, unseen=20)
    silent, going_on = (Issued(steps=10, collectives=number) for number in (0, 20))
    reduced, by_operators = counted(has_reducer=True, first=first), counted(first=first)
    assert reduced.apart(silent) is None
    assert "could not keep" in (reduced.apart(going_on) or "")
    assert by_operators.apart(going_on) is None
    assert by_operators.apart(silent) is not None


def test_a_script_that_goes_by_what_ranks_exchange_is_found_out() -> None:
    assert "of its own" in (counted().apart(without(issued=0, kept=0)) or "")


def test_gradients_that_went_on_unknown_are_found_out() -> None:
    assert "went on" in (counted().apart(without(kept_elements=100)) or "")


def test_fewer_exchanges_must_be_fewer() -> None:
    assert counted().fewer(full(payload=20)) is None
    assert counted().fewer(full()) is not None
    assert counted().beside(full()) is None
    assert counted().beside(full(payload=20)) is not None


def test_what_is_not_counted_proves_nothing() -> None:
    unknown = Issued(steps=10, collectives=None)
    assert counted().apart(unknown) is not None
    assert counted().full(unknown, anew=True) is not None


def test_a_fingerprint_tells_parameters_apart_in_any_of_them() -> None:
    parameters = [nn.Parameter(torch.randn(300_000)), nn.Parameter(torch.randn(3))]
    before = fingerprint(parameters)
    assert fingerprint([nn.Parameter(p.detach().clone()) for p in parameters]) == before
    for parameter in parameters:
        with torch.no_grad():
            parameter.mul_(1.5)
        assert fingerprint(parameters) != before
        before = fingerprint(parameters)
