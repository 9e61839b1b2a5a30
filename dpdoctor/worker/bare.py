"""The bare control: the script on one device with nothing around it but the ends of its steps.

What it takes per step is what the script takes without dpdoctor; the difference to the baseline is dpdoctor's own cost.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import socket
import statistics
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader

from dpdoctor import redact, rundir
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import FULL, PHASES, RankRecord, StepRecord, WindowRecord
from dpdoctor.spec import WorkerTask
from dpdoctor.worker import environment, script, setup
from dpdoctor.worker.base import lines, profiler
from dpdoctor.worker.base.director import Director, Facts
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.conductor import LEAST_STEPS_OF_A_CUT_WINDOW, synchronise, usual_step_ns
from dpdoctor.worker.ending import LEAVING, Ending, Stop
from dpdoctor.worker.facts.memory import page_faults
from dpdoctor.worker.overlay import files
from dpdoctor.worker.overlay.overlay import Overlay
from dpdoctor.worker.overlay.territory import Territory
from dpdoctor.worker.protection import Protection
from dpdoctor.worker.timing.optimizers import Optimizers, StepCounter
from dpdoctor.worker.timing.phases import BACKWARD, ELSEWHERE, PhaseClock
from dpdoctor.worker.timing.recorder import Recorder


def main(task: WorkerTask, protection: Protection) -> int:
    """Run the task bare; return the exit code with which to leave."""
    directory = rundir.rank_dir(Path(task.directory), 0)
    heartbeat = setup.show_life(directory)
    setup.set_up(task, setup.place())
    environment.hide_launcher()
    environment.give_terminal(Patches(for_children=True))
    lines.keep_stacks_short(Patches(for_children=True))
    overlay = None
    if protection.by in {"python", "landlock"}:  # else nothing in the script need be replaced
        territory = Territory(Path(task.directory), task.spec.homes)
        territory.watch(Patches(for_children=True))
        overlay = Overlay(directory / rundir.OVERLAY, territory.is_free)
        files.divert(Patches(for_children=True), overlay)
        atexit.register(overlay.discard)
    environment.keep_wandb_home(task.spec.cwd, overlay, lambda _: None)  # the baseline says it
    code = Bare(task, directory, heartbeat, protection).run()
    if not task.spec.allow_writes:
        LEAVING.with_code(code)
    return code


# A sign of life at each step would take as long as all else that is done there.
_BEAT_EVERY_NS = 100_000_000


class _Untimed(PhaseClock):
    """Phases of which nobody asks more than whether a backward pass is going on."""

    num_backwards = 0

    def is_in(self, phase: int) -> bool:
        """Return whether a phase is open, which only the backward pass is told to be."""
        return phase == BACKWARD and self.num_backwards > 0

    def push(self, phase: int) -> int:  # noqa: ARG002 - PhaseClock's signature
        """Take no notice."""
        return ELSEWHERE

    def pop(self, depth: int) -> None:
        """Take no notice."""


def _record(  # noqa: PLR0917 - by place it takes less of a step
    step: int, window: int, begin_ns: int, duration_ns: int, at_edge: bool, is_counted: bool, is_interrupted: bool
) -> StepRecord:
    return StepRecord(
        step=step,
        window=window,
        begin_ns=begin_ns,
        duration_ns=duration_ns,
        phases_ns=(*([0] * (len(PHASES) - 1)), duration_ns),
        samples_drawn=0,
        samples_entered=0,
        micro_batches=1,
        epoch_edge=at_edge,
        counted=is_counted,
        interrupted=is_interrupted,
    )


class Bare:
    """Times steps in windows like those of the baseline, and ends the script after a few."""

    def __init__(self, task: WorkerTask, directory: Path, heartbeat: Heartbeat, protection: Protection) -> None:
        self._task, self._directory, self._heartbeat, self._protection = task, directory, heartbeat, protection
        self._clock = time.monotonic_ns
        self._record = RankRecord(
            rank=0,
            world_size=1,
            pid=os.getpid(),
            host=redact.text(socket.gethostname()),
            device=setup.device_name(task.spec.threads_per_device),
            device_type=setup.device_type(),
            backend=None,
            status="running",
            clock=(self._clock(), time.time_ns()),
            protected_by=protection.by,
            not_walled=protection.reason,
        )
        self._recorder = Recorder(directory, self._clock)
        self._ending = Ending(self._finish, lambda: None)
        self._director = Director(task.spec.recording.of_control(), (FULL,), task.spec.seed)
        self._segment = self._director.first()
        self._counter = StepCounter()
        self._number = self._done = self._begun_ns = self._first_ns = self._num_measured = 0
        self._faults_before = page_faults()
        self._durations_ns: list[int] = []  # of the counted steps of this segment
        # Since something was last done at the end of a step: when steps ended, in which of them a loader began, and in
        # which another optimizer had taken the place of the reference.
        self._ends_ns: list[int] = []
        self._edges: set[int] = set()
        self._interrupted: set[int] = set()
        self._replaced = 0
        self._due = 1  # steps after which there is something to do
        self._beat_due_ns = 0
        self._last_ns = self._clock()
        self._refusal = environment.ChildRefusal(Patches(for_children=True), directory, task.spec.named)
        self._watch()

    def _watch(self) -> None:
        patches = Patches()
        profiler.keep_others(patches, lambda _: None)  # the baseline says it
        phases = _Untimed(self._clock)
        self._optimizers = optimizers = Optimizers(
            self._counter, phases, self._ending.check, self._on_step, lambda: None
        )
        optimizers.watch(patches)
        environment.refuse_distribution(patches, self._refuse, self._task.spec.named)
        differentiate, iterate = torch.autograd.backward, DataLoader.__iter__

        @functools.wraps(differentiate)
        def backward(*args: Any, **kwargs: Any) -> None:
            phases.num_backwards += 1
            phases.num_passes += 1
            try:
                differentiate(*args, **kwargs)
            finally:
                phases.num_backwards -= 1
            if phases.num_backwards:
                return  # one that another runs inside of itself, as checkpointing does
            if optimizers.any_seen and not optimizers.in_backward:
                patches.restore(torch.autograd, "backward")  # steps elsewhere are those that count
            else:
                optimizers.backward_ended()

        def begin(loader: DataLoader[Any]) -> Any:
            self._edges.add(len(self._ends_ns))
            return iterate(loader)

        patches.replace(torch.autograd, "backward", backward)
        patches.replace(DataLoader, "__iter__", begin)

    def run(self) -> int:
        """Run the script; return 0 when windows were measured, 1 otherwise."""
        signal.signal(signal.SIGTERM, self._terminated)
        self._heartbeat.enter("script")
        try:
            script.run(self._task.spec)
        except Stop:
            pass
        except SystemExit as leaving:
            self._left("" if leaving.code in (None, 0) else f"the script ended itself with exit code {leaving.code!r}")
        except BaseException as error:  # noqa: BLE001 - the user's script may raise anything; it is recorded
            error.__traceback__ = lines.without_ours(error.__traceback__)
            traceback.print_exception(error)
            self._keep()
            refused = None if self._recorder.num_steps else self._refusal.reason
            said = refused or environment.looked_for_rank(error, script.raised_at(error), self._task.spec.named)
            self._left(said or script.failure(error) + self._protection.hint(error) + self._refusal.hint)
        else:
            self._left("")
        sys.stdout.flush()
        sys.stderr.flush()
        return 0 if self._ending.status == "ok" else 1

    def _on_step(self, *_: object) -> None:
        """Take note of the end of a step; what can wait is done after several."""
        now = self._clock()
        if self._counter.num_replaced != self._replaced:
            self._replaced = self._counter.num_replaced
            self._interrupted.add(len(self._ends_ns))
        self._ends_ns.append(now)
        if now >= self._beat_due_ns:
            self._heartbeat.beat(self._recorder.num_steps + len(self._ends_ns), 0, now)
            self._beat_due_ns = now + _BEAT_EVERY_NS
        if len(self._ends_ns) == self._due:
            self._turn()

    def _turn(self) -> None:
        """Begin or end the counted steps of a segment, where that is due."""
        self._keep()
        if self._number == 0 and self._done == 1:
            self._first_ns = self._begun_ns = self._last_ns
            self._heartbeat.enter("warmup")
        segment = self._segment
        if self._done == segment.skip + segment.num_steps:
            self._edge()
        elif self._done == segment.skip:
            self._open()
        segment = self._segment
        self._due = min(n - self._done for n in (segment.skip, segment.skip + segment.num_steps) if n > self._done)

    def _keep(self) -> None:
        """Make records of the steps that ended since this was last called."""
        is_counted = self._done >= self._segment.skip
        for index, end_ns in enumerate(self._ends_ns):
            begin_ns, self._last_ns = self._last_ns, end_ns
            step, duration_ns = self._recorder.num_steps + 1, end_ns - begin_ns
            marks = index in self._edges, is_counted, index in self._interrupted
            self._recorder.step(_record, step, self._number, begin_ns, duration_ns, *marks)
            if is_counted:
                self._durations_ns.append(duration_ns)
        self._done += len(self._ends_ns)
        # A loader that began since the last end did so in the step that follows.
        self._edges = {0} if len(self._ends_ns) in self._edges else set()
        self._interrupted.clear()
        self._ends_ns.clear()

    def _open(self) -> None:
        synchronise()
        if self._segment.kind == "measure":
            self._optimizers.only_ends(self._on_step)
        self._faults_before = page_faults()
        self._begun_ns = self._last_ns = self._clock()

    def _edge(self) -> None:
        """End a segment, and begin the one that follows as the baseline's conductor does."""
        synchronise()
        done, end_ns = self._segment, self._clock()
        self._close(end_ns, complete=done.kind == "measure")
        wall_ns = end_ns - self._begun_ns
        median_ns = int(statistics.median(self._durations_ns or [wall_ns]))
        facts = Facts(
            step_s=usual_step_ns(median_ns, wall_ns, self._done - done.skip) * 1e-9,
            prefetch=0,
            elapsed_s=(end_ns - self._first_ns) * 1e-9,
            reference_changed=self._counter.elect() if done.kind == "warmup" else False,
        )
        self._segment = self._director.after(done, facts)
        self._number, self._done = self._number + 1, 0
        self._durations_ns.clear()
        if self._segment.kind == "stop":
            self._ending.stop("ok")
        if self._segment.kind == "over":
            self._ending.stop("failed", "its time was over before a window could be measured")
        self._heartbeat.enter(self._segment.kind, self._number)
        self._open()

    def _close(self, end_ns: int, *, complete: bool) -> None:
        segment, counted = self._segment, max(0, self._done - self._segment.skip)
        self._num_measured += complete
        self._recorder.window(
            WindowRecord(
                window=self._number,
                kind=segment.kind,
                ablation=FULL,
                round=segment.round,
                first_step=self._recorder.num_steps - counted + 1,
                num_steps=counted,
                begin_ns=self._begun_ns,
                end_ns=end_ns,
                barrier_ns=0,
                complete=complete,
                page_faults=page_faults() - self._faults_before,
            )
        )

    def _left(self, reason: str) -> None:
        """The script ended by itself; one that was told to stop is judged already."""
        if self._ending.begun:
            return
        self._keep()
        counted = self._done - self._segment.skip
        if self._segment.kind == "measure" and counted >= LEAST_STEPS_OF_A_CUT_WINDOW and not torch.cuda.is_available():
            self._close(self._last_ns, complete=True)
        if not reason and not self._num_measured:
            steps = self._recorder.num_steps
            reason = (None if steps else self._refusal.reason) or (
                f"the script ended after {steps} steps, before a window could be measured"
            )
        with contextlib.suppress(Stop):
            self._ending.stop("failed" if reason else "ok", reason or None)

    def _finish(self, status: str, reason: str | None) -> None:
        self._heartbeat.enter("finishing")
        self._optimizers.follow()  # who swallows what ends the script is told again
        self._keep()
        self._recorder.flush()
        self._record = replace(self._record, status=status, reason=reason)
        rundir.write_json(self._directory / rundir.RANK, self._record)
        self._heartbeat.enter("done")

    def _refuse(self, reason: str) -> NoReturn:
        self._ending.stop("failed", reason)

    def _terminated(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        if os.getpid() == self._record.pid and not self._ending.begun:
            self._finish("interrupted", "ended by the launcher")
        os._exit(128 + signum)
