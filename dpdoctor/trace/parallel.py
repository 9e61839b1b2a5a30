"""One function over many traces, spread over processes: what one file does wrong does not end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from dpdoctor.errors import TraceError

T = TypeVar("T")


def each(function: Callable[[Path], T], paths: Sequence[Path], *, processes: int) -> Iterator[T | TraceError]:
    """Yield function(path) for every path in their order; for a file that cannot be read, the error.

    `function` and its result must be picklable; with one process it runs in this one.
    """
    if min(processes, len(paths)) < 2:
        yield from (attempt(function, path) for path in paths)
        return
    # Here: one file, and --help, need no processes.
    from dpdoctor.trace import pool

    yield from pool.each(function, paths, processes=min(processes, len(paths)))


def attempt(function: Callable[[Path], T], path: Path) -> T | TraceError:
    """Return function(path), or why the file cannot be read."""
    try:
        return function(path)
    except TraceError as error:
        return error
