"""One rank from birth to end: set up, run the script under watch, leave a record whatever happens."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from dpdoctor import rundir
from dpdoctor.errors import DpDoctorError
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import FULL, Written
from dpdoctor.spec import WorkerTask
from dpdoctor.worker import environment, script, setup
from dpdoctor.worker.base import lines
from dpdoctor.worker.base.agreement import Agreement, Alone, Ranks
from dpdoctor.worker.base.mode import ConversionError
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.ending import LEAVING, Stop
from dpdoctor.worker.observer import Observer
from dpdoctor.worker.overlay import files
from dpdoctor.worker.overlay.overlay import Overlay
from dpdoctor.worker.overlay.territory import Territory
from dpdoctor.worker.protection import PYTHON, Protection
from dpdoctor.worker.setup import Place
from dpdoctor.worker.timing.phases import FORWARD
from dpdoctor.worker.wrap.autograd import (
    MOST_LOOKS,
    Repeats,
    is_summed,
    loss_targets,
    note_graph,
    taken_apart,
    watch_passes,
)

SUMMED_LOSS = (
    "the loss is a sum over the batch; averaging gradients over ranks divides it by their number, so with more ranks "
    "the same learning rate takes smaller steps. Throughput is not affected"
)


def main(task: WorkerTask, protection: Protection) -> int:
    """Run the task; return the exit code of this rank, with which to leave."""
    gc.unfreeze()  # a forked rank's collections take what a new one's take
    where = setup.place()
    directory = rundir.rank_dir(Path(task.directory), where.rank)
    directory.mkdir(parents=True, exist_ok=True)
    heartbeat = setup.show_life(directory)
    backend = setup.set_up(task, where)
    environment.hide_launcher()
    code = Rank(task, where, directory, heartbeat, backend, protection=protection).run()
    # Files that the script wants to keep are flushed when Python collects them.
    if not task.spec.allow_writes:
        LEAVING.with_code(code)
    return code


class Rank(Observer):
    """A rank that runs the script itself: hides from it that it is one of several, and converts what it trains."""

    def __init__(
        self,
        task: WorkerTask,
        where: Place,
        directory: Path,
        heartbeat: Heartbeat,
        backend: str | None,
        *,
        protection: Protection = PYTHON,
    ) -> None:
        self._territory = Territory(Path(task.directory), task.spec.homes)
        self._overlay = Overlay(directory / rundir.OVERLAY, self._territory.is_free)
        super().__init__(task, where, directory, heartbeat, backend, protection=protection)
        self._repeats = Repeats(self._mode.passes)
        self._warn_of_sums = where.world_size > 1
        # Where the last backward pass began, empty if from no sum; None: it was not looked at. Those before it may only
        # move what a model is called with.
        self._summed_at: str | None = None
        self._looks_left = MOST_LOOKS
        self._seeds_apart = task.spec.seed_per_rank
        self._install()

    def _written(self) -> tuple[Written, ...]:
        wall = self._protection.wall
        if wall is None:
            return self._overlay.written()
        return tuple(each for each in wall.written() if each.change != "new" or not self._territory.is_free(each.path))

    def _meet_others(self) -> Agreement:
        if not self._task.mode.distributed:
            return Alone()
        return Ranks((FULL, *self._ablations), self._task.spec.collective_timeout_s, self._fail)

    def _fair_threads(self) -> int:
        return self._task.spec.threads_per_device

    def _make_loaders(self) -> Loaders:
        where = self._where
        loaders = Loaders(self._task.mode.batch_rule, where.rank, where.world_size, self._task.spec.seed)
        loaders.handed = self._watch.entered.handed if where.world_size > 1 else None
        return loaders

    def _install(self) -> None:
        """Put every hook in place; the script has not begun."""
        # Never undone: processes that the script forks live on while it unwinds.
        of_children = Patches(for_children=True)
        self._refusal = environment.ChildRefusal(of_children, self._directory, self._task.spec.named)
        asked = environment.Asked()
        environment.hide_process_group(self._patches, of_children, self._fail, asked, self._task.spec.named)
        self._report.asks_rank = asked.by
        lines.keep_stacks_short(of_children)
        self._seeding.watch(self._patches)
        if self._where.world_size > 1:
            self._watch.passing_over = functools.partial(self._seeding.passing_over, ("torch",))
        environment.give_terminal(of_children)
        watch_passes(self._patches, self._mode.passes)
        self._watch_training()
        self._territory.watch(of_children)
        overlay = self._overlay if self._protection.by in {"python", "landlock"} else None
        if overlay is not None:
            # Never undone: the script writes while it unwinds and at exit, and so do the processes that it forked.
            files.divert(Patches(for_children=True), overlay)
            atexit.register(overlay.discard)
        environment.keep_wandb_home(self._task.spec.cwd, overlay, self._report.warn)
        # Not before: what it imports takes hold of functions that write.
        self._mode.prepare(self._patches)
        self._watch_facts()
        self._wrapping.seek(unused=rundir.read_unused(Path(self._task.directory)), fsdp_wrap=self._task.spec.fsdp_wrap)

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

    def _before_backward(self, tensors: Any, with_graph: bool, keeps_graph: bool) -> None:
        passes = self._mode.passes
        if with_graph:
            note_graph(passes)
        if not passes.in_forward and self._phases.is_in(FORWARD):
            passes.in_forward = lines.caller()
        open_passes = self._watch.open_passes
        if keeps_graph or not open_passes:
            self._repeats.before_backward(
                tensors, self._wrapping.reached, after_forward=bool(open_passes), keeps_graph=keeps_graph
            )
        if self._seeds_apart:
            self._on_built()
        if self._watch.entered.is_on and self._where.world_size > 1 and not self._loaders.is_any_shared():
            self._watch.entered.held_to(loss_targets(tensors))
        if self._looks_left and not self._tally.loaders_count:
            self._looks_left -= 1
            self._tally.taken_apart(set(taken_apart(tensors)))
        # The first one may be a look at gradients, and train nothing, where there is no optimizer yet.
        if self._warn_of_sums and (self._optimizers.any_seen or self._steplog.num_steps):
            is_sum = is_summed(tensors[0] if isinstance(tensors, (list, tuple)) else tensors)
            self._summed_at = lines.caller() if is_sum else ""

    def _on_built(self) -> None:
        """Let ranks draw apart from now on, where that was asked for; wrappers make what models began with alike."""
        if self._seeds_apart:
            self._seeds_apart = False
            self._seeding.draw_apart()

    def _passed_in_step(self) -> None:
        self._conductor.passed_in_step(self._task.spec.recording.time_budget_s)

    def _on_step(self) -> None:
        if self._wrapping.routed:
            self._note_uncalled()
        if self._summed_at is not None:
            if self._summed_at:
                self._report.warn(f"{SUMMED_LOSS} ({self._summed_at})")
            self._warn_of_sums, self._summed_at = False, None
        self._conductor.on_step()

    def _note_uncalled(self) -> None:
        """A step ended: warn where the script does not call a method any more that stands for its model's call."""
        uncalled = self._wrapping.uncalled
        if uncalled and self._repeats.step_ended(uncalled):
            self._report.warn(f"time and rows of the model's forward are unknown{self._mode.passes.past_call()}")
        self._wrapping.step_ended()

    def _forced(self) -> None:
        super()._forced()
        self._overlay.discard()

    def _returned(self, code: Any) -> None:
        """Judge a script that ended by itself, whose ranks were perhaps processes that it forked."""
        if self._refusal.reason and not (self._steplog.num_steps or self._ending.begun):
            self._left = "returned"
            with contextlib.suppress(Stop):
                self._ending.stop("failed", self._refusal.reason)
        super()._returned(code)

    def _raised(self, error: BaseException) -> None:
        if self._ending.begun:
            return
        self._left = "raised"
        if isinstance(error, (DpDoctorError, ConversionError)):
            reason = str(error)
        else:
            error.__traceback__ = lines.without_ours(error.__traceback__)
            traceback.print_exception(error)
            at = script.raised_at(error)
            refused = None if self._steplog.num_steps else self._refusal.reason
            explained = (
                refused
                or environment.looked_for_rank(error, at, self._task.spec.named)
                or self._mode.explain(error, at)
            )
            # What is explained fails without any ablation as well, but where one is on that calls other operators.
            if explained and self._ablation_runner.calls_others:
                explained += self._blame(error)
            reason = explained or (
                script.failure(error)
                + self._loaders.ran_out(error)
                + self._protection.hint(error)
                + self._blame(error)
                + self._refusal.hint
            )
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
