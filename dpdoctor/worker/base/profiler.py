"""torch's profiler, stopped once no other thread is at work.

Backends end their spans and free their tensors in threads of their own, a little after training goes on. Where the
profiler was stopped in that moment, the heap was corrupted. Seen with torch 2.14 and gloo on busy cores: of 200
launches of tests/faults/scripts/one_thing_more.py one was killed by SIGABRT, with its main thread in
KinetoThreadLocalState::finalizeTrace and gloo's in AsyncAllreduceWork's destructor.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch

_LOOK_S = 0.001
# A thread that waits for Python's lock sleeps too, and gets it while this one does.
_LOOKS = 3
_LONGEST_S = 0.2
_THREADS = Path("/proc/self/task")


class Profile(torch.profiler.profile):
    """torch.profiler.profile, which lets other threads finish before it stops recording."""

    def stop_trace(self) -> None:
        """Stop recording when the other threads sleep, at the latest after 0.2 s: some scripts' never do."""
        deadline = time.monotonic() + _LONGEST_S
        asleep = 0
        while asleep < _LOOKS and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            asleep = 0 if _another_thread_runs() else asleep + 1
        super().stop_trace()


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
