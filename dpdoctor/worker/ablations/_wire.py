"""The one switch that keeps ranks from exchanging gradients and parameters, held against what they exchange.

DistributedDataParallel's own forward finds that nothing is to be reduced; what Python asks of a process group is copied
within the rank instead. Only payload is left out: flags, counts and barriers stay, or the control flow of ranks would
part.

A switch may silently do nothing, or never come off: then a gain is the noise's, or full windows are no such windows any
more. So windows are counted in every run.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dpdoctor import units
from dpdoctor.records import REDUCED_TWICE, Counters
from dpdoctor.worker.base import structure
from dpdoctor.worker.base.agreement import Agreement, gather_texts
from dpdoctor.worker.timing.exchanges import LOCAL_COPIES, REDUCTIONS, Exchanges, Issued, Site
from dpdoctor.worker.wrap.proof import bits
from dpdoctor.worker.wrap.wrapping import Wrapping

# What must be alike in gradients that one call reduces: method, group, type of number, device.
_Key: TypeAlias = tuple[str, dist.ProcessGroup, torch.dtype, torch.device]

NOT_COUNTED = (
    "torch does not count the collectives of this backend, so that nothing would show what the ablation leaves out"
)
NOTHING = "no step so far exchanges gradients or parameters"
SENT = "ranks send each other tensors, and nothing can take the place of what a rank receives"
UNALIKE = "rank {} exchanges gradients or parameters elsewhere than rank 0 does: {}"
AMBIGUOUS = "{} exchanges parameters of one element, and other numbers, too: which of them to leave out is not known"
COMPILED = "DistributedDataParallel is compiled as a whole: whether it reduces is fixed in what was compiled"
UNSEEN = "{} in a step are exchanged inside operators of torch, as by tensor parallelism: nothing can take their place"
# An exchange in a step from this part of what is trained on, counted in elements, is one of gradients or parameters.
LEAST_SHARE = 0.01
# Windows may differ by this share of what they exchange in a step.
WITHIN = 0.1
# Or by all of it in single steps, in which a script logs or evaluates: what so many of the steps exchange is usual.
USUAL = 0.75
# Enough of a parameter to see that it is another one: where ranks part, they part in all of it.
MOST_LOOKED_AT = 1 << 12

NOT_KNOWN = "torch does not count the collectives of this backend any more"
OTHERWISE = (
    "after it, full windows exchange {} in a step instead of {}: what it switched did not come off, or the script went "
    "on otherwise"
)
TURNING = "it exchanges {} in a step, the steps before it {}"
NO_FULL = "no full window came before it"
PARTED = "in its windows the script makes {} of its own in a step instead of {}: it goes by what ranks exchange"
WENT_ON = "it could not keep the ranks from exchanging: {} in a step were still issued, {} were to be left"
LARGE = "an exchange of {} numbers went on in its windows: gradients or parameters that it does not know"
APART = (
    "parameters were equal on all ranks, and are not any more after a full window: the script keeps a state, such as a "
    "momentum of its own, that could not be put back"
)
UNLIKE = "its steps exchange {} each, those of full windows {}"


class Wire:
    """Takes what the ranks exchange away, and gives it back, between two steps; all ranks do so at once.

    `wrappers` are those that dpdoctor itself made, `trained` gives the parameters.

    Which lines exchange gradients and parameters is learnt until `settle`, and the same on all ranks then.

    Attributes:
        least: elements in one exchange of gradients or parameters.
        num_by_gradient: how many calls of the script reduce a gradient each, alike in every step and on all ranks.
        reduces_each_micro_batch: whether the step that was looked at closely reduced its gradients more than once.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        wrapping: Wrapping,
        wrappers: Sequence[nn.Module],
        trained: Callable[[], Sequence[torch.Tensor]],
    ) -> None:
        self.exchanges = exchanges
        self._wrapping = wrapping
        self._wrappers = wrappers
        self._trained = trained
        self._reason: str | None = None
        self._forward: Callable[..., Any] | None = None
        self._after: Callable[[], None] | None = None
        self._together = _Together(0)
        self.least = 1.0
        self.num_by_gradient = 0
        self.reduces_each_micro_batch = False
        exchanges.is_trained = self._is_trained
        exchanges.is_gradient = self._is_gradient

    @property
    def has_reducer(self) -> bool:
        """Return whether DistributedDataParallel reduces by itself, which no call of Python's shows."""
        return any(isinstance(part, DistributedDataParallel) for part in self._parts())

    def _parts(self) -> list[nn.Module]:
        return [part for module in (*self._wrappers, *self._wrapping.modules) for part in module.modules()]

    def _is_trained(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a parameter that is trained, or the gradient of one."""
        return _shares(tensor, self._trained()) or self._is_gradient(tensor)

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the gradient of a parameter that is trained."""
        return _shares(
            tensor, (p.grad for p in self._trained() if p.grad is not None and p.grad.numel() == tensor.numel())
        )

    def settle(self, agreement: Agreement, counters: Counters | None) -> None:
        """Find out what ranks exchange, and whether all do so at the same lines; `counters` are of the last step."""
        trained, sharded = self._trained(), structure.sharded_elements(self._parts())
        elements = [sharded.get(id(tensor), tensor.numel()) for tensor in trained]
        self.least = max(1.0, LEAST_SHARE * sum(elements))
        self.exchanges.settle(self.least)
        mine = ", ".join(sorted(site.words for site in self._payload())) or "nowhere"
        texts = gather_texts(agreement, mine)
        self._reason = next((UNALIKE.format(rank, text) for rank, text in enumerate(texts) if text != texts[0]), None)
        numbers = agreement.gather([sum(site.of_gradients for site in self._by_gradient())])
        self.num_by_gradient = numbers[0][0] if numbers.count(numbers[0]) == len(numbers) else 0
        if counters is not None:
            sizes = (number * tensor.element_size() for number, tensor in zip(elements, trained, strict=True))
            self._weigh(counters, sum(sizes))

    def _weigh(self, counters: Counters, trained_bytes: int) -> None:
        reduced = sum(of.num_bytes for kind, of in counters.collectives.items() if "reduce" in kind)
        self.reduces_each_micro_batch = reduced >= REDUCED_TWICE * max(1, trained_bytes)
        unseen = sum(of.num_bytes for of in counters.collectives.values()) - self.exchanges.last.num_bytes
        if not self.has_reducer and unseen > LEAST_SHARE * trained_bytes:
            self._reason = self._reason or UNSEEN.format(units.size(unseen))

    def _payload(self) -> list[Site]:
        return [site for site in self.exchanges.sites.values() if site.is_payload]

    def unfit(self) -> str | None:
        """Return why it cannot be switched with this script; None: it can."""
        if not self.exchanges.is_known:
            return NOT_COUNTED
        if self._reason is not None:
            return self._reason
        wrappers = [part for part in self._parts() if isinstance(part, DistributedDataParallel)]
        if any(map(self._wrapping.is_compiled, wrappers)):
            return COMPILED
        payload = self._payload()
        unclear = next((site for site in payload if site.is_ambiguous), None)
        if unclear is not None:
            return AMBIGUOUS.format(unclear.words)
        if payload or wrappers:
            return None
        return SENT if self.exchanges.kinds["send"] else NOTHING

    def _by_gradient(self) -> list[Site]:
        return [site for site in self._payload() if site.of_gradients and site.operation == "all_reduce"]

    @property
    def is_waiting(self) -> bool:
        """Return whether gradients were collected that are not reduced yet."""
        return bool(self._together.waiting)

    def cut(self) -> None:
        """From here on ranks exchange nothing but flags and the like."""
        self._switch(self._payload())
        self._let_go()
        self._after = self._let_go

    def hold(self) -> None:
        """From the next forward on gradients are not reduced, but added to what this rank has."""
        self._switch([site for site in self._payload() if site.operation in REDUCTIONS])
        self._set_sharded(reduces=False)
        self._after = functools.partial(self._set_sharded, reduces=True)

    def collect(self) -> None:
        """From here on gradients that are each reduced by a call of the script are, with one call for all of a step."""
        self._together = _Together(self.num_by_gradient)
        self.exchanges.instead, self.exchanges.left_out = self._together, frozenset(self._by_gradient())

    def mend(self) -> None:
        """Have ranks exchange everything again; nothing happens where they do."""
        if self._after is not None:
            self._after()
            self._after = None
        self.exchanges.instead, self.exchanges.left_out = None, frozenset()
        if self._forward is not None:
            DistributedDataParallel.forward = self._forward  # type: ignore[method-assign]
            self._forward = None

    def _switch(self, sites: Iterable[Site]) -> None:
        self.exchanges.instead, self.exchanges.left_out = instead, frozenset(sites)
        if self._forward is None:
            self._forward = DistributedDataParallel.forward
            DistributedDataParallel.forward = _reducing_nothing(self._forward)  # type: ignore[method-assign]

    def _let_go(self) -> None:
        """Let FSDP2 gather anew what an evaluation left gathered: it was gathered the other way."""
        for part in self._parts():
            if isinstance(part, FSDPModule):
                part.reshard()

    def _set_sharded(self, *, reduces: bool) -> None:
        for part in self._parts():
            if isinstance(part, FSDPModule):
                part.set_requires_gradient_sync(reduces, recurse=False)


def _shares(tensor: torch.Tensor, held: Iterable[torch.Tensor]) -> bool:
    """Return whether a tensor begins where one of these plain ones does in memory."""
    return structure.is_dense(tensor) and any(
        type(one) in {torch.Tensor, nn.Parameter} and structure.is_dense(one) and one.data_ptr() == tensor.data_ptr()
        for one in held
    )


def _reducing_nothing(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return DistributedDataParallel's forward as under no_sync, which leaves the script's own setting as it was.

    Scripts set it themselves (nanoGPT) or enter no_sync (Accelerate): what is set outside of the forward is theirs.
    """

    @functools.wraps(forward)
    def call(wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        reduces = wrapper.require_backward_grad_sync
        wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = False
        try:
            return forward(wrapper, *args, **kwargs)
        finally:
            wrapper.require_backward_grad_sync = reduces
            # As the forward itself would have left it.
            wrapper.require_forward_param_sync = torch.is_grad_enabled() and reduces

    return call


def instead(method: str, group: dist.ProcessGroup, args: tuple[Any, ...]) -> dist.Work:
    """Do within this rank what a method of a process group does with others, and return work that is done."""
    with torch.no_grad():
        LOCAL_COPIES[method](group, *args[:2])
    return done(list(structure.tensors(args[0])))


def done(tensors: list[torch.Tensor]) -> dist.Work:
    """Return work on these tensors that is done."""
    future: torch.futures.Future[Any] = torch.futures.Future(devices=[*{t.device for t in tensors if t.is_cuda}])
    future.set_result(tensors)
    return _create_work_from_future(future)


class _Together:
    """Takes the place of calls that reduce a gradient each: what `number` of them are about is reduced with the last.

    Attributes:
        waiting: calls whose gradients wait for others of their step.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.waiting: list[tuple[_Key, list[torch.Tensor], tuple[Any, ...]]] = []

    def __call__(self, method: str, group: dist.ProcessGroup, args: tuple[Any, ...]) -> dist.Work:
        """Return work that is done, as that of a call that was made would be."""
        tensors = list(structure.tensors(args[0]))
        self.waiting.append(((method, group, tensors[0].dtype, tensors[0].device), tensors, args[1:]))
        if len(self.waiting) == self._number:
            self._reduce()
        return done(tensors)

    @torch.no_grad()
    def _reduce(self) -> None:
        """Reduce what was collected: a call for each group, and for each type of number."""
        calls, self.waiting = self.waiting, []
        for key in dict.fromkeys(key for key, _, _ in calls):
            alike = [(tensors, options) for other, tensors, options in calls if other == key]
            tensors = [tensor for of_call, _ in alike for tensor in of_call]
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            method, group, *_ = key
            getattr(group, method)([flat], *alike[0][1]).wait()
            for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))


