"""A process made ready for the script: its place among the ranks, its process group, its device, its random numbers.

These are alike on every rank at first, but for those that the script seeds by itself.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import pickle
import platform
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.machinery import SourceFileLoader
from multiprocessing.util import register_after_fork
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from dpdoctor import rundir, units
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import OWN_GENERATORS, Device
from dpdoctor.spec import WorkerTask
from dpdoctor.worker.base.lines import is_users
from dpdoctor.worker.base.patches import Patches

_OURS = ("torch", "numpy", "dpdoctor")
# When dynamo is imported, as by the first optimizer, it calls torch.manual_seed from here for whoever calls it.
_BETWEEN = ("torch._compile", "torch._dynamo.eval_frame")
# Of generators that a script makes the first ones are looked at; it may make one for each sample.
MOST_OWN = 8
# Functions that scripts draw a seed by, and whose numbers they draw.
_WHOLE_NUMBERS = (
    *(("random", random, name) for name in ("randint", "randrange", "getrandbits")),
    ("numpy", np.random, "randint"),
)
_IMPORT_SYSTEM = SourceFileLoader.exec_module.__code__.co_filename


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process among the others, in torchrun's words."""

    rank: int
    local_rank: int
    world_size: int


def place() -> Place:
    """Return this process's place as torchrun, or dpdoctor's own launcher, announced it."""
    return Place(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
    )


def show_life(directory: Path) -> Heartbeat:
    """Return the heartbeat of this process in a rank's directory, to which it writes its stacks when it is asked."""
    faulthandler.register(signal.SIGUSR1, file=(directory / rundir.STACKS).open("w"), all_threads=True)
    return Heartbeat(directory, os.getpid(), time.monotonic_ns)


def set_up(task: WorkerTask, where: Place) -> str | None:
    """Prepare this process for its mode; return the backend of its process group, None where it has none."""
    torch.set_num_threads(task.spec.threads_per_device)
    seed_all(task.spec.seed)
    if not task.mode.distributed:
        return None
    backend = "gloo"
    if torch.cuda.is_available():
        # A script on a machine with GPUs may still train on the CPU.
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(0)
    # torchrun announces a store; dpdoctor's own ranks meet over a file: no port that another process could take.
    announced = "MASTER_ADDR" in os.environ
    dist.init_process_group(
        backend,
        init_method="env://" if announced else f"file://{task.directory}/{rundir.RENDEZVOUS}",
        rank=where.rank,
        world_size=where.world_size,
        timeout=timedelta(seconds=task.spec.collective_timeout_s),
    )
    return backend


def device_type() -> str:
    """Return torch's name for the kind of device that this rank computes on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(num_threads: int) -> str:
    """Return what this rank computes on, in words."""
    if device_type() == "cuda":
        return torch.cuda.get_device_name(0)
    return f"CPU ({platform.machine()}), {units.count(num_threads, 'thread')}"


def devices() -> tuple[Device, ...]:
    """Return the GPUs that this process sees, in torch's order; none on the CPU."""
    return tuple(_device(index) for index in range(torch.cuda.device_count()))


def _device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(properties.uuid)
    # NVML's names begin like this; torch tells the number alone.
    return Device(
        name=properties.name,
        uuid=uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
        memory_bytes=properties.total_memory,
    )


def seed_all(seed: int) -> None:
    """Seed torch, numpy and random, alike on every rank and in every mode."""
    for sow in _SOWERS.values():
        sow(seed)


_seed_numpy = np.random.seed  # the original, as those below: a script's calls are noted, dpdoctor's are not


def _sow_numpy(seed: int) -> None:
    _seed_numpy(seed % 2**32)


_SOWERS: dict[str, Callable[[int], object]] = {
    "torch": torch.manual_seed,
    "numpy": _sow_numpy,
    "random": random.seed,
}


def _torch_state() -> list[bytes]:
    with _disable_current_modes():  # in some of them states are tensors without values
        on_device = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
        return [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_device)]


_STATES: dict[str, Callable[[], object]] = {
    "torch": _torch_state,
    "numpy": np.random.get_state,
    "random": random.getstate,
}


