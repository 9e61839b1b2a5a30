"""torch's profiler: our own, which stops once no other thread is at work, and the script's, which must not record.

Backends end their spans and free their tensors in threads of their own, a little after training goes on. Where the
profiler was stopped in that moment, the heap was corrupted. Seen with torch 2.14 and gloo on busy cores: of 200
launches of tests/faults/scripts/one_thing_more.py one was killed by SIGABRT, with its main thread in
KinetoThreadLocalState::finalizeTrace and gloo's in AsyncAllreduceWork's destructor.
"""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler

from dpdoctor.worker.base.patches import Patches

_LOOK_S = 0.001
# A thread that waits for Python's lock sleeps too, and gets it while this one does.
_LOOKS = 3
_LONGEST_S = 0.2
_THREADS = Path("/proc/self/task")

KEPT = (
    "the script's own torch.profiler was kept from recording: it would slow what is measured, and there is one at a "
    "time. What it shows or exports is empty"
)


class Profile(torch.profiler.profile):
    """torch.profiler.profile, which lets other threads finish before it stops recording."""

    def prepare_trace(self) -> None:
        """Prepare to record, where others are kept from it, too."""
        with warnings.catch_warnings():
            # Some versions of torch warn that the next cycle forgets this one: there is one, and a script may have made
            # warnings errors.
            warnings.filterwarnings("ignore", message=".*Profiler clears events")
            super().prepare_trace()
        if isinstance(self.profiler, _Kept):
            self.profiler.__class__ = autograd_profiler.profile  # type: ignore[assignment]
            self.profiler._prepare_trace()

    def stop_trace(self) -> None:
        """Stop recording when the other threads sleep."""
        let_others_finish()
        super().stop_trace()


def let_others_finish() -> None:
    """Wait until the other threads sleep, for 0.2 s at most: some scripts' never do."""
    deadline = time.monotonic() + _LONGEST_S
    asleep = 0
    while asleep < _LOOKS and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        asleep = 0 if _another_thread_runs() else asleep + 1


def _another_thread_runs() -> bool:
    """Return whether the kernel runs or wants to run another thread of this process; never where it does not tell."""
    own = str(threading.get_native_id())
    return any(path.name != own and _state(path) in ("R", "D") for path in _THREADS.glob("*"))


def _state(thread: Path) -> str:
    """Return the third field of its stat; the second is a name in parentheses, which may hold anything."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][:1]
    except OSError:  # it has ended
        return ""


def keep_others(patches: Patches, warn: Callable[[str], None]) -> None:
    """Keep every profiler but ours from recording; `warn` is told when one would have begun.

    All of them come by torch.autograd.profiler.profile, torch.profiler.profile for each of its cycles. One that was
    made meanwhile stays empty when the patches are undone.
    """
    build = autograd_profiler.profile.__init__
    start_trace = torch.profiler.profile.start_trace

    @functools.wraps(build)
    def build_kept(profiler: Any, *args: Any, **kwargs: Any) -> None:
        build(profiler, *args, **kwargs)
        if type(profiler) is autograd_profiler.profile and profiler.enabled:
            profiler.__class__ = _Kept
            vars(profiler)["warn"] = warn

    @functools.wraps(start_trace)
    def start_kept(profiler: torch.profiler.profile) -> None:
        if isinstance(profiler.profiler, _Kept):
            profiler.profiler._start_trace()  # and write nothing of it into a trace of ours
        else:
            start_trace(profiler)

    patches.replace(autograd_profiler.profile, "__init__", build_kept)
    patches.replace(torch.profiler.profile, "start_trace", start_kept)
    for name in ("start", "step"):
        patches.replace(torch.profiler.profile, name, _without_marks(getattr(torch.profiler.profile, name)))


def _without_marks(method: Callable[[torch.profiler.profile], None]) -> Callable[[torch.profiler.profile], None]:
    """Return a method that marks no step where the profiler is not ours: steps are read from such marks."""

    @functools.wraps(method)
    def call(profiler: torch.profiler.profile) -> None:
        marks = profiler.record_steps
        profiler.record_steps = marks and isinstance(profiler, Profile)
        try:
            method(profiler)
        finally:
            profiler.record_steps = marks

    return call


class _Kept(autograd_profiler.profile):
    """A profiler of the script's that records nothing, and answers as one that nothing happened under."""

    warn: Callable[[str], None]

    def _prepare_trace(self) -> None:
        self.entered = True

    def _start_trace(self) -> None:
        self.warn(KEPT)

    def __exit__(self, *_: object) -> None:
        self.kineto_results = _Nothing()  # type: ignore[assignment]
        self._needs_processing = True

    def toggle_collection_dynamic(self, *_: object) -> None:
        """Leave what a profiler of ours records as it is."""


class _Nothing:
    """What Kineto gives of a time in which nothing happened, as far as torch's Python asks for it."""

    def __bool__(self) -> bool:
        return False

    def events(self) -> list[Any]:
        return []

    trace_activities = experimental_event_tree = events

    def trace_start_ns(self) -> int:
        return 0

    def save(self, path: str) -> None:
        if not Path(path).exists():  # a job that goes on may have a trace of its own there
            Path(path).write_text('{"traceEvents": []}')
