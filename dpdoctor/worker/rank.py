"""One rank from birth to end: set up, run the script under watch, leave a record whatever happens."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from dpdoctor import plugins, redact, rundir
from dpdoctor.errors import DpDoctorError
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import FULL, RankRecord
from dpdoctor.spec import OTHER_SETTING, WorkerTask
from dpdoctor.worker import arms, blame, launched, lines, modes, script, setup, terminal, trackers
from dpdoctor.worker.ablation import Ablation, chosen
from dpdoctor.worker.adoption import loss, passes
from dpdoctor.worker.adoption.adopt import Adopter
from dpdoctor.worker.adoption.redirect import Watch
from dpdoctor.worker.agreement import Agreement, Alone, Ranks
from dpdoctor.worker.arms._base import Arm, Bench
from dpdoctor.worker.arms._beside import Beside
from dpdoctor.worker.arms._precision import Precision
from dpdoctor.worker.conductor import Conductor
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.data.replay import MOST_KEPT
from dpdoctor.worker.director import Director
from dpdoctor.worker.ending import Ending, Stop
from dpdoctor.worker.facts.checkpoints import Checkpoints
from dpdoctor.worker.facts.compilations import CompileEvents
from dpdoctor.worker.facts.evaluations import Evaluations
from dpdoctor.worker.facts.iterators import watch_iterators
from dpdoctor.worker.facts.updates import Updates
from dpdoctor.worker.launched import Place
from dpdoctor.worker.leaving import LEAVING
from dpdoctor.worker.modes._base import Mode, Passes
from dpdoctor.worker.overlay import files
from dpdoctor.worker.overlay.overlay import Overlay
from dpdoctor.worker.overlay.territory import Territory
from dpdoctor.worker.parts import Parts
from dpdoctor.worker.patches import Patches
from dpdoctor.worker.report import Report, Sources
from dpdoctor.worker.seeding import Seeding
from dpdoctor.worker.timing import hooks
from dpdoctor.worker.timing.calibration import hook_cost_ns
from dpdoctor.worker.timing.pending import live_storages, storages
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder
from dpdoctor.worker.timing.steplog import StepLog
from dpdoctor.worker.timing.steps import StepCounter
from dpdoctor.worker.timing.tally import Tally

SUMMED_LOSS = (
    "the loss is a sum over the batch; averaging gradients over ranks divides it by their number, so with more ranks "
    "the same learning rate takes smaller steps. Throughput is not affected"
)


def main(task: WorkerTask) -> int:
    """Run the task; return the exit code of this rank, with which to leave."""
    gc.unfreeze()  # a forked rank's collections take what a new one's take
    where = launched.place()
    directory = rundir.rank_dir(Path(task.directory), where.rank)
    directory.mkdir(parents=True, exist_ok=True)
    heartbeat = launched.show_life(directory)
    backend = setup.set_up(task, where)
    launched.hide()
    code = Rank(task, where, directory, heartbeat, backend).run()
    # Files that the script wants to keep are flushed when Python collects them.
    if not task.spec.allow_writes:
        LEAVING.with_code(code)
    return code


class Rank:
    """Holds the parts of one rank together, and is what they call back."""

    def __init__(
        self, task: WorkerTask, where: Place, directory: Path, heartbeat: Heartbeat, backend: str | None
    ) -> None:
        self._task, self._where, self._directory, self._heartbeat = task, where, directory, heartbeat
        self._mode: Mode = plugins.collect(modes, "MODE")[task.mode.name]
        self._mode.passes = Passes()
        self._repeats = passes.Repeats(self._mode.passes)
        self._pid = os.getpid()
        self._clock = time.monotonic_ns
        self._ending, self._left = Ending(self._finish, self._forced), "stopped"
        self._patches = Patches()
        self._overlay = self._make_overlay()
        self._phases, self._tally, self._counter = PhaseClock(self._clock), Tally(), StepCounter()
        self._recorder = Recorder(directory, self._clock)
        self._evaluations = Evaluations(self._clock, self._recorder.ran)
        self._watch = Watch(self._phases, self._tally, self._ending.check, self._evaluations)
        self._optimizers = hooks.Optimizers(
            self._counter, self._phases, self._ending.check, self._on_step, self._tally.optimizer_stepped
        )
        self._adopter = Adopter(self._mode, self._patches, self._watch, self._optimizers.alive, self._fail)
        self._phases.updates = Updates(lambda: self._adopter.modules)
        self._seeding = Seeding(where.rank)
        self._arms = self._chosen_arms()
        # Its connections are not the script's: they are open before the loaders look.
        self._agreement = self._meet_others()
        self._loaders = Loaders(task.mode.batch_rule, where.rank, where.world_size, task.spec.seed)
        hook_ns = hook_cost_ns(self._clock)
        self._steplog = StepLog(self._clock, self._phases, self._tally, self._recorder, heartbeat, hook_ns)
        self._precision = Precision()
        self._ablation = self._make_ablation()
        self._report = self._make_report(backend)
        self._conductor = self._make_conductor()
        self._warn_of_sums = where.world_size > 1
        self._seeds_apart = task.spec.seed_per_rank
        self._install()

    def _make_overlay(self) -> Overlay:
        territory = Territory(Path(self._task.directory), self._task.spec.homes)
        return Overlay(self._directory / rundir.OVERLAY, territory.is_free)

    def _make_report(self, backend: str | None) -> Report:
        record = RankRecord(
            rank=self._where.rank,
            world_size=self._where.world_size,
            pid=self._pid,
            host=redact.text(socket.gethostname()),
            device=setup.device_name(self._task.spec.threads_per_device),
            device_type=setup.device_type(),
            devices=setup.devices(),
            backend=backend,
            status="running",
            clock=(self._clock(), time.time_ns()),
        )
        sources = Sources(
            adopter=self._adopter,
            optimizers=self._optimizers,
            loaders=self._loaders,
            patches=self._patches,
            tally=self._tally,
            steplog=self._steplog,
            stage=lambda: self._heartbeat.stage,
            written=self._overlay.written,
            remarks=self._tally.remarks if self._task.spec.samples_per_step is None else tuple,
            arms=self._ablation.records,
        )
        return Report(
            self._directory,
            record,
            self._task.spec.seed,
            sources,
            finds_unused=self._mode.needs_unused,
        )

    def _chosen_arms(self) -> dict[str, Arm]:
        recording = self._task.spec.recording
        if recording.loader_setting is not None:
            return {OTHER_SETTING: Beside(recording.loader_setting)}
        return chosen(plugins.collect(arms, "ARM"), () if recording.explain else recording.arms, self._mode)

    def _meet_others(self) -> Agreement:
        if not self._task.mode.distributed:
            return Alone()
        return Ranks((FULL, *self._arms), self._task.spec.collective_timeout_s, self._fail)

    def _make_ablation(self) -> Ablation:
        bench = Bench(
            mode=self._mode,
            world_size=self._where.world_size,
            adopter=self._adopter,
            watch=self._watch,
            tally=self._tally,
            replay=self._loaders.replay,
            companion=self._loaders.companion,
            precision=self._precision,
        )
        budget_s = self._task.spec.recording.time_budget_s
        return Ablation(self._arms, bench, self._optimizers.alive, self._agreement, time_budget_s=budget_s)

    def _make_conductor(self) -> Conductor:
        spec = self._task.spec
        num_kept = MOST_KEPT if self._ablation.replays else 0
        director = Director(spec.recording, (FULL, *self._ablation.names), spec.seed, num_kept=num_kept)
        parts = Parts(
            mode=self._mode,
            directory=self._directory,
            clock=self._clock,
            phases=self._phases,
            steplog=self._steplog,
            counter=self._counter,
            watch=self._watch,
            adopter=self._adopter,
            loaders=self._loaders,
            recorder=self._recorder,
            heartbeat=self._heartbeat,
            agreement=self._agreement,
            ablation=self._ablation,
            director=director if self._where.rank == 0 else None,
            ending=self._ending,
            report=self._report,
            seeding=self._seeding,
            comm_kernels=spec.recording.comm_kernels,
        )
        return Conductor(parts, director.first())

    def _install(self) -> None:
        """Put every hook in place; the script has not begun."""
        # Never undone: processes that the script forks live on while it unwinds.
        of_children = Patches(for_children=True)
        launched.hide_process_group(self._patches, of_children, self._fail)
        lines.keep_stacks_short(of_children)
        self._seeding.watch(self._patches)
        terminal.give(of_children)
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
        passes.watch(self._patches, self._mode.passes)
        hooks.watch_backward(self._patches, self._phases, self._before_backward, self._after_backward)
        if torch.cuda.is_available():
            hooks.watch_copies(
                self._patches, self._phases, self._loaders.replay.copied_to_device, self._copied_to_device
            )
        if self._ablation.names:
            self._precision.watch(self._patches)
        if not self._task.spec.allow_writes:
            # Never undone: the script writes while it unwinds and at exit, and so do the processes that it forked.
            files.divert(Patches(for_children=True), self._overlay)
            atexit.register(self._overlay.discard)
        overlay = None if self._task.spec.allow_writes else self._overlay
        trackers.keep_home(self._task.spec.cwd, overlay, self._report.warn)
        # Not before: what it imports takes hold of functions that write.
        self._mode.prepare(self._patches)
        self._watch_facts()
        self._adopter.seek(unused=self._task.unused, fsdp_wrap=self._task.spec.fsdp_wrap)

    def _watch_facts(self) -> None:
        """See what happens between steps; on top of the loaders' hooks, and where safetensors already writes apart."""
        watch_iterators(self._patches, self._clock, self._phases, self._recorder, self._evaluations)
        Checkpoints(self._clock, self._phases, self._recorder, self._evaluations).watch(self._patches)
        CompileEvents(self._clock, self._recorder).watch(self._patches)

    def run(self) -> int:
        """Run the script; return 0 when its record is complete and good, 1 otherwise."""
        signal.signal(signal.SIGTERM, self._terminated)
        self._heartbeat.enter("script")
        self._phases.lap()
        try:
            script.run(self._task.spec)
        except Stop:
            pass
        except SystemExit as leaving:
            self._returned(leaving.code)
        except BaseException as error:  # noqa: BLE001 - the user's script may raise anything; it is recorded and ends the rank
            self._raised(error)
        else:
            self._returned(0)
        self._patches.undo()
        self._report.unwound()
        self._leave()
        return 0 if self._ending.status == "ok" else 1

    def _on_step(self) -> None:
        self._conductor.on_step()

    def _copied_to_device(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        self._tally.copied(storages(tensor), live_storages(copy))

    def _before_backward(self, tensors: Any) -> None:
        self._ending.check()
        if self._mode.replicates:
            self._repeats.before_backward(tensors, self._adopter.parameters, after_forward=self._watch.pass_is_open)
        if self._seeds_apart:
            self._seeds_apart = False
            self._seeding.draw_apart()
        if self._warn_of_sums:
            self._warn_of_sums = False
            if loss.is_summed(tensors[0] if isinstance(tensors, (list, tuple)) else tensors):
                self._report.warn(f"{SUMMED_LOSS} ({lines.caller()})")

    def _after_backward(self) -> None:
        self._tally.backward(in_step=self._counter.in_step)
        self._watch.backward_ended()
        self._adopter.backward_ended()
        if not self._optimizers.any_seen:
            self._adopter.without_optimizer = True
            self._optimizers.backward_ended()

    def _fail(self, reason: str) -> NoReturn:
        self._ending.stop("failed", reason)

    def _finish(self, status: str, reason: str | None) -> None:
        """Complete the record before anything unwinds."""
        self._heartbeat.enter("finishing")
        self._conductor.close()
        self._report.write(status, reason, self._left)
        self._heartbeat.enter("done")

    def _forced(self) -> None:
        self._report.write(self._ending.status or "failed", self._ending.reason, "stopped by force")
        self._overlay.discard()

    def _returned(self, code: Any) -> None:
        """Judge a script that ended by itself; one that was told to stop is judged already."""
        if self._ending.begun:
            return
        self._left = "returned"
        self._evaluations.trains()
        status, reason = self._conductor.script_returned()
        if code not in (None, 0):
            status, reason = "failed", f"the script ended itself with exit code {code!r}"
        with contextlib.suppress(Stop):
            self._ending.stop(status, reason)

    def _raised(self, error: BaseException) -> None:
        if self._ending.begun:
            return
        self._left = "raised"
        if isinstance(error, DpDoctorError):
            reason = error.message
        else:
            error.__traceback__ = lines.without_ours(error.__traceback__)
            traceback.print_exception(error)
            explained = self._mode.explain(error, script.raised_at(error))
            reason = explained or script.failure(error)
            if self._ablation.arm != FULL and not explained and blame.may_be_an_arms(error):
                reason += f"; the arm {self._ablation.arm} was on: does it with --arms none, too?"
        with contextlib.suppress(Stop):
            self._ending.stop("failed", reason)

    def _terminated(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        """Keep what was recorded; the launcher's patience is short."""
        # Processes that the script forked, those of a multiprocessing.Pool say, are ended by SIGTERM too: they
        # inherited this handler, but the record is not theirs.
        if os.getpid() == self._pid and not self._ending.begun:
            self._conductor.close()
            self._report.write("interrupted", "ended by the launcher", "terminated")
            self._overlay.discard()
        os._exit(128 + signum)

    def _leave(self) -> None:
        """Flush what the script printed and leave the process group."""
        sys.stdout.flush()
        sys.stderr.flush()
        if dist.is_initialized() and self._ending.status == "ok":
            dist.destroy_process_group()
