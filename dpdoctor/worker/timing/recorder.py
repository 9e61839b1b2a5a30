"""Writes what a rank saw, as it goes: a killed rank leaves everything up to its last window edge."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpdoctor import rundir
from dpdoctor.loading import BatchRecord
from dpdoctor.records import EventRecord, MemoryRecord, StepRecord, WindowRecord

# A pause below this is not worth a line; the youngest generation is collected many times a second.
LEAST_GC_NS = 1_000_000


class Recorder:
    """Keeps steps, events and batches in memory within a window and appends them to their files at its edge."""

    def __init__(self, directory: Path, clock: Callable[[], int]) -> None:
        self._directory = directory
        self._clock = clock
        # As what makes them and what of: within a step there is no time for more.
        self._steps: list[tuple[Callable[..., StepRecord], tuple[Any, ...]]] = []
        self._windows: list[WindowRecord] = []
        self._events: list[EventRecord] = []
        self._batches: list[tuple[Callable[..., BatchRecord], tuple[Any, ...]]] = []
        self._memory: list[MemoryRecord] = []
        self._gc_began = 0
        self.num_steps = 0
        gc.callbacks.append(self._on_gc)
        os.register_at_fork(after_in_child=self.close)

    def step(self, make: Callable[..., StepRecord], *values: Any) -> None:
        """Keep one step, whose record is made of these values when it is written."""
        self._steps.append((make, values))
        self.num_steps += 1

    def window(self, record: WindowRecord) -> None:
        """Keep one window."""
        self._windows.append(record)

    def event(self, kind: str, *, at_ns: int | None = None, duration_ns: int = 0, detail: str = "") -> None:
        """Keep an event that began at `at_ns`; None: that ends now."""
        at_ns = self._clock() - duration_ns if at_ns is None else at_ns
        self._events.append(
            EventRecord(kind=kind, at_ns=at_ns, duration_ns=duration_ns, step=self.num_steps, detail=detail)
        )

    def ran(self, kind: str, begin_ns: int, end_ns: int) -> None:
        """Keep a pass of forwards without gradients."""
        self.event(kind, at_ns=begin_ns, duration_ns=end_ns - begin_ns)

    def batch(self, make: Callable[..., BatchRecord], *values: Any) -> None:
        """Keep one batch of a loader, made like a step."""
        self._batches.append((make, values))

    def memory(self, record: MemoryRecord) -> None:
        """Keep what the memory holds."""
        self._memory.append(record)

    def flush(self) -> None:
        """Append what is kept to the files."""
        steps, windows, events, batches = self._steps, self._windows, self._events, self._batches
        memory, self._memory = self._memory, []
        # First, not last: a signal handler that flushes while this writes must not write the same lines again.
        self._steps, self._windows, self._events, self._batches = [], [], [], []
        rundir.append_lines(self._directory / rundir.STEPS, [make(*values) for make, values in steps])
        rundir.append_lines(self._directory / rundir.WINDOWS, windows)
        rundir.append_lines(self._directory / rundir.EVENTS, events)
        rundir.append_lines(self._directory / rundir.LOADER, [make(*values) for make, values in batches])
        rundir.append_lines(self._directory / rundir.MEMORY, memory)

    def close(self) -> None:
        """Stop listening to the garbage collector."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began = self._clock()
            return
        duration = self._clock() - self._gc_began
        if duration >= LEAST_GC_NS:
            self.event("gc", duration_ns=duration, detail=f"generation {info['generation']}")
