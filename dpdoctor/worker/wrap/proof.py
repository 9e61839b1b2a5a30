"""The evidence that conversion took effect, gathered once after warm-up."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from msgspec.structs import replace
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from dpdoctor.records import Check, Counters
from dpdoctor.worker.base.agreement import Agreement
from dpdoctor.worker.base.mode import Evidence, Mode
from dpdoctor.worker.facts.events import graph_breaks
from dpdoctor.worker.facts.host_device import DeviceCopies, HostSyncs
from dpdoctor.worker.wrap.counters import StepProfile

# Integer types to read a parameter's bits. Wider elements are read in halves: 64 bits times a weight would overflow,
# and a changed sign bit go unnoticed.
_INTEGERS = {1: torch.uint8, 2: torch.int16}
_WIDEST = torch.int32

_PIECE = 1 << 20
# Of 64 KiB, which malloc serves from between the script's blocks (see base/aside.py), and caches hold.
_PIECE_ON_CPU = 1 << 13


def checksum(parameters: Iterable[nn.Parameter]) -> int:
    """Return a sum over the bits of all parameters; equal values give equal sums.

    A sharded parameter is known by this rank's shard.
    """
    total = 0
    for parameter in parameters:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        total = (total * 31 + bits(local.detach())) % 2**62
    return total


def bits(tensor: torch.Tensor) -> int:
    """Return a position-weighted sum of a tensor's bits, in pieces: it must not need the memory of a second model."""
    integers = (
        tensor.resolve_conj().resolve_neg().contiguous().flatten().view(_INTEGERS.get(tensor.element_size(), _WIDEST))
    )
    total = 0
    for number, piece in enumerate(integers.split(_PIECE_ON_CPU if integers.is_cpu else _PIECE)):
        weights = torch.arange(1, piece.numel() + 1, device=piece.device)
        total += (number + 1) * int((piece.long() * weights).sum().item())
    return total % 2**62


class Proof:
    """Watches one step: operators, collectives, copies, waits for the device, gradients it makes, parameters it moves.

    `touched` has the ids of the parameters that got a gradient, and how often they did.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = checksum(parameters)
        self._gradient_bytes = 0
        self.touched: Counter[int] = Counter()
        # What became the gradient of each parameter; wrappers change its values, and leave it in its place.
        self._gradients: dict[int, weakref.ref[torch.Tensor]] = {}
        self._replaced = False
        self._hooks = [self._hook(parameter) for parameter in parameters]
        self._syncs = HostSyncs()
        self._copies = DeviceCopies(has_device=torch.cuda.is_available())
        self._profile = StepProfile()
        self._profile.start()
        self._copies.start()
        self._syncs.start()

    def _hook(self, parameter: nn.Parameter) -> RemovableHandle:
        """See each gradient that a parameter gets; it may be frozen just now, and torch hooks what is not."""
        is_trained = parameter.requires_grad
        hook: RemovableHandle = parameter.requires_grad_().register_post_accumulate_grad_hook(self._accumulated)
        parameter.requires_grad_(is_trained)
        return hook

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self._gradient_bytes += parameter.numel() * parameter.element_size()
        self.touched[id(parameter)] += 1
        if parameter.grad is not None:
            self._gradients[id(parameter)] = weakref.ref(parameter.grad)

    def stop(self) -> None:
        """End the step."""
        self._replaced = any(
            parameter.grad is not None and parameter.grad is not left()
            for parameter in self._parameters
            if (left := self._gradients.get(id(parameter))) is not None
        )
        self._syncs.stop()
        self._copies.stop()
        self._profile.stop()
        for hook in self._hooks:
            hook.remove()

    def counters(self, inputs: Sequence[torch.Tensor]) -> Counters:
        """Return what the step did; `inputs` are the tensors that entered its first forward.

        Raises:
            LostStepError: nobody knows.
        """
        return replace(
            self._profile.counters(inputs),
            syncs=self._syncs.found(),
            h2d_bytes=self._copies.num_bytes,
            graph_breaks=graph_breaks(),
        )

    def checks(
        self,
        mode: Mode,
        counters: Counters,
        forwards: dict[int, int],
        unwrapped: tuple[str, ...],
        agreement: Agreement,
        *,
        made_late: str,
    ) -> tuple[Check, ...]:
        """Return the mode's checks, alike on all ranks: a check that fails on one rank has failed."""
        after = checksum(self._parameters)
        evidence = Evidence(
            checksums=tuple(numbers[0] for numbers in agreement.gather([after])),
            moved=self._before != after,
            unwrapped=unwrapped,
            made_late=made_late,
            forwards=forwards,
            gradient_bytes=self._gradient_bytes,
            accumulated=self.touched,
            counters=counters,
            replaced=self._replaced,
        )
        return _agreed(mode.checks(evidence), agreement)


def _agreed(checks: list[Check], agreement: Agreement) -> tuple[Check, ...]:
    failed = agreement.gather([int(check.ok is False) for check in checks])
    agreed = []
    for i, check in enumerate(checks):
        ranks = [rank for rank, flags in enumerate(failed) if flags[i]]
        if ranks and check.ok is not False:
            agreed.append(Check(name=check.name, ok=False, text=f"failed on rank {ranks[0]}: {check.text} here"))
        else:
            agreed.append(check)
    return tuple(agreed)