class Counted:
    """Holds what full windows exchange against what they did at first, and an ablation's windows against them.

    `wire` is what exchanges gradients and parameters, `warmup` what the last steps before windows did.
    """

    def __init__(self, wire: Wire, warmup: Callable[[], Issued] = Issued) -> None:
        self._wire, self._warmup = wire, warmup
        self._full: Issued | None = None
        self._is_turning = False

    @property
    def has_full(self) -> bool:
        """Return whether there is a full window to hold others against."""
        return self._full is not None

    def full(self, window: Issued, *, anew: bool) -> str | None:
        """Return why a full window is none; None: it exchanges what the first one did.

        `anew`: no ablation was on since the last one, so that it is the script that goes on otherwise.
        """
        if not window.steps:
            return None
        if window.collectives is None:
            return NOT_KNOWN
        if self._full is None and not self._is_turning:
            warmup = self._warmup()
            is_other = bool(warmup.steps) and not _COLLECTIVES.is_alike(warmup, window)
            self._is_turning = is_other and not _COLLECTIVES.is_even(window)
            if self._is_turning:  # from the midst of this window on, it may be
                return TURNING.format(*(_number(_COLLECTIVES.per_step(one)) for one in (window, warmup)))
        if self._full is None or anew:
            self._full = window
            return None
        return self._unlike(window, OTHERWISE)

    def beside(self, window: Issued) -> str | None:
        """Return why a window of an ablation that leaves the ranks' exchanges alone did not; None: it did."""
        if self._full is None or not window.steps:
            return None
        return self._unlike(window, UNLIKE)

    def apart(self, window: Issued) -> str | None:
        """Return why a window without exchanges was none; None: it issued exactly what was to be left."""
        if self._full is None:
            return NO_FULL
        if self._full.collectives is None or window.collectives is None:
            return NOT_KNOWN
        kept = _KEPT.per_step(window)
        if not _KEPT.is_alike(self._full, window):
            return PARTED.format(_calls(kept), _calls(_KEPT.per_step(self._full)))
        # What C++ issues by itself, such as a norm over sharded gradients, goes on; the reducer does not.
        before = Issued() if self._wire.has_reducer else self._full
        if not _NOT_PYTHONS.is_alike(before, window):
            left = units.digits(kept + _NOT_PYTHONS.per_step(before))
            return WENT_ON.format(_number(_COLLECTIVES.per_step(window)), left)
        if window.kept_elements >= self._wire.least:
            return LARGE.format(units.whole(window.kept_elements))
        return None

    def fewer(self, window: Issued) -> str | None:
        """Return why a window in which gradients are exchanged less often exchanged no less; None: it did."""
        if self._full is None:
            return NO_FULL
        if self._full.collectives is None or window.collectives is None:
            return NOT_KNOWN
        before, now = _COLLECTIVES.per_step(self._full), _COLLECTIVES.per_step(window)
        is_less = now < (1 - WITHIN) * before
        return None if is_less else WENT_ON.format(_number(now), f"fewer than {units.digits(before)}")

    def _unlike(self, window: Issued, words: str) -> str | None:
        """Return in these words that a window has not the collectives of the full one; None: it has."""
        assert self._full is not None
        if _COLLECTIVES.is_alike(self._full, window):
            return None
        return words.format(*(_number(_COLLECTIVES.per_step(one)) for one in (window, self._full)))


