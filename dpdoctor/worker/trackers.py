"""wandb stays at home: its runs are offline, and the program that it starts writes to the overlay.

That program opens files by itself, past what Python is made to see; so it is told other places.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dpdoctor.worker.base import lines
from dpdoctor.worker.overlay.overlay import Overlay

MODE, DIRECTORY = "WANDB_MODE", "WANDB_DIR"
# In any other mode it uploads.
_AT_HOME = ("offline", "disabled", "dryrun")


def keep_home(cwd: str, overlay: Overlay | None, warn: Callable[[str], None]) -> None:
    """Have wandb, once the script imports it, upload nothing and leave nothing in the script's folder.

    A WANDB_MODE that the user set stays. `overlay`: None where the script may write. `warn` is told of every run.
    """
    tracker = _Wandb(cwd, overlay, warn, is_free=MODE in os.environ)
    os.environ.setdefault(MODE, "offline")
    sys.meta_path.insert(0, _Importing("wandb", tracker.imported))


class _Wandb:
    def __init__(self, cwd: str, overlay: Overlay | None, warn: Callable[[str], None], *, is_free: bool) -> None:
        self._cwd = cwd
        self._overlay = overlay
        self._warn = warn
        self._is_free = is_free

    def imported(self, module: ModuleType) -> None:
        """Stand in for its `init`."""
        init = getattr(module, "init", None)
        if init is None:  # a folder of runs, which can be imported too
            return
        parameters = inspect.signature(init)

        @functools.wraps(init)
        def init_at_home(*args: Any, **options: Any) -> Any:
            given = parameters.bind_partial(*args, **options)
            self._arrange(given.arguments)
            return init(*given.args, **given.kwargs)

        module.init = init_at_home  # type: ignore[attr-defined]

    def _arrange(self, given: dict[str, Any]) -> None:
        mode = given.get("mode") or os.environ.get(MODE)
        if not self._is_free and mode not in _AT_HOME:
            mode = given["mode"] = "offline"
        if self._overlay is not None:
            given["dir"] = self._place(self._overlay, given.get("dir") or os.environ.get(DIRECTORY) or self._cwd)
        if mode == "offline" and not self._is_free:
            deleted = "; its folder is in the overlay and deleted at the end" if self._overlay is not None else ""
            self._warn(f"wandb at {lines.caller()} runs offline: nothing is uploaded{deleted}. WANDB_MODE changes that")

    def _place(self, overlay: Overlay, directory: Any) -> str:
        """Return where the folder of runs lies that wandb would make in a directory."""
        try:
            place = overlay.prepare(f"{overlay.locate(directory)}/wandb")
        except OSError:  # there is no such directory, and wandb takes another
            place = overlay.prepare(f"{self._cwd}/wandb")
        return os.path.dirname(place)  # noqa: PTH120


class _Importing(importlib.abc.MetaPathFinder):
    """Tells `imported` of a module when it is imported; libraries that only ask for its spec import nothing."""

    def __init__(self, name: str, imported: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._imported = imported
        self._asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - as importlib calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have, with a loader that tells; None for other modules."""
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_tell(module: ModuleType) -> None:
                run(module)
                self._imported(module)

            spec.loader.exec_module = run_and_tell  # type: ignore[method-assign]
        return spec