class Seeding:
    """Knows the generators that the script seeds, by another number than one that it drew.

    Those that it does not seed are seeded by dpdoctor, so that every mode begins with the same model; processes of the
    script's own would draw apart from them.

    Attributes:
        is_apart: whether ranks draw numbers of their own from some.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._by_script: set[str] = set()
        self._at_first: dict[str, int] = {}
        # Generators of numpy's that the script made from a seed; numpy has no weak references to them.
        self._own: list[np.random.Generator] = []
        # The last whole number of each generator that the script does not seed, and by what its functions are restored.
        self._drawn: dict[str, object] = {}
        self._patches: Patches | None = None
        self._is_importing = False
        self.is_apart = False

    def watch(self, patches: Patches) -> None:
        """Note which generators the script seeds from now on."""
        self._at_first = _digests(_SOWERS)
        # Where torch finds one function by both names it has dynamo leave that alone, and TorchScript know it.
        noting: dict[Callable[..., Any], Callable[..., Any]] = {}
        for name, owner, attribute in (
            ("torch", torch, "manual_seed"),
            ("torch", torch.random, "manual_seed"),
            ("numpy", np.random, "seed"),
            ("random", random, "seed"),
        ):
            original = getattr(owner, attribute)
            noting.setdefault(original, self._noting(name, original))
            patches.replace(owner, attribute, noting[original])
        patches.replace(np.random, "default_rng", self._making(np.random.default_rng))
        patches.replace(SourceFileLoader, "exec_module", self._importing(SourceFileLoader.exec_module))
        fills = {name: fill for name, fill in vars(nn.init).items() if name.endswith("_") and not name.startswith("_")}
        for module in (nn.init, nn.modules.activation, nn.modules.transformer):
            for name in fills.keys() & vars(module).keys():
                patches.replace(module, name, self._filling(fills[name]))

        for name, owner, attribute in _WHOLE_NUMBERS:
            patches.replace(owner, attribute, self._drawing(name, owner, attribute))
        self._patches = patches
        if self._rank:
            register_after_fork(self, Seeding._draw_apart_in_child)

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            is_own = not self._is_drawn(*args, **kwargs)
            if is_own and name not in self._by_script and not _is_ours(_caller(sys._getframe(1))):
                self._by_script.add(name)
            return original(*args, **kwargs)

        return seed

    def _making(self, original: Callable[..., np.random.Generator]) -> Callable[..., np.random.Generator]:
        @functools.wraps(original)
        def default_rng(seed: Any = None) -> np.random.Generator:
            made = original(seed)
            is_seeded = seed is not None and made is not seed and not self._is_drawn(seed)
            if is_seeded and len(self._own) < MOST_OWN and not _is_ours(_caller(sys._getframe(1))):
                self._own.append(made)
            return made

        return default_rng

    def _drawing(self, name: str, owner: ModuleType, attribute: str) -> Callable[..., Any]:
        """Return a function that draws a whole number, which is kept until the next one unless the script seeds it."""
        original = getattr(owner, attribute)

        @functools.wraps(original)
        def draw(*args: Any, **kwargs: Any) -> Any:
            number = original(*args, **kwargs)
            if name not in self._by_script:
                self._drawn[name] = number
            return number

        draw.__module__, draw.__qualname__ = owner.__name__, attribute  # by which it is pickled
        return draw

    def _let_draw(self) -> None:
        """See no more of what is drawn: a seed comes before the model."""
        if self._patches is not None:
            for _, owner, attribute in _WHOLE_NUMBERS:
                self._patches.restore(owner, attribute)
            self._patches = None

    def _is_drawn(self, seed: Any = None, *_: Any, **__: Any) -> bool:
        """Return whether a seed is a number that the script drew before: processes of its own would draw others."""
        return isinstance(seed, int) and any(isinstance(n, int) and n == seed for n in self._drawn.values())

    def _draw_apart_in_child(self) -> None:
        """Let a process that the script forks draw numbers of its own: it inherits what is alike on all ranks."""
        for name, state in _digests(self.unseeded).items():
            _SOWERS[name](state + self._rank)

    @contextmanager
    def passing_over(self, names: Collection[str] = tuple(_SOWERS)) -> Iterator[None]:
        """What is drawn from these generators inside of this picks no samples."""
        before = _digests(name for name in self.unseeded if name in names)
        try:
            yield
        finally:
            undrawn = [name for name, state in before.items() if state == self._at_first[name]]
            self._at_first |= _digests(undrawn)

    def _filling(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that fills weights with what it draws."""

        @functools.wraps(fill)
        def filling(*args: Any, **kwargs: Any) -> Any:
            self._let_draw()
            with self.passing_over():
                return fill(*args, **kwargs)

        return filling

    def _importing(self, execute: Callable[[SourceFileLoader, ModuleType], None]) -> Callable[..., None]:
        """Return a function that executes a module: what an installed one draws meanwhile picks no samples.

        Python takes its frame for one of the import system's, as it does those that it leaves out of tracebacks and of
        who is warned.
        """

        def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
            if self._is_importing or is_users(loader.path):
                execute(loader, module)
                return
            self._is_importing = True
            try:
                with self.passing_over(("numpy", "random")):  # torch imports while it traces, too
                    execute(loader, module)
            finally:
                self._is_importing = False

        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORT_SYSTEM)
        return functools.update_wrapper(exec_module, execute)

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Return the modules whose numbers are alike on all ranks only because dpdoctor seeded them."""
        return tuple(name for name in _SOWERS if name not in self._by_script)

    def states(self) -> dict[str, int]:
        """Return digests of the states of the generators that the script seeds; ranks that drew alike have the same."""
        own = [made.bit_generator.state for made in self._own]
        found = _digests(sorted(self._by_script))
        return {**found, OWN_GENERATORS: zlib.crc32(repr(own).encode())} if own else found

    def used(self) -> tuple[str, ...]:
        """Return what of `unseeded` has been drawn from."""
        return tuple(name for name, state in _digests(self.unseeded).items() if state != self._at_first.get(name))

    def draw_apart(self, names: tuple[str, ...] = tuple(_SOWERS)) -> None:
        """Let this rank draw numbers of its own from these generators from now on."""
        self.is_apart = True
        seed = (torch.initial_seed() + self._rank) % 2**64  # torch has that of -1 as 2**64 - 1
        for name in names:
            _SOWERS[name](seed)


def _digests(names: Iterable[str]) -> dict[str, int]:
    return {name: zlib.crc32(pickle.dumps(_STATES[name]())) for name in names}


def _caller(frame: FrameType | None) -> str:
    """Return the name of the module that calls, behind those that dynamo puts between."""
    while frame is not None and (name := frame.f_globals.get("__name__", "")) in _BETWEEN:
        frame = frame.f_back
    return name if frame is not None else ""


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS
