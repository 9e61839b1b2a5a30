"""The processes over which many traces are spread."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from dpdoctor.errors import TraceError
from dpdoctor.trace.parallel import attempt

T = TypeVar("T")


def each(function: Callable[[Path], T], paths: Sequence[Path], *, processes: int) -> Iterator[T | TraceError]:
    """Yield function(path) for every path in their order; for a file that cannot be read, the error."""
    pool = _pool(function, processes)
    try:
        futures = [pool.submit(attempt, function, path) for path in paths]
        for path, future in zip(paths, futures, strict=True):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield _alone(function, path)
    finally:
        pool.shutdown(cancel_futures=True)


def _alone(function: Callable[[Path], T], path: Path) -> T | TraceError:
    """Try a file again after a process was killed, which leaves open over which file."""
    with _pool(function, 1) as pool:
        future: Future[T | TraceError] = pool.submit(attempt, function, path)
        try:
            return future.result()
        except BrokenProcessPool:
            return TraceError(f"{path}: the process that read it was killed; is there too little memory?")


def _pool(function: Callable[[Path], T], processes: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")
    module = getattr(function, "func", function).__module__  # of what a functools.partial calls
    context.set_forkserver_preload([module])  # imported once, not in every process
    return ProcessPoolExecutor(processes, mp_context=context)
