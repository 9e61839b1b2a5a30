"""Which paths hold the user's results, so that a run must not change them, and which may be written as they are."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # which imports torch, and this is asked before
    from dpdoctor.worker.base.patches import Patches

# No files of anybody; links in them (/proc/self/fd/1) lead to no path, so they are not followed either.
KERNEL = ("/dev/", "/proc/", "/sys/")
_CACHES = (
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "NUMBA_CACHE_DIR"),
)


_INDUCTOR = "torchinductor_"
# Characters that tempfile draws for a name.
_DRAWN = 8


class Territory:
    """Divides paths into protected and free ones.

    Free are `own` (the directory that dpdoctor itself writes to), caches, and what Python's tempfile names in the
    temporary directory: sockets and the like are found there by other processes. What the script names there itself is
    protected like all else: other ranks name it alike. The `homes`, where the script lives and runs, are protected even
    below a cache or the temporary directory.
    """

    def __init__(self, own: Path, homes: Iterable[Path]) -> None:
        self._own = _below([own])
        self._drawn: set[str] = set()
        self._temporary = _below(temporary())
        self._caches = _below(caches())
        shared = self._temporary + self._caches
        # A script that stands in the temporary directory itself does not own what everybody has there.
        self._homes = tuple(home for home in _below(homes) if home.startswith(shared) and home not in shared)

    def is_free(self, path: str) -> bool:
        """Return whether this absolute path without links may be changed."""
        inside = path + os.sep
        if inside.startswith(KERNEL) or inside.startswith(self._own):
            return True
        if inside.startswith(self._homes):
            return False
        return inside.startswith(self._caches) or any(
            inside.startswith(directory) and self._is_named(inside[len(directory) :].partition(os.sep)[0])
            for directory in self._temporary
        )

    def watch(self, patches: Patches) -> None:
        """Learn what tempfile names from now on; a child that is forked goes on by itself."""
        names = vars(tempfile)["_RandomNameSequence"]
        draw = vars(names)["__next__"]

        def drawn(sequence: Any) -> str:
            name: str = draw(sequence)
            self._drawn.add(name)
            return name

        patches.replace(names, "__next__", drawn)

    def _is_named(self, entry: str) -> bool:
        """Return whether a name in the temporary directory is one that tempfile drew, between prefix and suffix.

        torch names one directory of its own there.
        """
        ends = range(_DRAWN, len(entry) + 1)
        return entry.startswith(_INDUCTOR) or any(entry[end - _DRAWN : end] in self._drawn for end in ends)


def temporary() -> list[str]:
    """Return the directories for temporary files: shared memory is below /dev."""
    return [tempfile.gettempdir()]


def caches() -> list[str]:
    """Return where torch, Triton, inductor, CUDA, Hugging Face and others keep what they compiled or fetched.

    Those that are there: one that a script makes is a directory like any other.
    """
    return [path for path in _caches() if os.path.isdir(path)]  # noqa: PTH112 - no wall opens what is not there


def _caches() -> list[str]:
    variables = os.environ
    inductor = [entry.path for entry in os.scandir(tempfile.gettempdir()) if entry.name.startswith(_INDUCTOR)]
    named = [variables[name] for name in _CACHES if variables.get(name)]
    usual = [variables.get("XDG_CACHE_HOME") or "~/.cache", "~/.triton", "~/.nv"]
    return [os.path.expanduser(path) for path in (*inductor, *named, *usual)]  # noqa: PTH111 - they are text


def make_caches() -> None:
    """Make the caches that are not there yet, where compiled code looks for what was put into them.

    What is put there without a wall of the kernel's would lie in the overlay, which compiled code does not see.
    """
    for path in _caches():
        with contextlib.suppress(OSError):
            os.makedirs(path, exist_ok=True)  # noqa: PTH103 - they are text


def _below(paths: Iterable[Path | str]) -> tuple[str, ...]:
    """Return the prefixes that all paths at or below these directories have, once a separator is appended to them."""
    return tuple(os.path.realpath(path).rstrip(os.sep) + os.sep for path in paths)
