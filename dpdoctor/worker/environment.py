"""What a script finds around it, as if it ran alone: no launcher, no other ranks, a terminal, wandb offline.

wandb starts a program that opens files by itself, past what Python is made to see: it is told other places.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.abc
import importlib.util
import inspect
import mmap
import os
import pty
import struct
import sys
import termios
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel

from dpdoctor import rundir
from dpdoctor.spec import (
    AMONG,
    DISTRIBUTES_ITSELF,
    INJECT,
    REFUSAL_VARIABLE,
    SPAWNS,
    TASK_VARIABLE,
    starts_its_ranks,
)
from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches

if TYPE_CHECKING:
    from dpdoctor.worker.overlay.overlay import Overlay

ONE_DEVICE = (
    "dpdoctor converts scripts that are written for one device; give this one the options with which it trains on one, "
    "or have it observed as it is: dpdoctor profile {} --modes native{}"
)

REFUSED = "; a process that it started was refused a process group: {}"

# What torch says where there is no group.
NO_GROUP = "Default process group has not been initialized, please make sure to call init_process_group."

# What tells a rank its place; torchrun's ROLE_NAME does not, and may be the user's own.
_HIDDEN = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)
_HIDDEN_PREFIXES = ("TORCHELASTIC_", TASK_VARIABLE)
# The modules whose functions read os.environ for who calls them.
_OF_ENVIRONMENT = ("os", "collections.abc")
# Packages that ask in order to merge metrics over ranks, and draw no samples.
_OF_METRICS = frozenset({"torchmetrics", "torcheval"})
_ROWS, _COLUMNS = 24, 80
_STDIN = 0
_WANDB_MODE, _WANDB_DIR = "WANDB_MODE", "WANDB_DIR"
# In any other mode it uploads.
_AT_HOME = ("offline", "disabled", "dryrun")


def hide_launcher() -> None:
    """Remove the launch variables, or scripts that look for them distribute themselves."""
    for name in filter(_is_hidden, list(os.environ)):
        del os.environ[name]


def _is_hidden(name: str) -> bool:
    return name in _HIDDEN or name.startswith(_HIDDEN_PREFIXES)


class _Shared:
    """A text that is one for this process and all that it forks."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def get(self) -> str:
        return self._page[:].rstrip(b"\0").decode(errors="replace")

    def set(self, text: str) -> None:
        self._page[:] = text.encode()[: len(self._page)].ljust(len(self._page), b"\0")


class Asked:
    """Which code, other than torch, asks for the rank that is hidden from it, here or in a process that is forked."""

    def __init__(self) -> None:
        # Begins with its weight: processes that were forked before somebody asked are to know that, too.
        self._told = _Shared()

    def by(self) -> str:
        """Return the script's first line that asked, else the first library with the line that called it."""
        return self._told.get()[1:]

    def note(self, asking: FrameType) -> None:
        """Note who asks; the script's own line says more than a library, of which many ask in order to log."""
        is_own = lines.is_users(asking.f_code.co_filename)
        if not is_own and _package(asking) in _OF_METRICS:
            return
        weight = "2" if is_own else "1"
        if weight > self._told.get()[:1]:
            at = lines.caller()
            self._told.set(f"{weight}{at if is_own else f'{_package(asking)} ({at})'}")

    def watch_environment(self, patches: Patches) -> None:
        """Note who reads a variable that is hidden; reading others takes no longer."""
        _hold_environment(_Variables(vars(os.environ)["_data"], self))
        patches.add("os.environ", lambda: _hold_environment(dict(vars(os.environ)["_data"])))


class _Variables(dict[bytes, bytes]):
    """What os.environ holds: Python asks for what is missing in `__missing__`, and for nothing else."""

    def __init__(self, found: dict[bytes, bytes], asked: Asked) -> None:
        super().__init__(found)
        self._asked = asked

    def __missing__(self, name: bytes) -> NoReturn:
        if _is_hidden(os.fsdecode(name)):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_globals.get("__name__") in _OF_ENVIRONMENT:
                frame = frame.f_back
            if frame is not None and not _is_trusted(frame):
                self._asked.note(frame)
        raise KeyError(name)

    def __reduce__(self) -> tuple[Any, ...]:  # scripts copy os.environ
        return dict, (dict(self),)


