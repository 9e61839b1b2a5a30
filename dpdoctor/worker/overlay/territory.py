"""Which paths hold the user's results, so that a run must not change them, and which may be written as they are."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # which imports torch, and this is asked before
    from dpdoctor.worker.base.patches import Patches

# No files of anybody; links in them (/proc/self/fd/1) lead to no path, so they are not followed either.
KERNEL = ("/dev/", "/proc/", "/sys/")
# Memory that processes share, where users lay data too.
SHARED_MEMORY = "/dev/shm/"
# How a process's maps (proc(5)) tell of shared memory that it writes to, unless the file is gone.
_MAPPED = re.compile(rf"(?m)^\S+ .w.s .* {SHARED_MEMORY}(.+?)(?<! \(deleted\))$")
# Directories in which one tool keeps what it compiled or fetched, and nobody keeps anything else.
_CACHES = (
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR"),
    *("HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE"),
)
# What tools keep in a directory that may be anybody's, such as one for all that is large.
_OF_TORCH = ("hub", "kernels")
_OF_HUGGING_FACE = ("assets", "datasets", "evaluate", "hub", "metrics", "modules", "xet")
_OF_OTHERS = ("clip", "flashinfer", "fontconfig", "matplotlib", "numba", "nvidia", "triton", "vllm", "whisper")
_INDUCTOR = "torchinductor_"
# Characters that tempfile draws for a name.
_DRAWN = 8


class Territory:
    """Divides paths into protected and free ones.

    Free are `own` (the directory that dpdoctor itself writes to), caches, and what Python's tempfile names in the
    temporary directory: sockets and the like are found there by other processes. What the script names there itself is
    protected like all else: other ranks name it alike. In shared memory what was there before is protected. The
    `homes`, where the script lives and runs, are protected even below a cache or the temporary directory.
    """

    def __init__(self, own: Path, homes: Iterable[Path]) -> None:
        self._own = _below([own])
        self._drawn: set[str] = set()
        self._temporary = _below(temporary())
        self._caches = _below(caches())
        self._in_memory = frozenset(in_shared_memory())
        shared = self._temporary + self._caches
        # A script that stands in the temporary directory itself does not own what everybody has there.
        self._homes = tuple(home for home in _below(homes) if home.startswith(shared) and home not in self._temporary)

    def is_free(self, path: str) -> bool:
        """Return whether this absolute path without links may be changed."""
        inside = path + os.sep
        if inside.startswith(self._own):
            return True
        if inside.startswith(self._homes):
            return False
        if inside.startswith(self._caches):
            return True
        if inside.startswith(KERNEL):
            name = inside.removeprefix(SHARED_MEMORY).partition(os.sep)[0]
            return is_kernels(inside) or name not in self._in_memory
        return any(
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


def is_kernels(path: str) -> bool:
    """Return whether a path leads to nobody's file."""
    return path.startswith(KERNEL) and not path.startswith(SHARED_MEMORY)


def in_shared_memory() -> list[str]:
    """Return the names that lie in shared memory now."""
    try:
        return os.listdir(SHARED_MEMORY)  # noqa: PTH208 - they are text
    except OSError:
        return []


def mapped_to_write() -> set[str]:
    """Return what some process has mapped to write to it, as far as one may see: paths below shared memory."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            found.update(_MAPPED.findall(maps.read_text(errors="surrogateescape")))
    return found


def caches() -> list[str]:
    """Return where torch, Triton, inductor, CUDA, Hugging Face and others keep what they compiled or fetched.

    Those that are there: one that a script makes is a directory like any other.
    """
    found = [*_caches(), *_in(_cache_home(), _OF_OTHERS)]
    return [path for path in found if os.path.isdir(path)]  # noqa: PTH112 - no wall opens what is not there


def _caches() -> list[str]:
    variables, home = os.environ, _cache_home()
    inductor = [entry.path for entry in os.scandir(tempfile.gettempdir()) if entry.name.startswith(_INDUCTOR)]
    return [
        *inductor,
        *(path for name in _CACHES if (path := _expanded(variables.get(name, ""))) and not _is_broad(path)),
        *_in(variables.get("TORCH_HOME") or f"{home}/torch", _OF_TORCH),
        *_in(variables.get("HF_HOME") or f"{home}/huggingface", _OF_HUGGING_FACE),
        *_in(home, ("torch_extensions",)),
        *map(_expanded, ("~/.triton", "~/.nv")),
    ]


def _cache_home() -> str:
    return os.environ.get("XDG_CACHE_HOME") or "~/.cache"


def _in(directory: str, names: Iterable[str]) -> list[str]:
    return [f"{_expanded(directory)}/{name}" for name in names]


def _expanded(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - they are text


def _is_broad(path: str) -> bool:
    """Return whether a user's home lies in a directory, which then is no cache."""
    return _below([_expanded("~")])[0].startswith(_below([path])[0])


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
