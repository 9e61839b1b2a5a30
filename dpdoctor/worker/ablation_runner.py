"""The ablations of one rank: which can run, one switched on and off at the edges of its windows, what went wrong.

What is trained in a window in which ranks part is put back at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import psutil
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpdoctor import cgroup, units
from dpdoctor.records import FULL, AblationRecord, Counters
from dpdoctor.worker.ablations._base import MEMORY_MARGIN, Ablation, AblationContext, Fault
from dpdoctor.worker.ablations._wire import APART, Counted, fingerprint
from dpdoctor.worker.base import aside, structure
from dpdoctor.worker.base.agreement import Agreement, gather_texts
from dpdoctor.worker.base.director import LEAST_ROUNDS
from dpdoctor.worker.base.mode import Mode
from dpdoctor.worker.timing.exchanges import Issued

NO_WINDOW = "training ended before a window of it was measured"
# What schedulers set in the groups of an optimizer, and the parameters.
_NOT_THE_OPTIMIZERS = frozenset(
    {
        "params",
        "lr",
        "initial_lr",
        "max_lr",
        "min_lr",
        "momentum",
        "initial_momentum",
        "max_momentum",
        "base_momentum",
        "betas",
        "weight_decay",
        "swa_lr",
    }
)


def _available_bytes() -> int:
    """Return the bytes that may still be taken without swapping, of the machine or of this process's cgroups."""
    free, left = int(psutil.virtual_memory().available), cgroup.memory_left()
    return free if left is None else min(free, left)


