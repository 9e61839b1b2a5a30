from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpdoctor.worker.ablations._proofs import Counted, fingerprint
from dpdoctor.worker.timing.exchanges import Issued


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
