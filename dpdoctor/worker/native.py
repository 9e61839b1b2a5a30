"""A rank that somebody else started: it is seen as it is. Nothing is seeded, hidden, converted or shared out.

What goes wrong in watching ends the watching, not the job.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim import Optimizer

from dpdoctor import cgroup, redact, rundir
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import Strategy, Written
from dpdoctor.spec import NATIVE_VARIABLE, STACKS_SIGNAL, WorkerTask
from dpdoctor.worker import script
from dpdoctor.worker.ablations._base import Ablation
from dpdoctor.worker.base import lines
from dpdoctor.worker.base.agreement import Agreement, Alone, LostError, Stored, world_name
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.data.shard import OWN
from dpdoctor.worker.ending import LEAVING, Ending, Leave, LettingGo, Stop
from dpdoctor.worker.facts import strategies
from dpdoctor.worker.observer import Observer
from dpdoctor.worker.protection import Protection
from dpdoctor.worker.setup import Place
from dpdoctor.worker.timing.exchanges import Exchanges

NEVER_TRAINED = "this process made a process group, and ended without a training step"
BY_BACKWARD = (
    "; rank {} has no optimizer, so that its steps end with its backward passes: where others wait for what it "
    "exchanges after them, as in a pipeline or with a parameter server, the script cannot be observed"
)
# Ranks that wait for each other in backward passes may not meet there. A script that tries its model before it builds
# its optimizer, in a pass for each micro-batch of a pipeline perhaps, takes no steps yet.
PASSES_BEFORE_STEPS = 8
LATE_GROUP = "the script made a process group after {} training steps that it took without one"


def observe(directory: Path, note: Callable[[str, str], None]) -> Native:
    """Begin to observe this process as a rank of its default process group or, where there is none, as the only one.

    `note` tells the launcher a line about this process, as (directory, line).

    Raises:
        OSError: its files cannot be made.
    """
    task = rundir.read_json(directory / rundir.TASK, WorkerTask)
    redact.learn(sys.argv[1:], os.environ)  # those of the task were redacted when it was written
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    candidate = f"{attempt}-{os.getpid()}"
    where, store, backend = Place(rank=0, local_rank=0, world_size=1), None, None
    if dist.is_available() and dist.is_initialized():
        local_rank = int(os.environ.get("LOCAL_RANK", str(dist.get_rank())))
        where = Place(rank=dist.get_rank(), local_rank=local_rank, world_size=dist.get_world_size())
        # torchrun may keep one store for all its attempts: each finds its own keys alone.
        store = distributed_c10d.PrefixStore(f"attempt{attempt}", distributed_c10d._get_default_store().clone())
        backend = _backend()
        candidate = world_name(store, candidate)
    own = rundir.rank_dir(rundir.world_dir(directory, candidate), where.rank)
    own.mkdir(parents=True)
    heartbeat = Heartbeat(own, os.getpid(), time.monotonic_ns)
    rank = Native(task, where, own, heartbeat, backend, store)
    note(str(directory), f"rank {where.rank} of {where.world_size}")
    if where.world_size > 1:
        _spare_descendants()
    return rank


def _protection(task: WorkerTask) -> Protection:
    """Return what the command stands behind (walled): without it, it would not have begun."""
    if task.spec.allow_writes or task.spec.go_on:
        return Protection(by="")
    return Protection(by="kernel", homes=task.spec.homes, has_next=False)


def _backend() -> str:
    """Return the backend of the default group; by device, as in `cpu:gloo,cuda:nccl`, where it has several."""
    name = dist.get_backend()
    return dist.get_backend_config() if name == dist.Backend.UNDEFINED else name


def _rising() -> BaseException | None:
    """Return what rises while it ends this process of multiprocessing's; not what its parent handled when it forked."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not BaseProcess._bootstrap.__code__:  # type: ignore[attr-defined]
        frame = frame.f_back
    error = sys.exc_info()[1]
    passed = [passed for passed, _ in traceback.walk_tb(error.__traceback__ if error else None)]
    return error if frame in passed else None


def _spare_descendants() -> None:
    """Let what this process starts from here on be no rank: it is known to be one itself."""
    os.environ.pop(NATIVE_VARIABLE, None)


