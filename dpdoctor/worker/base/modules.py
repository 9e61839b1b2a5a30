"""What a module is made of, without asking its own methods: a script's may raise, or be something else."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def submodules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and all below it, each once; as `modules()`, for which they must be hashable."""
    known, found = {id(module)}, [module]
    while found:
        one = found.pop()
        yield one
        below = [child for child in vars(one).get("_modules", {}).values() if child is not None]
        found += [child for child in reversed(below) if id(child) not in known]
        known.update(map(id, below))


def parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module and of all below it, each once; as `parameters()`, which may be overridden."""
    known: set[int] = set()
    for one in submodules(module):
        for parameter in own_parameters(one):
            if id(parameter) not in known:
                known.add(id(parameter))
                yield parameter


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a module holds itself; as `parameters(recurse=False)`."""
    return [parameter for parameter in vars(module).get("_parameters", {}).values() if parameter is not None]


def by_names(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module and of all below it by all of their names, of which shared ones have several."""
    for name, parameter in vars(module).get("_parameters", {}).items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, child in vars(module).get("_modules", {}).items():
        if child is not None:
            yield from by_names(child, f"{prefix}{name}.")
