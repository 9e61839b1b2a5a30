"""What the files of a package import, read from their syntax trees; nothing is executed."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import of `target` in `module`. `at_load`: it happens when the module is loaded."""

    module: str
    target: str
    line: int
    at_load: bool


def modules(package: Path) -> dict[str, Path]:
    """Return the files of a package by module name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path) -> Iterator[Import]:
    """Yield every import of a file, wherever in it and however spelled."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node, at_load in walk(ast.parse(path.read_text("utf-8")), at_load=True):
        for target in targets(node, package):
            yield Import(module=module, target=target, line=node.lineno, at_load=at_load)


def walk(node: ast.AST, *, at_load: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each node below `node`, and whether it is executed when the module is loaded."""
    for child in ast.iter_child_nodes(node):
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        yield child, at_load
        yield from walk(child, at_load=at_load and not later)


def targets(node: ast.AST, package: str) -> list[str]:
    """Return the full names that one node imports; `from a import b` gives a.b, which may be a module or a name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        above = parts[: len(parts) + 1 - node.level] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
        return [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return []


def cycle(package: Path) -> list[str] | None:
    """Return the modules of an import cycle at load, or None; a package may name itself.

    Loading a.b loads the package a first, unless the importing module lies in a, which is then being loaded already.
    """
    files = modules(package)
    graph: dict[str, set[str]] = {module: set() for module in files}
    for module, path in files.items():
        for item in imports(module, path):
            parents = [name for name in prefixes(item.target) if name in files and name not in prefixes(module)]
            named = [longest_module(item.target, files)]
            if item.at_load:
                graph[module].update(name for name in (*parents, *named) if name and name != module)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return None


def prefixes(name: str) -> list[str]:
    """Return a, a.b, a.b.c for a.b.c."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def longest_module(name: str, files: dict[str, Path]) -> str | None:
    """Return the module that an import of `name` names: the name itself or, for a name in a module, that module."""
    return next((prefix for prefix in reversed(prefixes(name)) if prefix in files), None)
