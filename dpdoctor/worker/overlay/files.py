"""Puts the diverted functions where the script, and what it imports, look for them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import os
import pathlib
import shutil
import sys
import tempfile
from abc import ABCMeta
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.overlay import imports
from dpdoctor.worker.overlay.disk import posix
from dpdoctor.worker.overlay.diverted import Diverted
from dpdoctor.worker.overlay.overlay import Overlay

_READING = ("getxattr", "listxattr", "statvfs")
_CHANGING = ("chmod", "chown", "removexattr", "setxattr", "truncate", "utime")
_MAKING = ("mkdir", "mkfifo", "mknod")
_REMOVING = ("remove", "rmdir", "unlink")
_OWN_METHODS = ("access", "chdir", "getcwd", "getcwdb", "link", "listdir", "rename", "scandir", "symlink")
# Sets in which `os` says what its functions can do; the diverted ones can do the same.
_ABILITIES = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids")
# These keep the originals: the overlay works with them, and so does Python when it imports.
_UNTOUCHED = ("_io", "dpdoctor.worker.", "importlib.", "_frozen_importlib")
_DESCRIPTORS = {"fchmod": "chmod", "fchown": "chown"}
# Functions of libraries that read and write images, the place and the name of their path, and how it is found.
_IMAGES = {
    "torchvision.io.image": (("write_file", 0, "filename", "to_write"), ("read_file", 0, "path", "to_read")),
    "cv2": (("imwrite", 0, "filename", "to_write"), ("imread", 0, "filename", "to_read")),
}


def divert(patches: Patches, overlay: Overlay) -> None:
    """Let everything that the script writes by Python's file functions or torch's go to the overlay.

    Not reached: child processes that start anew, and compiled libraries that open files themselves.
    """
    diverted = Diverted(overlay)
    functions = _functions(diverted)
    for name in _ABILITIES:
        able = getattr(os, name)
        patches.replace(os, name, able | {new for original, new in functions.items() if original in able})
    patches.replace(sys.modules["_frozen_importlib_external"], "_os", posix)
    _replace_everywhere(patches, functions)
    patches.replace(io, "FileIO", _file_io(diverted))
    _divert_compiled(patches, diverted)
    imports.divert(patches, overlay, _libraries(patches, diverted))
    # By file descriptors, rmtree would not see the overlay. And Python's own *.pyc are files in the user's folder, too.
    patches.replace(shutil, "_use_fd_functions", False)
    patches.replace(sys, "dont_write_bytecode", True)


def _functions(diverted: Diverted) -> dict[Any, Callable[..., Any]]:
    """Return what stands in for each original."""
    functions = {io.open: _function(io.open, diverted.open), posix.open: _function(posix.open, diverted.os_open)}
    functions.update({getattr(posix, name): diverted.reading(getattr(posix, name)) for name in _READING})
    functions[posix.readlink] = diverted.reading(posix.readlink, follow=False)
    functions[posix.stat] = diverted.looking(posix.stat)
    functions[posix.lstat] = diverted.looking(posix.lstat, follow=False)
    functions.update({getattr(posix, name): diverted.changing(getattr(posix, name)) for name in _CHANGING})
    functions.update(
        {
            getattr(posix, name): diverted.changing_descriptor(getattr(posix, path))
            for name, path in _DESCRIPTORS.items()
        }
    )
    functions[posix.lchown] = diverted.changing(posix.lchown, follow=False)
    functions.update({getattr(posix, name): diverted.making(getattr(posix, name)) for name in _MAKING})
    functions.update({getattr(posix, name): diverted.removing(getattr(posix, name)) for name in _REMOVING})
    functions.update(
        {getattr(posix, name): _function(getattr(posix, name), getattr(diverted, name)) for name in _OWN_METHODS}
    )
    functions[posix.replace] = _function(posix.replace, diverted.rename)
    return functions


def _function(original: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is found by the original's name, as pickle does, and copied as one."""

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        return method(*args, **options)

    if original is io.open:
        call.__module__ = "io"  # where `_io`, which keeps its own, would be asked for it
    return call