class Native(Observer):
    """Watches, and leaves at the agreed step as a script that has come to its end."""

    _times_exchanges = True

    def __init__(  # noqa: PLR0917 - Observer's, and the store
        self,
        task: WorkerTask,
        where: Place,
        directory: Path,
        heartbeat: Heartbeat,
        backend: str | None,
        store: Any,
    ) -> None:
        self._stored = Stored(store, where.rank, where.world_size) if where.world_size > 1 else None
        self._is_over = False
        if where.world_size > 1:
            self._passes_before_steps = PASSES_BEFORE_STEPS
        super().__init__(task, where, directory, heartbeat, backend, protection=_protection(task))
        self._strategies: tuple[Strategy, ...] = ()
        self._period = 1
        self._is_next_looked_at = False
        self._report.strategies = self._strategies_so_far
        self._seeding.is_apart = True  # what is drawn alike and what apart is the script's own affair
        self._keep_stacks()
        self._keep_what_is_raised()
        self._keep_leaving()
        self._watch_training()
        self._watch_facts()
        self._wrapping.seek()
        # Also where a process of multiprocessing's ends, which passes by atexit.
        self._at_end = Finalize(None, self._python_ends, exitpriority=0)
        heartbeat.enter("script")
        self._phases.lap()

    @property
    def num_steps(self) -> int:
        """Return the steps that were taken so far."""
        return self._steplog.num_steps

    def _keep_stacks(self) -> None:
        """Have the stacks of this process written when they are asked for, and when a signal ends it."""
        file = (self._directory / rundir.STACKS).open("w")
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
        before = signal.getsignal(signal.SIGTERM)
        faulthandler.register(signal.SIGTERM, file=file, all_threads=True, chain=True)

        def unregister() -> None:
            # What the script itself does at SIGTERM took this one's place since, and would go with it.
            if signal.getsignal(signal.SIGTERM) is before:
                faulthandler.unregister(signal.SIGTERM)

        self._patches.add("signal.SIGTERM", unregister)
        self._tells_fatal = not faulthandler.is_enabled()
        if self._tells_fatal:
            faulthandler.enable(file)

    def _keep_what_is_raised(self) -> None:
        """Have the record say at once what the script raised: its launcher may end this process while it is printed."""
        before = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if os.getpid() == self._pid and not (self._is_over or self._ending.begun):
                with contextlib.suppress(Exception):  # what the script raised is what is to be read
                    self._report.write("failed", self._why_raised(error), "raised")
            before(kind, error, trace)

        self._patches.replace(sys, "excepthook", excepthook)

    def _keep_leaving(self) -> None:
        """Have the record completed also where the script leaves by os._exit, past all that runs at its end."""
        leave = os._exit

        def leave_with_record(status: int) -> NoReturn:
            with contextlib.suppress(Exception):  # it leaves, whatever becomes of the record
                self._ended(status)
            leave(status)

        self._patches.replace(os, "_exit", leave_with_record)

    def _why_raised(self, error: BaseException) -> str:
        error.__traceback__ = lines.without_ours(error.__traceback__)
        return script.failure(error) + self._protection.hint(error) + self._blame(error)

    def _make_ending(self) -> Ending:
        if self._task.spec.go_on:
            return LettingGo(self._finish, self._forced)
        ending = Ending(self._finish, self._forced)
        ending.raising = Leave
        return ending

    def _meet_others(self) -> Agreement:
        return self._stored or Alone()

    def _make_loaders(self) -> Loaders:
        loaders = Loaders(OWN, self._where.rank, 1, self._task.spec.seed, reseeds=False)
        loaders.handed = self._watch.entered.handed if self._where.world_size > 1 else None
        return loaders

    def _written(self) -> tuple[Written, ...]:
        return ()

    def _chosen_ablations(self) -> dict[str, Ablation]:
        """Return none where the job goes on: it is to train as it would without."""
        if self._task.spec.go_on:
            return {}
        is_alone = self._where.world_size == 1
        return {
            name: ablation
            for name, ablation in super()._chosen_ablations().items()
            if not (is_alone and ablation.sets_apart)
        }

    def _fair_threads(self) -> int:
        """Return the cores for each rank of the host; launchers that set OMP_NUM_THREADS leave most of them idle."""
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
        return max(1, cgroup.cores() // (int(ranks) if ranks.isdigit() else self._where.world_size))

    def _on_step(self) -> None:
        if self._is_over:
            return
        self._wrapping.doubts_copies = False
        try:
            exchanges = self._exchanges
            if exchanges is not None and exchanges.is_on:
                self._look_at(exchanges)
            self._conductor.on_step()
            if exchanges is not None:
                exchanges.is_on = self._conductor.is_proving or self._is_next_looked_at
        except LostError as error:
            why = "" if self._optimizers.any_seen else BY_BACKWARD.format(self._where.rank)
            self._let_go(f"the ranks do not meet any more: {error}{why}")
        except Stop:
            if not self._task.spec.go_on:
                raise
            self._is_over = True
            self._take_hooks_away()
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the job
            traceback.print_exc()
            self._let_go(f"dpdoctor itself failed: {type(error).__name__}: {error}")
        if self._steplog.num_steps == 1:
            _spare_descendants()

    def _trained_past(self) -> None:
        """Where a module alone trained that holds nothing of the optimizers', they step copies or shards of its own."""
        wrapping = self._wrapping
        if self._optimizers.any_seen and not wrapping.has_modules and wrapping.unheld():
            wrapping.by_copies = wrapping.doubts_copies = True

    def _take_hooks_away(self) -> None:
        """Leave of us only what the script has put hooks of its own around, which lets everything pass."""
        self._wrapping.settle()
        self._phases.belongs_nowhere()
        self._patches.undo()

    def _look_at(self, exchanges: Exchanges) -> None:
        """At the end of the step that is looked at closely: name what the script does to distribute itself.

        Where only some steps exchange anything, and not this one, the next is looked at, too.
        """
        exchanges.is_on = False
        is_again = self._is_next_looked_at
        if not is_again:
            self._period = exchanges.period()
        self._is_next_looked_at = self._period > 1 and not exchanges.kinds
        if is_again and self._is_next_looked_at:
            return
        trained = sum(unit.trainable_bytes for unit in self._wrapping.records())
        self._strategies = strategies.found(self._wrapping.modules, self._optimizers.alive(), exchanges, trained)

    def _strategies_so_far(self) -> tuple[Strategy, ...]:
        exchanges = self._exchanges
        if exchanges is None or self._where.world_size == 1:  # who is alone need not exchange anything
            return self._strategies
        return strategies.of_run(self._strategies, exchanges)

    def _let_go(self, reason: str) -> None:
        """End the observation: keep what was recorded, and let the job run as it would without."""

        def keep() -> None:
            self._report.warn(f"observation ended before its time: {reason}")
            status, _ = self._conductor.script_returned()
            self._finish(status, None if status == "ok" else f"{reason}; no window was measured before that")

        self._end_early(keep)

    def _end_early(self, keep: Callable[[], None]) -> None:
        """Let the job run as it would without, and `keep` what was recorded; nothing that goes wrong here ends it."""
        self._is_over, self._left = True, "let go"
        for step in (self._ablation_runner.abandon, self._take_hooks_away, keep):
            try:
                step()
            except Exception:  # noqa: BLE001 - such as a full disk
                traceback.print_exc()
        self._heartbeat.enter("done")

    def _finish(self, status: str, reason: str | None) -> None:
        try:
            if (doubt := strategies.doubt(self._strategies_so_far(), self._period)) is not None:
                self._report.warn(doubt)
            super()._finish(status, reason)
            if self._stored is not None and self._left == "stopped":
                with contextlib.suppress(LostError):  # nobody leaves before all have their records
                    self._stored.gather([0])
        finally:
            if self._stored is not None:
                self._stored.leave(self.num_steps)

    def _fail(self, reason: str) -> Any:
        self._ending.stop("failed", reason)

    def _python_ends(self) -> None:
        """Python ends the process; one of multiprocessing's in the midst of what it raised."""
        rising = _rising()
        if not isinstance(rising, SystemExit):
            self._ended(error=rising)
        elif rising.code not in (None, 0):
            # mp.spawn tells the parent what a rank raised, and exits.
            self._ended(rising.code, rising.__context__)
        else:
            self._ended()

    def _ended(self, code: Any = 0, error: BaseException | None = None) -> None:
        """The process ends, with an exit code that the script gives, or an error that it raised."""
        if os.getpid() != self._pid or self._is_over:
            return
        self._is_over = True
        if self._ending.begun:
            # torch without destroy_process_group may abort while it is taken apart.
            LEAVING.with_code(0)
            return
        error = getattr(sys, "last_value", None) if error is None else error
        with contextlib.suppress(Stop):
            if error is not None and not isinstance(error, SystemExit):
                self._left = "raised"
                self._ending.stop("failed", self._why_raised(error))
            elif not self.num_steps:
                self._left = "returned"
                self._ending.stop("failed", NEVER_TRAINED)
            self._returned(code)

    def optimizer_built(self, optimizer: Optimizer) -> None:
        """The script has built an optimizer."""
        self._optimizers.built(optimizer)

    def group_made_late(self) -> None:
        """The script has made a process group after it trained without one: what was recorded is of something else."""
        if not self._is_over and self._where.world_size == 1:
            self._end_early(lambda: self._finish("failed", LATE_GROUP.format(self.num_steps)))

    def discard(self) -> None:
        """Forget this rank, which took no step: the process turns out to be another one."""
        self._is_over = True
        self._at_end.cancel()
        self._take_hooks_away()
        if self._tells_fatal:
            faulthandler.disable()
        # Its world's may hold another rank by now.
        shutil.rmtree(self._directory, ignore_errors=True)
