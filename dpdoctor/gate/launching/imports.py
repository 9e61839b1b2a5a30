"""Whose packages a checkout's script imports: its own, not those of the other side.

A package that is installed, or found by PYTHONPATH, is of one of two checkouts, and both scripts would import that one:
whatever head changes in it, the two are the same. So each side gets its own copy put first on its path.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# Where projects keep their packages.
ROOTS = (".", "src")
# dpdoctor measures; a checkout of it must not be what measures that checkout.
_OWN = Path("dpdoctor", "__main__.py")
_VARIABLE = "PYTHONPATH"
# Of the modules of a checkout's package, the share that an installed one of the same name has if it is a copy of it.
_COPY_SHARE = 0.5


def import_roots(base: Path, head: Path) -> tuple[str, ...]:
    """Return the directories, relative to a checkout, from which each side must import before all others."""
    # The deeper one first: base may lie inside of head.
    checkouts = sorted((base.resolve(), head.resolve()), key=lambda path: -len(path.parts))
    packages = dict.fromkeys((name, root) for side in checkouts for root in ROOTS for name in _packages(side / root))
    found: dict[str, None] = {}
    for name, root in packages:
        origin = _imported_from(name)
        if origin is None or (origin / _OWN).exists():
            continue
        checkout = next((one for one in checkouts if origin.is_relative_to(one)), None)
        if checkout is not None:
            found[os.path.relpath(origin, checkout)] = None
        elif any(_is_copy(origin, side / root, name) for side in checkouts):
            found[root] = None
    return tuple(found)


@contextlib.contextmanager
def own_imports(checkout: str, roots: Sequence[str]) -> Iterator[None]:
    """Let processes that start meanwhile import from these directories of a checkout first."""
    before = os.environ.get(_VARIABLE)
    own = [str(Path(checkout, root).resolve()) for root in roots]
    if own:
        os.environ[_VARIABLE] = os.pathsep.join([*own, *([before] if before else [])])
    try:
        yield
    finally:
        if own and before is None:
            del os.environ[_VARIABLE]
        elif own and before is not None:
            os.environ[_VARIABLE] = before


def holds_module(checkout: Path, name: str) -> bool:
    """Return whether a checkout has what `python -m name` runs."""
    path = Path(*name.split("."))
    places = (path.with_suffix(".py"), path / "__main__.py")
    return any((checkout / root / place).is_file() for root in ROOTS for place in places)


def _packages(root: Path) -> Iterator[str]:
    """Yield what could be imported from a directory."""
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        name = path.stem if path.suffix == ".py" else path.name
        if name.isidentifier() and (path.suffix == ".py" or (path / "__init__.py").is_file()):
            yield name


def _imported_from(name: str) -> Path | None:
    """Return the directory in which a rank would find a package; None: nowhere, or it has no file."""
    before = list(sys.path)
    # The first entry is this command's own: of a rank it is the script's directory.
    sys.path[:] = before[1:]
    try:
        spec = None if name in sys.stdlib_module_names else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path[:] = before
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    return origin.parents[1] if spec.submodule_search_locations else origin.parent


def _is_copy(installed: Path, own: Path, name: str) -> bool:
    """Return whether what is installed under a name is a copy of a checkout's, as `pip install` makes it.

    Another project's package of the same name must not be put behind the checkout's: the script may mean that one.
    """
    if not (own / name).is_dir() or not (installed / name).is_dir():
        one, other = (directory / f"{name}.py" for directory in (installed, own))
        return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()
    modules, there = ({path.name for path in (directory / name).glob("*.py")} for directory in (own, installed))
    special = {"__init__.py", "__main__.py"}
    if not modules - special:
        return not there - special
    return len((modules & there) - special) >= _COPY_SHARE * len(modules - special)
