"""Backward passes and copies to a device, as hooks see them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing import hooks
from dpdoctor.worker.timing.phases import PhaseClock
from tests.builders.handclock import HandClock
from tests.builders.models import SlowLinear, slow_sgd
from tests.builders.rig import Rig


class Called(Exception):  # noqa: N818 - a signal between the parts of a test
    """Raised in the middle of a backward pass."""


def test_a_backward_pass_that_raises_is_none_and_its_phase_ends(patches: Patches, clock: HandClock) -> None:
    phases = PhaseClock(clock)
    seen: list[Any] = []
    hooks.watch_backward(patches, phases, lambda: seen.append(1), before=lambda what, *_: seen.append(("before", what)))
    x = torch.ones(2, requires_grad=True)
    loss = (x * 2).sum()

    def planted(_: torch.Tensor) -> None:
        clock.tick(3)
        raise Called

    x.register_hook(planted)
    with pytest.raises(Called):
        loss.backward()
    assert seen == [("before", loss)]
    clock.tick(4)
    assert phases.lap().phases_ns() == (0, 0, 0, 3, 0, 4)


def test_gradients_that_are_asked_for_take_time_of_the_backward_and_end_no_pass(
    patches: Patches, clock: HandClock
) -> None:
    phases, ended = PhaseClock(clock), list[int]()
    hooks.watch_backward(patches, phases, lambda: ended.append(1))
    x = torch.ones(2, requires_grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda _: clock.tick(3))
    (gradient,) = torch.autograd.grad(y, x)
    assert gradient.tolist() == [2, 2]
    assert (phases.lap().phases_ns()[3], ended) == (3, [])


def test_a_backward_pass_from_several_tensors_is_seen(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer = slow_sgd(module, rig.clock)
    y = module(torch.randn(4, 3))
    torch.autograd.backward(tensors=[y.sum(), y.mean()])
    optimizer.step()
    assert rig.steps[0].counted.micro_batches == 1
    assert rig.steps[0].ticks["backward"] == 1000


@pytest.mark.parametrize(
    ("target", "options", "charged"),
    [
        (("cuda",), {}, True),
        (("cuda:0",), {"non_blocking": True}, True),
        ((torch.device("cuda", 0),), {}, True),
        ((0,), {}, True),
        ((), {"device": "cuda", "dtype": torch.float64}, True),
        ((torch.float64,), {}, False),
        (("cpu",), {}, False),
        ((torch.device("cpu"), torch.float64), {}, False),
        ((torch.ones(1, dtype=torch.float64),), {}, False),
        ((), {"dtype": torch.float64}, False),
    ],
)
def test_only_copies_to_a_device_are_charged(
    patches: Patches, clock: HandClock, target: tuple[Any, ...], options: dict[str, Any], charged: bool
) -> None:
    phases, seen = PhaseClock(clock), list[torch.Tensor]()
    hooks.watch_copies(patches, phases, seen.append, lambda *_: None)
    tensor = torch.ones(3)
    # Where there is no GPU torch refuses, as it would unwatched.
    with contextlib.suppress(RuntimeError, AssertionError):
        tensor.to(*target, **options)
    assert len(phases.lap().log) == 4 * charged
    assert [found is tensor for found in seen] == [True] * charged
    patches.undo()
    assert torch.ones(3).to(torch.float64).dtype == torch.float64