def fingerprint(parameters: Iterable[torch.Tensor]) -> int:
    """Return a sum over the bits of evenly spaced elements of each parameter; equal values give equal sums."""
    total = 0
    for parameter in parameters:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        flat = local.detach().flatten()
        total = (total * 31 + bits(flat[:: max(1, flat.numel() // MOST_LOOKED_AT)])) % 2**62
    return total


# Of a step: collectives, and calls of Python's that are kept, payload and dropped.
_Step = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Counter:
    """Something that is counted in each step, by what it is of such numbers, added up or of one step."""

    of: Callable[[_Step], int]

    def per_step(self, window: Issued) -> float:
        """Return the mean over a window's steps."""
        numbers = window.collectives or 0, window.kept, window.payload, window.dropped
        return self.of(numbers) / max(1, window.steps)

    def is_alike(self, one: Issued, other: Issued) -> bool:
        """Return whether two windows have it alike: in the mean, or in what most of their steps have."""
        before, now = self.per_step(one), self.per_step(other)
        usual = self._usual(one)
        return abs(before - now) <= WITHIN * abs(before) or (usual is not None and usual == self._usual(other))

    def is_even(self, window: Issued) -> bool:
        """Return whether all steps of a window have it alike."""
        return len(set(map(self.of, window.each))) == 1

    def _usual(self, window: Issued) -> int | None:
        """Return what USUAL of a window's steps have alike; None: so many have nothing."""
        found = Counter[int]()
        for step, number in window.each.items():
            found[self.of(step)] += number
        value, number = max(found.items(), key=lambda item: item[1], default=(0, 0))
        return value if number >= USUAL * window.steps else None


_COLLECTIVES, _KEPT = _Counter(lambda step: step[0]), _Counter(lambda step: step[1])
# Collectives that no call of Python's issued.
_NOT_PYTHONS = _Counter(lambda step: step[0] - step[1] - step[2] + step[3])


def _number(per_step: float) -> str:
    return f"{units.digits(per_step)} {'collective' if per_step == 1 else 'collectives'}"


def _calls(per_step: float) -> str:
    return f"{units.digits(per_step)} {'call' if per_step == 1 else 'calls'}"
