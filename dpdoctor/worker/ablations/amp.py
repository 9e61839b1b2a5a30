"""amp: training forwards run under bf16 autocast."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdoctor.worker.ablations._base import Ablation, AblationContext, Fault

if TYPE_CHECKING:
    import torch

# Of x86 and of Arm, as Linux names them.
CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# A list of a model's that is longer holds other things than its state.
MOST_HELD = 64


class Amp(Ablation):
    """Puts the model's forward, and so its backward pass, into bfloat16 where autocast sees fit.

    What the forward returns is cast to float32, so that the script's loss is computed as before; what it leaves in the
    model, such as a hidden state, at the end of the window.
    """

    priority = 5
    calls_others = True

    def __init__(self) -> None:
        self._raised: str | None = None
        self._were_half: set[tuple[Any, ...]] = set()

    def unfit(self, context: AblationContext) -> str | None:
        """Return why the script gains nothing by it, or cannot take it."""
        if context.mode.in_threads:
            return "nn.DataParallel runs replicas in threads of its own, and autocast's type belongs to the thread"
        if not all(_is_single(parameter) for parameter in context.wrapping.parameters()):
            return "the model holds parameters of another type than float32"
        if (how := context.precision.already()) is not None:
            return how
        if not _has_instructions(_device(context)):
            return "this processor has no instructions for bfloat16: it would be slower, not faster"
        return None

    def begin(self, context: AblationContext) -> None:
        """Put training forwards under autocast."""
        self._raised = None
        self._were_half = {path for path, _ in _halves(context)}
        device = _device(context)

        def call(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                result = _under_autocast(device, target, args, kwargs)
            except Exception as error:  # noqa: BLE001 - the script's forward may raise anything; it is run again, as it is
                self._raised = f"the forward raises {type(error).__name__} under autocast: {_first_line(error)}"
                context.watch.through = None
                return target(*args, **kwargs)
            try:
                return _as_single(result)
            except Exception as error:  # noqa: BLE001 - so may the classes of what it returns
                self._raised = f"what the forward returns cannot be cast: {type(error).__name__}: {_first_line(error)}"
                context.watch.through = None
            return result

        context.watch.through = call

    def end(self, context: AblationContext) -> Fault | None:
        """Call forwards plainly again."""
        context.watch.through = None
        for path, held in list(_halves(context)):
            if path not in self._were_half:
                held[path[-1]] = _as_single(held[path[-1]])
        return Fault(reason=self._raised, final=True) if self._raised else None


def _device(context: AblationContext) -> str:
    return next((parameter.device.type for parameter in context.wrapping.parameters()), "cpu")


def _has_instructions(device: str) -> bool:
    """Return whether a device computes in bfloat16; a processor without instructions for it only pretends to."""
    import torch

    if device != "cpu":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return not CPU_FLAGS.isdisjoint(Path("/proc/cpuinfo").read_text().split())


def _under_autocast(device: str, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import torch

    with torch.autocast(device, dtype=torch.bfloat16):
        return target(*args, **kwargs)


def _as_single(value: Any) -> Any:
    """Return nested containers and dataclasses, which may lead back to themselves, with float32 for bfloat16."""
    from torch.utils import _pytree

    made_of: dict[int, Any] = {}

    def cast(leaf: Any) -> Any:
        if _is_half(leaf):
            return leaf.float()
        if not _is_dataclass(leaf):
            return leaf
        if id(leaf) in made_of:
            return made_of[id(leaf)]
        made = made_of[id(leaf)] = copy.copy(leaf)
        for field in dataclasses.fields(leaf):
            if hasattr(leaf, field.name):
                value = _pytree.tree_map(cast, getattr(leaf, field.name))
                object.__setattr__(made, field.name, value)  # it may be frozen
        return made

    return _pytree.tree_map(cast, value)


def _halves(context: AblationContext) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield where parts of the model hold bfloat16: the keys that lead to a tensor, or a tuple of some, and its holder.

    Buffers and attributes are looked at, and what lists, tuples, dicts and dataclasses of a few items in them hold.
    """
    seen: set[int] = set()
    for module in context.wrapping.modules:
        for part in module.modules():
            for held in (part._buffers, vars(part)):
                yield from _halves_in(held, (id(held),), seen)


def _halves_in(held: Any, path: tuple[Any, ...], seen: set[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if id(held) in seen:
        return
    seen.add(id(held))
    for key, value in held.items() if isinstance(held, dict) else enumerate(held):
        parts = list(_without_tuples(value))
        if any(map(_is_half, parts)):
            yield (*path, key), held
        for number, part in enumerate(parts):
            further = _held_by(part)
            if further is not None and len(further) <= MOST_HELD:
                yield from _halves_in(further, (*path, key, number), seen)


def _without_tuples(value: Any) -> Iterator[Any]:
    """Yield a value or, of nested tuples of a few items, what they hold."""
    if not isinstance(value, tuple):
        yield value
    elif len(value) <= MOST_HELD:
        for item in value:
            yield from _without_tuples(item)


def _held_by(value: Any) -> dict[Any, Any] | list[Any] | None:
    """Return what a list, a dict or a dataclass holds, to be changed in place; None: it is none of them."""
    if isinstance(value, (dict, list)):
        return value
    return vars(value) if _is_dataclass(value) and hasattr(value, "__dict__") else None


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_half(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16


def _is_single(parameter: torch.nn.Parameter) -> bool:
    import torch

    return parameter.dtype == torch.float32 or not parameter.is_floating_point()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


ABLATION = Amp()
