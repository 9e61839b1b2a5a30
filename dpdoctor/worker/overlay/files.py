"""Puts the diverted functions where the script, and what it imports, look for them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import os
import pathlib
import re
import shutil
import stat
import sys
import tempfile
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import torch

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.overlay.disk import posix
from dpdoctor.worker.overlay.diverted import Diverted
from dpdoctor.worker.overlay.overlay import Overlay

if TYPE_CHECKING:  # not every Python has it
    import sqlite3

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
# Where sqlite3.connect takes the class of what it returns, after the database.
_FACTORY = 5
_ATTACH = re.compile(
    r"""(?P<before>(?:^|;)\s*attach\s+(?:database\s+)?)(?P<name>'(?:[^']|'')*'|"[^"]*"|\?|[:@$]\w+)(?=\s+as\b)""", re.I
)


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
    _divert_imports(patches, overlay, _libraries(patches, diverted))
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
        _divert_databases(patches, diverted)
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


def _divert_imports(patches: Patches, overlay: Overlay, afterwards: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """Let imports find what the script wrote, and do what is to be done `afterwards` with a module, by its name."""
    for name in afterwards.keys() & sys.modules.keys():
        afterwards[name](sys.modules[name])
    finders = [_Written(overlay), _Afterwards({name: afterwards[name] for name in afterwards.keys() - sys.modules})]
    for finder in finders:
        sys.meta_path.insert(0, finder)
        patches.add(
            f"sys.meta_path: {type(finder).__name__.strip('_')}", functools.partial(sys.meta_path.remove, finder)
        )


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


def _divert_databases(patches: Patches, diverted: Diverted) -> None:
    """Let databases of sqlite, which opens its files itself, be copies, as the script opens or attaches them."""
    import sqlite3

    place = functools.partial(_placed, diverted)
    connect, connection = sqlite3.connect, _connection(place)

    @functools.wraps(connect)
    def connect_to_copy(database: Any, *args: Any, **options: Any) -> Any:
        if len(args) < _FACTORY:
            options.setdefault("factory", connection)
        return connect(place(database), *args, **options)

    for module in (sqlite3, sqlite3.dbapi2):
        patches.replace(module, "connect", connect_to_copy)
        patches.replace(module, "Connection", connection)


def _placed(diverted: Diverted, name: Any) -> Any:
    """Return where sqlite finds the copy of a database; those in memory have no file."""
    if isinstance(name, str) and name.startswith("file:"):
        path, mark, query = name.removeprefix("file:").partition("?")
        if not path or "mode=memory" in query or path.startswith(":"):
            return name
        find = diverted.to_read if re.search(r"\b(mode=ro|immutable=1)\b", query) else _to_change(diverted)
        found = os.fsdecode(find(unquote(path.removeprefix("//"))))
        return f"file:{quote(found)}{mark}{query}"
    return name if isinstance(name, str) and (not name or name.startswith(":")) else _to_change(diverted)(name)


def _to_change(diverted: Diverted) -> Callable[[Any], Any]:
    return functools.partial(diverted.to_write, flags=os.O_RDWR | os.O_CREAT)


def _connection(place: Callable[[Any], Any]) -> type[sqlite3.Connection]:
    """Return the class of connections to copies. What is asked for the place of a copy gives that very place."""
    import sqlite3

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            return super().execute(*_attaching(sql, parameters, place))

        def executescript(self, sql_script: str, /) -> Any:
            return super().executescript(_attaching(sql_script, (), place)[0])

    class Connection(sqlite3.Connection):
        def __init__(self, database: Any, *args: Any, **options: Any) -> None:
            super().__init__(place(database), *args, **options)

        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            return super().execute(*_attaching(sql, parameters, place))

        def executescript(self, sql_script: str, /) -> Any:
            return super().executescript(_attaching(sql_script, (), place)[0])

    for kind in (Cursor, Connection):
        kind.__module__, kind.__qualname__ = "sqlite3", kind.__name__
    return Connection


def _attaching(sql: str, parameters: Any, place: Callable[[Any], Any]) -> tuple[str, Any]:
    """Return a statement and its parameters with other names for the databases that it attaches."""
    given = parameters

    def renamed(match: re.Match[str]) -> str:
        nonlocal given
        name = match["name"]
        if name == "?":
            given = (place(given[0]), *given[1:])
        elif name[0] in ":@$":
            given = {**given, name[1:]: place(given[name[1:]])}
        else:
            quoted = place(name[1:-1].replace(name[0] * 2, name[0])).replace("'", "''")
            return f"{match['before']}'{quoted}'"
        return match[0]

    return _ATTACH.sub(renamed, sql) if "ttach" in sql or "TTACH" in sql else sql, given
