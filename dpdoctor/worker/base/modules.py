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
        for parameter in vars(one).get("_parameters", {}).values():
            if parameter is not None and id(parameter) not in known:
                known.add(id(parameter))
                yield parameter
