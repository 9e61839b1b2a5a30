"""Which paths hold the user's results, so that a run must not change them, and which may be written as they are."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

# No files of anybody; links in them (/proc/self/fd/1) lead to no path, so they are not followed either.
KERNEL = ("/dev/", "/proc/", "/sys/")
_CACHES = (
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "NUMBA_CACHE_DIR"),
)


class Territory:
    """Divides paths into protected and free ones.

    Free are `own` (the directory that dpdoctor itself writes to), caches, and what is new in the temporary directory:
    sockets and the like are found there by other processes. The `homes`, where the script lives and runs, are
    protected even below a cache or the temporary directory.
    """

    def __init__(self, own: Path, homes: Iterable[Path]) -> None:
        self._began_ns = time.time_ns()
        self._own = _below([own])
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
        return inside.startswith(self._caches) or (inside.startswith(self._temporary) and not self._is_older(path))

    def _is_older(self, path: str) -> bool:
        """Return whether something stood at this path before the run and has not changed since."""
        try:
            return os.lstat(path).st_ctime_ns < self._began_ns
        except OSError:
            return False


def temporary() -> list[str]:
    """Return the directories for temporary files: shared memory is below /dev."""
    return [tempfile.gettempdir()]


def caches() -> list[str]:
    """Return where torch, Triton, inductor, CUDA, Hugging Face and others keep what they compiled or fetched."""
    variables = os.environ
    inductor = [entry.path for entry in os.scandir(tempfile.gettempdir()) if entry.name.startswith("torchinductor_")]
    named = [variables[name] for name in _CACHES if variables.get(name)]
    usual = [variables.get("XDG_CACHE_HOME") or "~/.cache", "~/.triton", "~/.nv"]
    return [*inductor, *named, *(os.path.expanduser(path) for path in usual)]  # noqa: PTH111 - they are text


def _below(paths: Iterable[Path | str]) -> tuple[str, ...]:
    """Return the prefixes that all paths at or below these directories have, once a separator is appended to them."""
    return tuple(os.path.realpath(path).rstrip(os.sep) + os.sep for path in paths)
