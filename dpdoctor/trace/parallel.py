"""One function over many traces, spread over processes: what one file does wrong does not end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dpdoctor.errors import TraceError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

T = TypeVar("T")


def each(function: Callable[[Path], T], paths: Sequence[Path], *, processes: int) -> Iterator[T | TraceError]:
    """Yield function(path) for every path in their order; for a file that cannot be read, the error.

    `function` and its result must be picklable; with one process it runs in this one.
    """
    if min(processes, len(paths)) < 2:
        yield from (_attempt(function, path) for path in paths)
        return
    # Processes are imported in functions: one file, and --help, need none.
    from concurrent.futures import ThreadPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from queue import SimpleQueue

    number = min(processes, len(paths))
    # Pools of one process each, as a process that is killed ends its whole pool.
    pools: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
    for _ in range(number):
        pools.put(_pool(function))

    def read(path: Path) -> T | TraceError:
        pool = pools.get()
        try:
            return pool.submit(_attempt, function, path).result()
        except BrokenProcessPool:
            pool.shutdown()
            pool = _pool(function)
            return TraceError(f"{path}: the process that read it was killed; is there too little memory?")
        finally:
            pools.put(pool)

    threads = ThreadPoolExecutor(number)
    try:
        yield from threads.map(read, paths)
    finally:
        threads.shutdown(cancel_futures=True)
        for _ in range(number):
            pools.get().shutdown()


def _attempt(function: Callable[[Path], T], path: Path) -> T | TraceError:
    """Return function(path), or why the file cannot be read."""
    try:
        return function(path)
    except TraceError as error:
        return error


def _pool(function: Callable[[Path], T]) -> ProcessPoolExecutor:
    """Return a pool of one process, begun at its first file."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("forkserver")
    module = getattr(function, "func", function).__module__  # of what a functools.partial calls
    context.set_forkserver_preload([module])  # imported once, not in every process
    return ProcessPoolExecutor(1, mp_context=context)
