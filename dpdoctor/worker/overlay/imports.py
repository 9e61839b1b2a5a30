"""Imports: of modules that the script has written itself, and of libraries whose compiled code opens files."""

from __future__ import annotations

import importlib.util
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.overlay.overlay import Overlay


def divert(patches: Patches, overlay: Overlay, afterwards: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """Let imports find what the script wrote, and do what is to be done `afterwards` with a module, by its name."""
    for name in afterwards.keys() & sys.modules.keys():
        afterwards[name](sys.modules[name])
    finders = [_Written(overlay), _Afterwards({name: afterwards[name] for name in afterwards.keys() - sys.modules})]
    for finder in finders:
        sys.meta_path.insert(0, finder)
        patches.add(f"sys.meta_path: {type(finder).__name__.strip('_')}", partial(sys.meta_path.remove, finder))


class _Written(MetaPathFinder):
    """Finds modules that lie in the overlay, where Python itself does not look."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if not self._overlay.differences.is_any:
            return None
        name = fullname.rpartition(".")[2]
        for directory in sys.path if path is None else path:
            package, module = f"{directory or '.'}/{name}/__init__.py", f"{directory or '.'}/{name}.py"
            for file in (package, module):
                place = self._place(file)
                if place:
                    inside = [f"{directory}/{name}"] if file == package else None
                    return importlib.util.spec_from_file_location(fullname, place, submodule_search_locations=inside)
        return None

    def _place(self, file: str) -> str:
        """Return where a file lies that the script made or changed; empty where it did not."""
        try:
            at = self._overlay.locate(file)
        except OSError:
            return ""
        place, kind = self._overlay.place(at), self._overlay.kind(at)
        return place if place and place != at and kind is not None and stat.S_ISREG(kind) else ""


class _Afterwards(MetaPathFinder):
    """Lets other finders find a module, and has something done when it has been imported."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        action = self._actions.pop(fullname, None)  # asked again, below, it finds nothing
        spec = importlib.util.find_spec(fullname) if action else None
        if action is None or spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            action(module)

        loader.exec_module = execute_and_act
        return spec