def _hold_environment(variables: dict[bytes, bytes]) -> None:
    for environment in (os.environ, os.environb):
        vars(environment)["_data"] = variables


def hide_process_group(
    patches: Patches, of_children: Patches, fail: Callable[[str], NoReturn], asked: Asked, named: str
) -> None:
    """Answer the script, which is `named` so in a command, as if it ran alone; end the mode when it distributes itself.

    `torch.distributed.is_initialized()` is False for everyone but torch: a script, or a metrics library, that takes
    its distributed path would wait for ranks that take none. In loader workers, too: the group that they inherit is
    ours. There `of_children` stays in place.
    """
    original = dist.is_initialized

    def is_initialized() -> bool:
        asking = sys._getframe(1)
        if _is_trusted(asking):
            return original()
        asked.note(asking)
        return False

    of_children.replace(dist, "is_initialized", is_initialized)
    for name in ("get_rank", "get_world_size"):
        _deny(of_children, name, asked)
    asked.watch_environment(of_children)
    refuse_distribution(patches, fail, named)


class ChildRefusal:
    """Refuses processes that the script starts a process group of their own, and tells this one: there ranks train.

    Those that it forks have what is patched here; new interpreters, what sitecustomize finds in their environment.

    Attributes:
        reason: for which the script is not converted; None: no process asked for a group.
    """

    def __init__(self, of_children: Patches, directory: Path, named: str) -> None:
        self._directory = directory
        self._named = named
        _refuse(of_children, dist, "init_process_group", partial(_tell_refusal, directory))
        os.environ[REFUSAL_VARIABLE] = str(directory)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(INJECT), os.environ.get("PYTHONPATH")]))

    @property
    def reason(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return _with_way_out((self._directory / rundir.REFUSAL).read_text(), self._named)
        return None

    @property
    def hint(self) -> str:
        """Return, as the end of a message, what a script was refused that trained by itself; or nothing."""
        return "" if self.reason is None else REFUSED.format(self.reason)


def _tell_refusal(directory: Path, told: str) -> NoReturn:
    (directory / rundir.REFUSAL).write_text(told)
    raise RuntimeError(told)


def refuse_in_child(directory: Path, world_size: int) -> NoReturn:
    """Refuse a new interpreter the group that it has made, and tell the rank with this directory why.

    Raises:
        RuntimeError: always.
    """
    what = f"torch.distributed.init_process_group{AMONG}{world_size} ranks,"
    _tell_refusal(directory, _distributes(what, lines.caller()))


def refuse_distribution(patches: Patches, fail: Callable[[str], NoReturn], named: str) -> None:
    """End the mode when the script, which is `named` so in a command, starts ranks of its own, or joins them."""

    def refuse(told: str) -> NoReturn:
        fail(_with_way_out(told, named))

    _refuse(patches, dist, "init_process_group", refuse)
    _refuse(patches, DistributedDataParallel, "__init__", refuse)
    _refuse(patches, fsdp, "fully_shard", refuse)
    for name in SPAWNS:
        _refuse(patches, torch.multiprocessing, name.rpartition(".")[2], refuse)


def looked_for_rank(error: BaseException, line: str, named: str) -> str | None:
    """Return why a script is not converted that wants to know its rank, given what it raised at `line`; None: it is.

    `named`: as a command names it.
    """
    if isinstance(error, KeyError) and error.args and error.args[0] in _HIDDEN and _is_of_environment(error):
        return _with_way_out(_distributes(f"it reads {error.args[0]} of its environment", line), named)
    return None


def _is_of_environment(error: KeyError) -> bool:
    """Return whether os.environ raised it, and no other mapping."""
    *_, innermost = [None, *traceback.walk_tb(error.__traceback__)]
    return innermost is not None and innermost[0].f_globals.get("__name__") == os.__name__


def _distributes(what: str, line: str) -> str:
    return f"{DISTRIBUTES_ITSELF}{what} at {line}"


def _with_way_out(told: str, named: str) -> str:
    """Return what `_distributes` did with the command to give."""
    return f"{told}. {ONE_DEVICE.format(named, '' if starts_its_ranks(told) else ' --nproc 2')}"


def _is_trusted(asking: FrameType) -> bool:
    """Return whether torch or dpdoctor itself is asking."""
    return asking.f_globals.get("__name__", "").partition(".")[0] in ("torch", "dpdoctor")


def _package(asking: FrameType) -> str:
    return str(asking.f_globals.get("__name__", "")).partition(".")[0] or "a library"


def _deny(patches: Patches, name: str, asked: Asked) -> None:
    original = getattr(dist, name)

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        asking = sys._getframe(1)
        if not _is_trusted(asking):
            asked.note(asking)
            raise ValueError(NO_GROUP)
        return original(*args, **kwargs)

    patches.replace(dist, name, ask)


def _refuse(patches: Patches, owner: Any, name: str, fail: Callable[[str], NoReturn]) -> None:
    original = getattr(owner, name)
    what = f"{owner.__name__}.{name}" if name != "__init__" else owner.__name__

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if not _is_trusted(sys._getframe(1)):
            among = kwargs.get("world_size")
            is_told = isinstance(among, int) and among > 1
            fail(_distributes(f"{what}{AMONG}{among} ranks," if is_told else what, lines.caller()))
        return original(*args, **kwargs)

    patches.replace(owner, name, refuse)


def give_terminal(patches: Patches) -> None:
    """Make descriptor 0 a pseudo-terminal of the usual size on which nobody types: whoever reads finds the end at once.

    Scripts and programs ask one for its size (`stty size`).
    `sys.stdin` stays empty and no terminal, or scripts would begin to ask. Where pseudo-terminals cannot be had nothing
    changes.
    """
    with contextlib.suppress(OSError, termios.error):
        terminal = _open_terminal()
        # sys.stdin reads from descriptor 0: give it what lay there.
        before = os.dup(_STDIN)
        stream = open(before)  # noqa: SIM115, PTH123 - for as long as the process lives
        vars(sys).update(stdin=stream, __stdin__=stream)
        os.dup2(terminal, _STDIN)
        os.close(terminal)
        _tell_size(patches, {0, 1, 2, before})


def _open_terminal() -> int:
    """Return a descriptor of a new terminal; its other end stays open, unseen by programs, until this process ends."""
    _, end = pty.openpty()
    try:
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", _ROWS, _COLUMNS, 0, 0))
        modes = termios.tcgetattr(end)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        modes[6][termios.VMIN] = modes[6][termios.VTIME] = 0  # a read never waits
        termios.tcsetattr(end, termios.TCSANOW, modes)
        # Nobody would take away what is written to it.
        return os.open(os.ttyname(end), os.O_RDONLY | os.O_NOCTTY)
    finally:
        os.close(end)


def _tell_size(patches: Patches, standard: set[int]) -> None:
    """Have the other standard streams, which are files here, tell the terminal's size, too."""
    original = os.get_terminal_size

    @functools.wraps(original)
    def get_terminal_size(descriptor: int = 1, /) -> os.terminal_size:
        try:
            return original(descriptor)
        except OSError:
            if descriptor not in standard:
                raise
            return original(_STDIN)

    patches.replace(os, "get_terminal_size", get_terminal_size)


def keep_wandb_home(cwd: str, overlay: Overlay | None, warn: Callable[[str], None]) -> None:
    """Have wandb, once the script imports it, upload nothing and leave nothing in the script's folder.

    A WANDB_MODE that the user set stays. `overlay`: None where the script may write. `warn` is told of every run.
    """
    tracker = _Wandb(cwd, overlay, warn, is_free=_WANDB_MODE in os.environ)
    os.environ.setdefault(_WANDB_MODE, "offline")
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
        mode = given.get("mode") or os.environ.get(_WANDB_MODE)
        if not self._is_free and mode not in _AT_HOME:
            mode = given["mode"] = "offline"
        if self._overlay is not None:
            given["dir"] = self._place(self._overlay, given.get("dir") or os.environ.get(_WANDB_DIR) or self._cwd)
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
