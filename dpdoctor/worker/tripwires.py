"""Where a process that somebody else started turns out to be a rank: it makes a process group, or an optimizer.

Where the script is converted, what it starts is refused a group instead.

Nothing of the script is changed until then, and what goes wrong in here must not reach it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import rpc
from torch.optim import Optimizer

if TYPE_CHECKING:
    from dpdoctor.worker.native import Native

# What torchrun, and those who follow it, announce.
WORLD_SIZE = "WORLD_SIZE"

Note = Callable[[str, str], None]


class _Watched:
    """This process, and those that it forks. `rank` is what observes it; None: it is no rank, or not yet."""

    def __init__(self, directory: Path, note: Note) -> None:
        self._directory, self._note = directory, note
        self._pid = os.getpid()
        self._rank: Native | None = None
        self._is_over = False

    def group_made(self) -> None:
        """The script has made its default process group."""
        if self._may_become_rank():
            self._become()

    def optimizer_made(self) -> None:
        """The script builds an optimizer: without a group, and with none announced, it trains alone."""
        is_alone = not (dist.is_available() and dist.is_initialized()) and os.environ.get(WORLD_SIZE, "1") == "1"
        if is_alone and self._rank is None and self._may_become_rank():
            self._become()

    def optimizer_built(self, optimizer: Optimizer) -> None:
        """The optimizer is ready to train: the one at which this process became a rank was not seen before."""
        if self._rank is not None and self._pid == os.getpid():
            self._rank.optimizer_built(optimizer)

    def _may_become_rank(self) -> bool:
        """Return whether this process is neither a rank already nor a descendant of one that has trained."""
        rank = self._rank
        if self._is_over or (rank is not None and rank.num_steps):
            if rank is not None and self._pid == os.getpid():
                rank.group_made_late()
            return False
        if rank is not None:
            if self._pid == os.getpid():
                rank.discard()
            self._rank = None
        self._pid = os.getpid()
        return True

    def _become(self) -> None:
        from dpdoctor.worker import native

        try:
            self._rank = native.observe(self._directory, self._note)
        except Exception as error:  # noqa: BLE001 - the job must run as it would without
            self._is_over = True
            told = f"failed: {type(error).__name__}: {error}".replace("\n", " ")
            self._note(str(self._directory), told)


def set_up(directory: str, note: Note) -> None:
    """Lay the tripwires; `note` tells the launcher a line about this process."""
    watched = _Watched(Path(directory), note)
    _tell_groups(lambda _: watched.group_made())
    _tell_rpc(directory, note)
    Optimizer.__init__ = _telling(Optimizer.__init__, watched)  # type: ignore[method-assign]


def refuse_groups(directory: str) -> None:
    """Refuse this process a group of several ranks, and tell the rank with this directory, whose script started it."""

    def refuse(group: Any) -> None:
        if group.size() > 1:
            from dpdoctor.worker import environment

            environment.refuse_in_child(Path(directory), group.size())

    _tell_groups(refuse)


def _tell_groups(made: Callable[[Any], None]) -> None:
    """Call `made` with each default process group."""
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d

    # Everybody comes by it: init_device_mesh holds a reference to init_process_group that no patch would reach.
    update = distributed_c10d._update_default_pg

    @functools.wraps(update)
    def update_and_tell(group: Any) -> None:
        update(group)
        if group is not None:
            made(group)

    distributed_c10d._update_default_pg = update_and_tell  # type: ignore[assignment]


def _tell_rpc(directory: str, note: Note) -> None:
    """Tell the launcher where the process joins others over torch.distributed.rpc."""
    if not rpc.is_available():
        return
    init: Callable[..., None] = rpc.init_rpc

    @functools.wraps(init)
    def init_and_tell(*args: Any, **kwargs: Any) -> None:
        from dpdoctor import rundir  # takes each process of the command 30 ms

        note(directory, rundir.OVER_RPC)
        init(*args, **kwargs)

    rpc.init_rpc = init_and_tell


def _telling(build: Callable[..., None], watched: _Watched) -> Callable[..., None]:
    @functools.wraps(build)
    def tell_and_build(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        watched.optimizer_made()
        build(optimizer, *args, **kwargs)
        watched.optimizer_built(optimizer)

    return tell_and_build
