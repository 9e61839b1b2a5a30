"""The one switch that keeps ranks from exchanging gradients and parameters, whoever exchanges them.

DistributedDataParallel's own forward finds that nothing is to be reduced; what Python asks of a process group is copied
within the rank instead. Only payload is left out: flags, counts and barriers stay, or the control flow of ranks would
part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from dpdoctor import units
from dpdoctor.records import Counters
from dpdoctor.worker.base import local_copies, structure
from dpdoctor.worker.base.agreement import Agreement, gather_texts
from dpdoctor.worker.timing.exchanges import ALL, REDUCTIONS, Exchanges, Site
from dpdoctor.worker.wrap.wrapping import Wrapping

NOT_COUNTED = (
    "torch does not count the collectives of this backend, so that nothing would show what the ablation leaves out"
)
NOTHING = "no step so far exchanges gradients or parameters"
UNALIKE = "rank {} exchanges gradients or parameters elsewhere than rank 0 does: {}"
AMBIGUOUS = "{} exchanges parameters of one element, and other numbers, too: which of them to leave out is not known"
COMPILED = "DistributedDataParallel is compiled as a whole: whether it reduces is fixed in what was compiled"
UNSEEN = "{} in a step are exchanged inside operators of torch, as by tensor parallelism: nothing can take their place"
# An exchange in a step from this part of what is trained on, counted in elements, is one of gradients or parameters.
LEAST_SHARE = 0.01


class Wire:
    """Takes what the ranks exchange away, and gives it back, between two steps; all ranks do so at once.

    `wrappers` are those that dpdoctor itself made, `trained` gives the parameters.

    Which lines exchange gradients and parameters is learnt until `settle`, and the same on all ranks then.

    Attributes:
        least: elements in one exchange of gradients or parameters.
        times_reduced: how often the step that was looked at closely reduced its gradients, by their bytes.
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
        self.least = 1.0
        self.times_reduced = 0.0
        exchanges.is_trained = self._is_trained

    @property
    def has_reducer(self) -> bool:
        """Return whether DistributedDataParallel reduces by itself, which no call of Python's shows."""
        return any(isinstance(part, DistributedDataParallel) for part in self._parts())

    def _parts(self) -> list[nn.Module]:
        return [part for module in (*self._wrappers, *self._wrapping.modules) for part in module.modules()]

    def _is_trained(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a parameter that is trained, or the gradient of one."""
        held = (either for parameter in self._trained() for either in (parameter, parameter.grad) if either is not None)
        return structure.is_dense(tensor) and any(
            type(either) in {torch.Tensor, nn.Parameter}
            and structure.is_dense(either)
            and either.data_ptr() == tensor.data_ptr()
            for either in held
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
        if counters is not None:
            sizes = (number * tensor.element_size() for number, tensor in zip(elements, trained, strict=True))
            self._weigh(counters, sum(sizes))

    def _weigh(self, counters: Counters, trained_bytes: int) -> None:
        reduced = sum(of.num_bytes for kind, of in counters.collectives.items() if "reduce" in kind)
        self.times_reduced = reduced / max(1, trained_bytes)
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
        return None if payload or wrappers else NOTHING

    def cut(self) -> None:
        """From here on ranks exchange nothing but flags and the like."""
        self._switch(ALL)
        self._let_go()

    def hold(self) -> None:
        """From the next forward on gradients are not reduced, but added to what this rank has."""
        self._switch(REDUCTIONS)
        self._set_sharded(reduces=False)

    def mend(self) -> None:
        """Have ranks exchange everything again; nothing happens where they do."""
        exchanges = self.exchanges
        if exchanges.left_out == ALL:
            self._let_go()
        elif exchanges.left_out == REDUCTIONS:
            self._set_sharded(reduces=True)
        exchanges.instead, exchanges.left_out = None, frozenset()
        if self._forward is not None:
            DistributedDataParallel.forward = self._forward  # type: ignore[method-assign]
            self._forward = None

    def _switch(self, operations: frozenset[str]) -> None:
        self.exchanges.instead, self.exchanges.left_out = instead, operations
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
        local_copies.BY_METHOD[method](group, *args[:2])
    tensors = list(structure.tensors(args[0]))
    future: torch.futures.Future[Any] = torch.futures.Future(devices=[*{t.device for t in tensors if t.is_cuda}])
    future.set_result(tensors)
    return _create_work_from_future(future)
