"""One function over many traces, spread over processes: what one file does wrong does not end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dpdoctor.errors import TraceError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

T = TypeVar("T")


def each(function: Callable[[Path], T], paths: Sequence[Path], *, processes: int) -> Iterator[T | TraceError]:
    """Yield function(path) for every path in their order; for a file that cannot be read, the error.

    `function` and its result must be picklable; with one process it runs in this one.
    """
    if min(processes, len(paths)) < 2:
        yield from (_attempt(function, path) for path in paths)
        return
    # Processes are imported in functions: one file, and --help, need none.
    from concurrent.futures.process import BrokenProcessPool

    pool = _pool(function, min(processes, len(paths)))
    try:
        futures = [pool.submit(_attempt, function, path) for path in paths]
        for path, future in zip(paths, futures, strict=True):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield _alone(function, path)
    finally:
        pool.shutdown(cancel_futures=True)


def _attempt(function: Callable[[Path], T], path: Path) -> T | TraceError:
    """Return function(path), or why the file cannot be read."""
    try:
        return function(path)
    except TraceError as error:
        return error


def _alone(function: Callable[[Path], T], path: Path) -> T | TraceError:
    """Try a file again after a process was killed, which leaves open over which file."""
    from concurrent.futures.process import BrokenProcessPool

    with _pool(function, 1) as pool:
        future: Future[T | TraceError] = pool.submit(_attempt, function, path)
        try:
            return future.result()
        except BrokenProcessPool:
            return TraceError(f"{path}: the process that read it was killed; is there too little memory?")


def _pool(function: Callable[[Path], T], processes: int) -> ProcessPoolExecutor:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("forkserver")
    module = getattr(function, "func", function).__module__  # of what a functools.partial calls
    context.set_forkserver_preload([module])  # imported once, not in every process
    return ProcessPoolExecutor(processes, mp_context=context)