def _file_io(diverted: Diverted) -> type:
    """Return what stands in for io.FileIO, of which files that were opened otherwise are instances, too."""
    real = io.FileIO
    # An overlay within an overlay finds this class there; scripts derive from abstract classes beside it.
    base = type(real) if isinstance(real, ABCMeta) else ABCMeta

    class Like(base):  # type: ignore[misc,valid-type]
        def __instancecheck__(self, instance: object) -> bool:
            return isinstance(instance, real) if self is found else super().__instancecheck__(instance)

        def __subclasscheck__(self, subclass: type) -> bool:
            return issubclass(subclass, real) if self is found else super().__subclasscheck__(subclass)

    def opened(path: Any, flags: int) -> int:
        return diverted.os_open(path, flags, 0o666)

    def __init__(self: Any, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:  # noqa: N807
        plain = opener is None and not isinstance(file, int)
        real.__init__(self, file, mode, closefd, opened if plain else opener)

    found = Like("FileIO", (real,), {"__init__": __init__, "__module__": "io"})
    return found


def _replace_everywhere(patches: Patches, functions: dict[Any, Callable[..., Any]]) -> None:
    """Replace the originals wherever a module holds them: `from os import replace` makes a second reference."""
    # Not before: when it is imported it looks through what is there.
    from dpdoctor.worker.overlay import holders

    for module, held in holders.modules():
        if not module.__name__.startswith(_UNTOUCHED):
            for name, original in held:
                if original in functions:
                    patches.replace(module, name, functions[original])
    for kind in _holders():
        for name, original in holders.file_functions(kind):
            if original in functions:
                patches.replace(kind, name, staticmethod(functions[original]))
    # Named temporary files hold `unlink` as the default of an argument, in a method that differs by Python's version.
    closer = vars(tempfile)["_TemporaryFileCloser"]
    for name, method in list(vars(closer).items()):
        if isinstance(method, FunctionType) and "unlink" in method.__code__.co_varnames[: method.__code__.co_argcount]:
            patches.replace(closer, name, functools.partialmethod(method, unlink=functions[posix.unlink]))


def _holders() -> list[type]:
    """Return the classes of the standard library that hold file functions: which, differs by Python's version."""
    modules = (pathlib, sys.modules.get("glob"), sys.modules.get("pathlib._local"))
    return [kind for module in modules if module for kind in vars(module).values() if isinstance(kind, type)]


def _divert_compiled(patches: Patches, diverted: Diverted) -> None:
    """Give another path to functions that open files without Python."""
    # numpy's text functions look up `open` in a table, which they fill when it is first asked for its keys.
    openers = importlib.import_module("numpy.lib._datasource")._file_openers
    openers.keys()
    patches.replace(openers, "_file_openers", {**openers._file_openers, None: diverted.open})
    places: list[tuple[Any, str, int, str, Callable[[Any], Any]]] = [
        (torch._C.ScriptModule, "save", 1, "filename", diverted.to_write),
        (torch._C.ScriptFunction, "save", 1, "filename", diverted.to_write),
        (torch.autograd.profiler.profile, "export_chrome_trace", 1, "path", diverted.to_write),
        (torch.jit, "load", 0, "f", diverted.to_read),
    ]
    if importlib.util.find_spec("safetensors"):
        safetensors = importlib.import_module("safetensors")
        places += [
            (safetensors, "serialize_file", 1, "filename", diverted.to_write),
            (safetensors, "safe_open", 0, "filename", diverted.to_read),
        ]
    if importlib.util.find_spec("_sqlite3"):
        importlib.import_module("dpdoctor.worker.overlay.databases").divert(patches, diverted)
    for owner, name, position, keyword, place in places:
        patches.replace(owner, name, _with_place(getattr(owner, name), position, keyword, place))
    for name, place in (("PyTorchFileWriter", diverted.to_write), ("PyTorchFileReader", diverted.to_read)):
        patches.replace(torch._C, name, _kind_with_place(getattr(torch._C, name), place))
    patches.replace(torch.UntypedStorage, "from_file", staticmethod(_mapping(torch.UntypedStorage.from_file, diverted)))
    patches.replace(torch, "from_file", _mapping(torch.from_file, diverted))


def _libraries(patches: Patches, diverted: Diverted) -> dict[str, Callable[[ModuleType], None]]:
    """Return what to do with libraries whose compiled code opens files, when they have been imported."""

    def images(module: ModuleType) -> None:
        both = [module] if module.__name__ == "cv2" else [module, sys.modules["torchvision.io"]]
        for name, position, keyword, place in _IMAGES[module.__name__]:
            original = getattr(module, name)
            replaced = _with_place(original, position, keyword, getattr(diverted, place))
            for owner in both:
                if vars(owner).get(name) is original:
                    patches.replace(owner, name, replaced)

    return dict.fromkeys(_IMAGES, images)


def _with_place(
    real: Callable[..., Any], position: int, keyword: str, place: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Return `real` with another path as the argument that stands at `position` or is called `keyword`."""

    @functools.wraps(real, updated=())
    def call(*args: Any, **options: Any) -> Any:
        if keyword in options:
            options[keyword] = place(options[keyword])
        elif len(args) > position:
            args = (*args[:position], place(args[position]), *args[position + 1 :])
        return real(*args, **options)

    return call


def _mapping(real: Callable[..., Any], diverted: Diverted) -> Callable[..., Any]:
    """Return `real`, which maps a file into memory, for another file: one that is shared is made and written to."""

    @functools.wraps(real, updated=())
    def call(filename: Any, shared: Any = False, *args: Any, **options: Any) -> Any:
        at = diverted.to_write(filename, os.O_RDWR | os.O_CREAT) if shared else diverted.to_read(filename)
        return real(at, shared, *args, **options)

    return call


def _kind_with_place(real: Any, place: Callable[[Any], Any]) -> type:
    """Return a class like `real`, a pybind11 class that torch also asks for with isinstance, for another file."""

    def __init__(self: Any, file: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - it is put into a class
        real.__init__(self, place(file), *args, **options)

    return type(real.__name__, (real,), {"__init__": __init__, "__module__": real.__module__})