class AblationRunner:
    """Runs the ablations that all ranks can run; every method is called on all ranks alike.

    `ablations` are in the order of their importance, `raised` tells why some of them are not run: a launch before this
    one failed with them.
    """

    def __init__(
        self,
        ablations: dict[str, Ablation],
        context: AblationContext,
        agreement: Agreement,
        *,
        time_budget_s: float,
        raised: Mapping[str, str] | None = None,
        available_bytes: Callable[[], int] = _available_bytes,
    ) -> None:
        self._ablations = ablations
        self._context = context
        self._agreement = agreement
        self._no_time = (
            f"{LEAST_ROUNDS} rounds of its windows do not fit into {units.seconds(time_budget_s)}: raise --time-budget"
        )
        self._available_bytes = available_bytes
        self._skipped = {name: reason for name, reason in (raised or {}).items() if name in ablations}
        self._last_fault = dict.fromkeys(ablations, NO_WINDOW)
        self._measured: set[str] = set()
        self._state: Snapshot | None = None
        wire = context.wire
        self._counted = Counted(wire, wire.exchanges.warmup) if wire is not None else None
        self._is_replicated = False
        # Since the last full window that was one.
        self._since: list[str] = []
        self._is_sound = True
        self.ablation = FULL

    @property
    def unfit(self) -> tuple[str, ...]:
        """Return the ablations that cannot run, or not any more."""
        return tuple(self._skipped)

    @property
    def fair_threads(self) -> int:
        """Return this rank's share of the cores."""
        return self._context.fair_threads

    @property
    def names(self) -> tuple[str, ...]:
        """Return all ablations, the most important first."""
        return tuple(self._ablations)

    @property
    def since_full(self) -> tuple[str, ...]:
        """Return the ablations that were on, or are, since the last full window that was one."""
        return tuple(dict.fromkeys(self._since))

    @property
    def is_running(self) -> bool:
        """Return whether any ablation is to run."""
        return len(self._skipped) < len(self._ablations)

    @property
    def replays(self) -> bool:
        """Return whether an ablation is to run in whose windows batches are replayed."""
        return any(ablation.replays for name, ablation in self._ablations.items() if name not in self._skipped)

    @property
    def calls_others(self) -> bool:
        """Return whether an ablation is on in whose windows other operators are called."""
        return self.ablation != FULL and self._ablations[self.ablation].calls_others

    def records(self) -> tuple[AblationRecord, ...]:
        """Return what became of each ablation."""
        return tuple(AblationRecord(name=name, skipped=self._reason_of(name)) for name in self._ablations)

    def _reason_of(self, name: str) -> str | None:
        return self._skipped.get(name) or (None if name in self._measured else self._last_fault[name])

    def settle(self, counters: Counters | None = None) -> None:
        """Find out which ablations can run: those that can on every rank; `counters` are of the last step."""
        if not self._ablations:
            if self._context.wire is not None:
                self._context.wire.exchanges.looks = False
            return
        if self._context.wire is not None:
            self._context.wire.settle(self._agreement, counters)
            self._is_replicated = self._are_equal()
        reasons = {
            name: reason
            for name, ablation in self._ablations.items()
            if name not in self._skipped and (reason := self._reason(ablation))
        }
        self._skip(reasons)

    def _reason(self, ablation: Ablation) -> str | None:
        return ablation.unfit(self._context) or self._lacks_memory(ablation)

    def _lacks_memory(self, ablation: Ablation) -> str | None:
        """Return how much memory is missing; ranks share a host, as far as is known."""
        context, needed = self._context, 0
        if ablation.sets_apart:
            needed += snapshot_bytes(context.wrapping.modules, context.optimizers.alive())
        if ablation.replays:
            needed += context.replay.num_bytes(context.tally.loaders())
        all_needed, available = int(MEMORY_MARGIN * needed * context.world_size), self._available_bytes()
        if all_needed <= available:
            return None
        ranks = units.count(context.world_size, "rank")
        return f"{units.size(all_needed)} of host memory needed by {ranks}, {units.size(available)} available"

    def _skip(self, reasons: dict[str, str]) -> None:
        """Skip for good what any rank has a reason to skip."""
        texts = gather_texts(self._agreement, msgspec.json.encode(reasons).decode())
        for text in reversed(texts):
            self._skipped.update(msgspec.json.decode(text, type=dict[str, str]))

    def drop(self, names: Sequence[str]) -> None:
        """Skip what rank 0 finds no time for; `names` of the other ranks do not matter."""
        dropped = self._agreement.gather([int(name in names) for name in self._ablations])[0] if self._ablations else []
        for name, flag in zip(self._ablations, dropped, strict=True):
            if flag:
                self._skipped.setdefault(name, self._no_time)

    def enter(self, name: str) -> None:
        """Switch an ablation on; FULL: none."""
        self.ablation = name
        if name == FULL:
            return
        self._since.append(name)
        ablation, context = self._ablations[name], self._context
        if ablation.sets_apart:
            self._state = Snapshot(context.wrapping.modules, context.optimizers.alive(), context.precision.scalers())
        ablation.begin(context)

    def leave(self, *, measured: bool = True) -> bool:
        """Switch the present ablation off; return whether its window, if one was `measured`, counts on every rank."""
        window = self._context.wire.exchanges.window() if self._context.wire is not None else Issued()
        if self.ablation == FULL:
            return not measured or self._is_full(window)
        name, fault = self.ablation, self.abandon()
        if fault is None and self._counted is not None:
            why = self._ablations[name].unproved(self._counted, window)
            fault = Fault(reason=why, final=self._counted.has_full) if why else None
        return self._count_window(name, fault)

    def abandon(self) -> Fault | None:
        """Switch the present ablation off, and put back what was trained in it; nothing happens where none is on."""
        if self.ablation == FULL:
            return None
        name, self.ablation = self.ablation, FULL
        try:
            return self._ablations[name].end(self._context)
        finally:
            if self._state is not None:
                self._state.restore()
                self._state = None

    def _is_full(self, window: Issued) -> bool:
        """Return whether a window without an ablation is one: ranks exchange what they did before any ablation."""
        if self._counted is None or not self._ablations:
            self._since = []
            return True
        why = self._counted.full(window, anew=self._is_sound and not self._since)
        told = gather_texts(self._agreement, why or "")
        self._is_sound = not any(told)
        if not self._is_sound:
            self._withdraw(self._since, next(filter(None, told)))
        elif self._is_replicated and any(self._ablations[name].sets_apart for name in self._since):
            self._is_replicated = self._are_equal()
            if not self._is_replicated:
                self._withdraw([name for name, ablation in self._ablations.items() if ablation.sets_apart], APART)
        self._since = []
        return self._is_sound

    def _are_equal(self) -> bool:
        """Return whether all ranks hold the same parameters."""
        mine = fingerprint(self._context.wrapping.parameters())
        return len({numbers[0] for numbers in self._agreement.gather([mine])}) == 1

    def _withdraw(self, names: Sequence[str], reason: str) -> None:
        """Let nothing that was measured of these ablations count, and run them no more."""
        for name in names:
            self._skipped.setdefault(name, reason)

    def _count_window(self, name: str, fault: Fault | None) -> bool:
        found = self._agreement.gather([int(fault is not None), int(fault is not None and fault.final)])
        if not any(flags[0] for flags in found):
            self._measured.add(name)
            return True
        reason = next(text for text in gather_texts(self._agreement, fault.reason if fault else "") if text)
        self._last_fault[name] = reason
        if any(flags[1] for flags in found):
            self._skipped[name] = reason
        return False


