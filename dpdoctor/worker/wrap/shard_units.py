"""Which submodules FSDP gathers as one unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from dpdoctor.worker.base import structure

# A unit below this is gathered in a message so small that latency is all of its cost.
LEAST_PARAMETERS = 100_000
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)


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
