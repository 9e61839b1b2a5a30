"""Sees how a script trains in this process and leaves a record of it: hooks, windows, proof, trace."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from dpdoctor import redact
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import FULL, RankRecord, Written
from dpdoctor.spec import NATIVE, OTHER_SETTING, WorkerTask
from dpdoctor.worker import ablations, modes, script, setup
from dpdoctor.worker.ablation_runner import AblationRunner, chosen
from dpdoctor.worker.ablations._base import Ablation, AblationContext, Precision
from dpdoctor.worker.ablations._hooks import Hooks
from dpdoctor.worker.ablations._wire import Wire
from dpdoctor.worker.ablations.one_worker import Beside
from dpdoctor.worker.base import profiler, structure
from dpdoctor.worker.base.agreement import Agreement
from dpdoctor.worker.base.director import Director
from dpdoctor.worker.base.mode import Passes
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.conductor import Conductor
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.data.replay import MOST_KEPT
from dpdoctor.worker.ending import Ending, Stop
from dpdoctor.worker.facts.events import Checkpoints, Collections, CompileEvents, Evaluations, watch_iterators
from dpdoctor.worker.facts.memory import memory
from dpdoctor.worker.meeting import Parts
from dpdoctor.worker.protection import Protection
from dpdoctor.worker.report import Report, Sources
from dpdoctor.worker.setup import Place, Seeding
from dpdoctor.worker.timing.batches import live_storages, storages
from dpdoctor.worker.timing.exchanges import Exchanges
from dpdoctor.worker.timing.optimizers import MOST_IDLE, Optimizers, StepCounter
from dpdoctor.worker.timing.phases import OPTIMIZER, PhaseClock, Updates, watch_backward, watch_copies
from dpdoctor.worker.timing.recorder import HookCost, Recorder, StepLog
from dpdoctor.worker.timing.steady_tally import SteadyTally
from dpdoctor.worker.timing.tally import Tally
from dpdoctor.worker.wrap.redirect import Redirect, Watch
from dpdoctor.worker.wrap.wrapping import Wrapping

# Between two hooks a step's own work runs and drives them out of the caches: reading this much does the same. Hooks
# timed back to back look five times cheaper than they are in a script (tests/benchmarks/observer_cost.py shows it).
_EVICTED_BYTES = 16_000_000
_COST_ROUNDS = 11


class Observer(ABC):
    """Holds the parts of one rank together, and is what they call back.

    What is done to the script, beyond seeing it, is its subclasses' affair. The time in collectives is a phase of its
    own where the script calls them.
    """

    _times_exchanges = False
    _before_backward: Callable[[Any, bool, bool], None] | None = None
    _on_built: Callable[[], None] | None = None
    _passed_in_step: Callable[[], None] | None = None
    # A backward pass ended before which only a module was called that holds nothing of the optimizers'.
    _trained_past: Callable[[], None] | None = None
    _passes_before_steps = 0

    def __init__(
        self,
        task: WorkerTask,
        where: Place,
        directory: Path,
        heartbeat: Heartbeat,
        backend: str | None,
        *,
        protection: Protection,
    ) -> None:
        self._protection = protection
        self._task, self._where, self._directory, self._heartbeat = task, where, directory, heartbeat
        self._mode = modes.load(NATIVE if task.mode.launcher else task.mode.name)
        self._mode.passes = Passes()
        self._pid = os.getpid()
        self._clock = time.monotonic_ns
        self._ending, self._left = self._make_ending(), "stopped"
        self._patches = Patches()
        self._phases, self._tally, self._counter = PhaseClock(self._clock), SteadyTally(), StepCounter()
        self._recorder = Recorder(directory, self._clock)
        self._evaluations = Evaluations(self._clock, self._recorder.ran)
        self._seeding = Seeding(where.rank)
        self._watch = Watch(self._phases, self._tally, self._evaluations, self._seeding.states)
        self._optimizers = Optimizers(
            self._counter,
            self._phases,
            self._ending.check,
            self._on_step,
            self._watch.optimizer_stepped,
            on_built=self._on_built,
            on_idle=self._trains_nothing,
            patience=self._passes_before_steps,
        )
        self._wrapping = Wrapping(self._mode, self._patches, self._watch, self._optimizers.alive, self._fail)
        self._phases.updates = Updates(lambda: self._wrapping.modules)
        self._ablations = self._chosen_ablations()
        # Its connections are not the script's: they are open before the loaders look.
        self._agreement = self._meet_others()
        self._loaders = self._make_loaders()
        self._loaders.evaluations = self._evaluations
        self._loaders.is_evaluating = self._wrapping.is_evaluating
        self._loaders.draws_apart = lambda: "torch" in self._seeding.unseeded
        self._loaders.has_begun = lambda: self._optimizers.any_seen or self._wrapping.without_optimizer
        self._steplog = StepLog(
            self._clock, self._phases, self._tally, self._recorder, heartbeat, hook_cost(self._clock)
        )
        self._precision = Precision()
        self._exchanges = Exchanges(self._phases, times=self._times_exchanges) if backend else None
        self._hooks = Hooks(
            self._clock,
            self._phases,
            self._tally,
            self._optimizers,
            self._loaders,
            lambda: self._steplog.own_share,
            self._on_step,
        )
        self._ablation_runner = self._make_ablation_runner()
        self._loaders.replay.looks = self._ablation_runner.replays
        self._report = self._make_report(backend)
        self._conductor = self._make_conductor()

    def _make_ending(self) -> Ending:
        """Return what ends the script."""
        return Ending(self._finish, self._forced)

    @abstractmethod
    def _meet_others(self) -> Agreement:
        """Return how this rank meets the others."""

    @abstractmethod
    def _make_loaders(self) -> Loaders:
        """Return what sees the script's loaders, and may share them out."""

    @abstractmethod
    def _written(self) -> tuple[Written, ...]:
        """Return what the script wrote and was kept away from its files."""

    def _make_report(self, backend: str | None) -> Report:
        record = RankRecord(
            rank=self._where.rank,
            world_size=self._where.world_size,
            pid=self._pid,
            host=redact.text(socket.gethostname()),
            device=setup.device_name(torch.get_num_threads()),
            device_type=setup.device_type(),
            devices=setup.devices(),
            backend=backend,
            status="running",
            clock=(self._clock(), time.time_ns()),
            protected_by=self._protection.by,
            not_walled=self._protection.reason,
        )
        sources = Sources(
            wrapping=self._wrapping,
            optimizers=self._optimizers,
            loaders=self._loaders,
            patches=self._patches,
            tally=self._tally,
            steplog=self._steplog,
            stage=lambda: self._heartbeat.stage,
            written=self._written,
            remarks=self._remarks,
            ablations=self._ablation_runner.records,
        )
        return Report(
            self._directory,
            record,
            self._task.spec.seed,
            sources,
            finds_unused=self._mode.needs_unused,
        )

    def _remarks(self) -> tuple[str, ...]:
        """Return how samples were counted, where the user does not give them."""
        if self._task.spec.samples_per_step is not None:
            return ()
        return *self._tally.remarks(), *self._loaders.remarks()

    def _chosen_ablations(self) -> dict[str, Ablation]:
        recording = self._task.spec.recording
        if recording.loader_setting is not None:
            return {OTHER_SETTING: Beside(recording.loader_setting)}
        names = () if recording.explain else recording.ablations
        return chosen({name: ablations.load(name) for name in names}, self._mode)

    @abstractmethod
    def _fair_threads(self) -> int:
        """Return this rank's share of the cores of its host."""

    def _make_wire(self) -> Wire | None:
        """Return what ranks exchange gradients by; None: there is one rank."""
        if self._exchanges is None:
            return None
        self._steplog.exchanges = self._exchanges
        return Wire(self._exchanges, self._wrapping, self._mode.wrappers, self._trained)

    def _trained(self) -> list[nn.Parameter]:
        found = structure.trained(self._wrapping.modules, self._optimizers.alive())
        return [parameter for parameter in found if parameter.requires_grad]

    def _make_ablation_runner(self) -> AblationRunner:
        context = AblationContext(
            mode=self._mode,
            world_size=self._where.world_size,
            wrapping=self._wrapping,
            watch=self._watch,
            tally=self._tally,
            replay=self._loaders.replay,
            companion=self._loaders.companion,
            precision=self._precision,
            optimizers=self._optimizers,
            optimizer_share=lambda: self._steplog.host_share(OPTIMIZER),
            hooks=self._hooks,
            wire=self._make_wire(),
            fair_threads=self._fair_threads(),
        )
        recording = self._task.spec.recording
        return AblationRunner(
            self._ablations,
            context,
            self._agreement,
            time_budget_s=recording.time_budget_s,
            raised=recording.raised,
        )

    def _make_conductor(self) -> Conductor:
        spec = self._task.spec
        num_kept = MOST_KEPT if self._ablation_runner.replays else 0
        director = Director(spec.recording, (FULL, *self._ablation_runner.names), spec.seed, num_kept=num_kept)
        parts = Parts(
            mode=self._mode,
            directory=self._directory,
            clock=self._clock,
            phases=self._phases,
            steplog=self._steplog,
            counter=self._counter,
            watch=self._watch,
            wrapping=self._wrapping,
            loaders=self._loaders,
            recorder=self._recorder,
            heartbeat=self._heartbeat,
            agreement=self._agreement,
            ablation_runner=self._ablation_runner,
            director=director if self._where.rank == 0 else None,
            ending=self._ending,
            report=self._report,
            seeding=self._seeding,
            hooks=self._hooks,
            comm_kernels=spec.recording.comm_kernels,
            memory=lambda window: memory(
                self._wrapping.modules, self._optimizers.alive(), at_ns=self._clock(), window=window
            ),
        )
        return Conductor(parts, director.first())

    def _watch_training(self) -> None:
        """See what a step consists of."""
        profiler.keep_others(self._patches, self._report.warn)
        self._loaders.watch(
            self._patches,
            self._phases,
            self._tally,
            self._ending.check,
            self._fail,
            clock=self._clock,
            log=self._recorder,
        )
        self._optimizers.watch(self._patches)
        watch_backward(self._patches, self._phases, self._after_backward, before=self._before_backward)
        if torch.cuda.is_available():
            watch_copies(self._patches, self._phases, self._loaders.replay.copied_to_device, self._copied_to_device)
        if self._ablation_runner.names:
            self._precision.watch(self._patches)
        if self._exchanges is not None and (self._ablation_runner.names or self._times_exchanges):
            self._exchanges.watch(self._patches)

    def _watch_facts(self) -> None:
        """See what happens between steps; on top of the loaders' hooks, and where safetensors already writes apart."""
        watch_iterators(self._patches, self._clock, self._phases, self._recorder, self._evaluations)
        Checkpoints(self._clock, self._phases, self._recorder, self._evaluations).watch(self._patches)
        CompileEvents(self._clock, self._recorder).watch(self._patches)
        Collections(self._clock, self._recorder).watch(self._patches)

    @abstractmethod
    def _on_step(self) -> None:
        """A step of the reference optimizer ended: the conductor is to know."""

    def _copied_to_device(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        self._tally.copied(storages(tensor), live_storages(copy))

    def _after_backward(self) -> None:
        optimizers, wrapping, passes = self._optimizers, self._wrapping, self._mode.passes
        in_step, is_past = bool(self._counter.under_way), wrapping.passed_by is not None and not wrapping.awaited
        self._tally.backward(in_step=in_step)
        self._watch.backward_ended()
        passes.num_ended += 1
        if not (self._steplog.num_steps or in_step):
            self._heartbeat.backward_ended()
        if wrapping.awaited:
            wrapping.backward_ended()
        if optimizers.in_backward or not optimizers.any_seen:
            passes.with_step = optimizers.in_backward_at
            wrapping.without_optimizer |= not optimizers.any_seen
            optimizers.backward_ended()
        if in_step:
            self._counter.backward_ended()
            if self._passed_in_step is not None:
                self._passed_in_step()
        if self._trained_past is not None:
            if is_past:
                self._trained_past()
            wrapping.passed_by = None

    def _trains_nothing(self, optimizers: tuple[str, ...]) -> None:
        passes = f"{MOST_IDLE} steps, each after a backward pass"
        self._fail(f"no parameter of {' or '.join(optimizers)} had a gradient in {passes}{self._mode.why_apart()}")

    def _blame(self, error: BaseException) -> str:
        """Note which ablations may have made the script raise, and return them as `_suspect` does."""
        return self._suspect() if script.may_be_an_ablations(error) else ""

    def _suspect(self) -> str:
        """Note which ablations may have made the script fail; return them as the end of a sentence, empty: none."""
        names = self._report.raised_in = self._ablation_runner.since_full
        return f"; an ablation may be why: {', '.join(names)}" if names else ""

    def _fail(self, reason: str) -> NoReturn:
        self._ending.stop("failed", reason)

    def _finish(self, status: str, reason: str | None) -> None:
        """Complete the record before anything unwinds."""
        self._heartbeat.enter("finishing")
        self._conductor.close()
        self._report.write(status, reason, "moved on" if self._conductor.has_moved_on else self._left)
        self._heartbeat.enter("done")

    def _forced(self) -> None:
        self._report.write(self._ending.status or "failed", self._ending.reason, "stopped by force")

    def _returned(self, code: Any) -> None:
        """Judge a script that ended by itself; one that was told to stop is judged already."""
        if self._ending.begun:
            return
        self._left = "returned"
        self._evaluations.trains()
        if code in (None, 0):
            self._conductor.try_loaders()
        status, reason = self._conductor.script_returned()
        if code not in (None, 0):
            status, reason = "failed", f"the script ended itself with exit code {code!r}{self._suspect()}"
        with contextlib.suppress(Stop):
            self._ending.stop(status, reason)


def hook_cost(clock: Callable[[], int]) -> HookCost:
    """Return what one hook costs on this machine, so that a run can say what watching it cost.

    The median of some, measured on the forward's, with cold caches.
    """
    return HookCost(_cost_ns(clock, SteadyTally(patience=1)), _cost_ns(clock, Tally()))


def _cost_ns(clock: Callable[[], int], tally: Tally) -> float:
    forward = Redirect(nn.Identity(), lambda x: x, Watch(PhaseClock(clock), tally))
    # Mapped, not from malloc, which would go by a large block that is freed (see base/aside.py).
    tensor, others = torch.zeros(1), np.frombuffer(mmap.mmap(-1, _EVICTED_BYTES), np.float64)
    costs = []
    for _ in range(_COST_ROUNDS):
        others.sum()
        begin = clock()
        forward(tensor)
        costs.append(clock() - begin)
        tally.backward()
        tally.optimizer_stepped()
        tally.lap()
    return statistics.median(costs)