def chosen(ablations: dict[str, Ablation], mode: Mode) -> dict[str, Ablation]:
    """Return the ablations that were asked for and mean something in the mode, the most important first."""
    found = {name: ablation for name, ablation in ablations.items() if ablation.applies(mode)}
    return dict(sorted(found.items(), key=lambda item: item[1].priority))


class Snapshot:
    """The state of training when this was made; `restore` gives the same tensors their values back.

    Optimizers that are built meanwhile, as for each epoch, get back what they had before their first step.

    Learning rates and what else schedulers set are left alone: they go on through all windows. Other numbers in an
    optimizer's groups are its own, such as the step size that Prodigy finds.
    """

    @torch.no_grad()
    def __init__(
        self, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], scalers: Sequence[GradScaler]
    ) -> None:
        trained = structure.trained(modules, optimizers)
        self._parameters = [_Held(parameter) for parameter in trained]
        self._gradients = [(p, None if p.grad is None else _Held(p.grad)) for p in trained]
        self._buffers = [(owner, name, _Held(buffer)) for owner, name, buffer in _buffers(modules)]
        self._states: list[tuple[Optimizer, Any]] = []
        self._groups: list[tuple[dict[str, Any], Any]] = []
        for optimizer in optimizers:
            self._keep(optimizer)
        self._scalers = [(scaler, scaler.state_dict()) for scaler in scalers]
        self._hook = register_optimizer_step_pre_hook(self._begins)

    def _keep(self, optimizer: Optimizer) -> None:
        self._states.append((optimizer, _mapped(dict(optimizer.state), _Held)))
        for group in optimizer.param_groups:
            own = {key: value for key, value in group.items() if key not in _NOT_THE_OPTIMIZERS}
            self._groups.append((group, _mapped(own, _Held)))

    @torch.no_grad()
    def _begins(self, optimizer: Optimizer, *_: object) -> None:
        """A step of an optimizer begins."""
        if all(optimizer is not known for known, _ in self._states):
            self._keep(optimizer)

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        self._hook.remove()
        for held in self._parameters:
            held.back()
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.back()
        for owner, name, buffer in self._buffers:
            owner._buffers[name] = buffer.back()
        for optimizer, state in self._states:
            optimizer.state.clear()
            optimizer.state.update(_mapped(state, lambda held: held.back()))
        for group, entries in self._groups:
            group.update(_mapped(entries, lambda held: held.back()))
        for scaler, scale in self._scalers:
            scaler.load_state_dict(scale)
            _forget_overflows(scaler)


def snapshot_bytes(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> int:
    """Return the memory of a Snapshot; gradients are counted for all parameters, whether they have one now or not."""
    total = 0

    def add(tensor: torch.Tensor) -> None:
        nonlocal total
        total += structure.local(tensor).nbytes

    with torch.no_grad():
        for parameter in structure.trained(modules, optimizers):
            add(parameter)
            add(parameter)
        for _, _, buffer in _buffers(modules):
            add(buffer)
        for optimizer in optimizers:
            _mapped(dict(optimizer.state), add)
    return total


class _Held:
    """A tensor and a copy of it in the host's memory; of a sharded one this rank's shard."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._copy = aside.copy(structure.local(tensor))

    def back(self) -> torch.Tensor:
        """Return the tensor, with the values that it had."""
        structure.local(self._tensor).copy_(self._copy)
        return self._tensor


def _buffers(modules: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for module in modules:
        for owner in module.modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None:
                    yield owner, name, buffer


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested containers anew, with `change` of each tensor, or of what stands for one, in them."""
    if isinstance(value, (torch.Tensor, _Held)):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_mapped(item, change) for item in value)
    return value


def _forget_overflows(scaler: GradScaler) -> None:
    """Have the update that follows this step see none: each rank would see its own, and scale differently after."""
    for state in scaler._per_optimizer_states.values():
        for found in state["found_inf_per_device"].values():
            found.zero_()
