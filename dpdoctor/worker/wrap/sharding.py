"""How a model is sharded by FSDP: submodules are gathered as one unit, and sharded parameters take the old ones' place.

They are put where a script, and its optimizers, hold the old ones.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import CellType, FrameType, MemberDescriptorType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dpdoctor.worker.base import lines, structure

# A unit below this is gathered in a message so small that latency is all of its cost.
LEAST_PARAMETERS = 100_000
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)
Parameters = dict[int, tuple[nn.Parameter, nn.Parameter]]
# What takes the place of what, by the id of the latter: parameters, and tuples of them.
Changed = dict[int, tuple[Any, Any]]

OUT_OF_REACH = (
    "parameters of the model are also held where the sharded ones cannot take their place, by objects of type {}: what "
    "the script does with them there, such as clipping their gradients, does nothing. A list can hold them"
)


def repeated_blocks(root: nn.Module) -> list[nn.Module]:
    """Return the outermost repeated blocks of a model, in order: its transformer layers, its residual blocks.

    A block has children, is no mere container, has at least LEAST_PARAMETERS, and its class occurs more than once.
    One that shares a parameter with the rest of the model is none, but what it holds may be: shared parameters must
    lie in one unit.
    """
    occurrences = Counter(type(module) for module in root.modules())
    blocks: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if _is_block(child, occurrences) and not _shares(root, child):
                blocks.append(child)
            else:
                visit(child)

    visit(root)
    return list(dict.fromkeys(blocks))


def _is_block(module: nn.Module, occurrences: Counter[type[nn.Module]]) -> bool:
    return (
        occurrences[type(module)] > 1
        and not isinstance(module, _CONTAINERS)
        and any(True for _ in module.children())
        and sum(p.numel() for p in structure.parameters(module)) >= LEAST_PARAMETERS
    )


def named_blocks(root: nn.Module, class_names: Sequence[str]) -> list[nn.Module]:
    """Return every submodule of the given classes that shares no parameter, inner ones first, as FSDP wants them.

    Raises:
        ValueError: the model has none of a class; the message lists what it has.
    """
    inside = [module for module in root.modules() if module is not root]
    for name in class_names:
        if not any(type(module).__name__ == name for module in inside):
            known = ", ".join(sorted({type(module).__name__ for module in inside}))
            raise ValueError(f"--fsdp-wrap names {name}, but the model holds no module of that class; it holds {known}")
    return [m for m in reversed(inside) if type(m).__name__ in class_names and not _shares(root, m)]


def _shares(root: nn.Module, block: nn.Module) -> bool:
    """Return whether a parameter of a block is also reached past it: by a weight, or a module, that two places hold."""
    inside = {id(p) for p in structure.parameters(block)}
    seen, left = {id(block)}, [root]
    while left:
        module = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if any(id(p) in inside for p in structure.own_parameters(module)):
            return True
        left.extend(module.children())
    return False


def replacements(before: dict[str, nn.Parameter], module: nn.Module) -> Parameters:
    """Return old and new parameter of each name, by the id of the old one."""
    after = dict(structure.by_names(module))
    return {id(old): (old, after[name]) for name, old in before.items() if after[name] is not old}


def repoint(
    changed: Parameters,
    optimizers: Sequence[Optimizer],
    distribute: Callable[[torch.Tensor, nn.Parameter], torch.Tensor],
    warn: Callable[[str], None],
) -> None:
    """Replace old parameters by new ones in the optimizers, their state, and whatever else holds them.

    The new ones have the attributes that the script gave the old ones, such as which of them decay.

    Args:
        changed: what `replacements` returned.
        optimizers: the script's optimizers.
        distribute: makes a state tensor of the old parameter's shape into one of the new parameter's kind.
        warn: is told what holds old ones on.
    """
    for old, new in changed.values():
        vars(new).update(vars(old))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [changed[id(p)][1] if id(p) in changed else p for p in group["params"]]
        _move_state(optimizer, changed, distribute)
    if kinds := replace_everywhere(dict(changed)):
        warn(OUT_OF_REACH.format(", ".join(sorted(kinds))))


def replace_everywhere(changed: Changed) -> set[str]:
    """Put things in the place of others in all that holds those; return the classes of what cannot be changed."""
    kinds: set[str] = set()
    while changed:
        changed = _replace_everywhere(changed, kinds)
    return kinds


def _replace_everywhere(changed: Changed, kinds: set[str]) -> Changed:
    """Replace things in all that can be changed, and return what is to take the place of tuples that hold them.

    `kinds` gets the names of what cannot.
    """
    anew: Changed = {}
    ours = {id(pair) for pair in changed.values()}
    # One pass over everything that lives: a pass for each parameter would take minutes.
    for holder in gc.get_referrers(*(old for old, _ in changed.values())):
        if id(holder) in ours or isinstance(holder, FrameType):
            continue
        if type(holder) in {tuple, frozenset}:
            anew[id(holder)] = holder, type(holder)(_new(holder, changed))
            continue
        _replace_in(holder, changed)
        if any(id(item) in changed for item in gc.get_referents(holder)):
            kinds.add(type(holder).__name__)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not lines.is_ours(frame.f_code.co_filename):
            _replace_in_locals(frame, changed)
        frame = frame.f_back
    return anew


def _replace_in(holder: Any, changed: Changed) -> None:
    if isinstance(holder, (list, deque)):
        for place, item in enumerate(_new(holder, changed)):
            holder[place] = item
    elif isinstance(holder, set):
        items = _new(holder, changed)
        holder.clear()
        holder.update(items)
    elif isinstance(holder, CellType):
        holder.cell_contents = changed[id(holder.cell_contents)][1]
    elif isinstance(holder, dict):
        _replace_in_dict(holder, changed)
    elif not isinstance(holder, type):  # of which the dict itself is found
        _replace_in_dict(getattr(holder, "__dict__", {}), changed)
        if isinstance(holder, functools.partial):
            # As when it is unpickled; its attributes can be read only.
            state = (*_new([holder.func, holder.args], changed), holder.keywords, vars(holder))
            holder.__setstate__(state)  # type: ignore[attr-defined]
        else:
            _replace_in_slots(holder, changed)


def _replace_in_slots(holder: Any, changed: Changed) -> None:
    """Replace what an object of a class with `__slots__` holds, also of one that refuses to be set."""
    for kind in type(holder).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # it is empty, or can only be read
                    held = slot.__get__(holder)
                    if id(held) in changed:
                        slot.__set__(holder, changed[id(held)][1])


def _replace_in_dict(held: dict[Any, Any], changed: Changed) -> bool:
    """Replace keys and values; return whether there were any to replace."""
    found = [key for key, item in held.items() if id(key) in changed or id(item) in changed]
    if any(id(key) in changed for key in found):
        items = dict(zip(_new(held, changed), _new(held.values(), changed), strict=True))
        held.clear()
        held.update(items)
    else:
        held.update(zip(found, _new([held[key] for key in found], changed), strict=True))
    return bool(found)


def _replace_in_locals(frame: FrameType, changed: Changed) -> None:
    """Replace things in the local variables of a function that runs, which the collector of garbage does not know."""
    with lines.local_variables(frame) as held:
        if _replace_in_dict(held, changed) and sys.version_info < (3, 13):  # a copy, until then
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _new(items: Iterable[Any], changed: Changed) -> list[Any]:
    return [changed[id(item)][1] if id(item) in changed else item for item in items]


def _move_state(
    optimizer: Optimizer, changed: Parameters, distribute: Callable[[torch.Tensor, nn.Parameter], torch.Tensor]
) -> None:
    for old, new in changed.values():
        if old in optimizer.state:
            # The dict itself goes on: a step that is just calling its closure holds it, and writes into it afterwards.
            state = optimizer.state[new] = optimizer.state.pop(old)
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == old.shape:
                    state[key] = distribute(value, new)
