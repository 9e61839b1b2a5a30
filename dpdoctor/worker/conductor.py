"""Drives the recording from inside the script's own steps: segments, edges, proof, trace, end."""

from __future__ import annotations

import math

import torch
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.heartbeat import EXPERIMENT
from dpdoctor.records import FULL, Counters, WindowRecord
from dpdoctor.worker.ablations._hooks import Turns
from dpdoctor.worker.base import aside, lines
from dpdoctor.worker.base.director import Facts, Segment
from dpdoctor.worker.facts.cpu import CoreQueue, CpuMeter, core_benchmark_ns
from dpdoctor.worker.facts.memory import page_faults
from dpdoctor.worker.meeting import Parts, look_again, meet
from dpdoctor.worker.tracer import Tracer
from dpdoctor.worker.wrap.counters import LostStepError
from dpdoctor.worker.wrap.proof import Proof, checksum

TRAINED_LATE = (
    "{} began to train after the warm-up, outside of every wrapped module: give --warmup as many steps as pass before "
    "it trains"
)
NOT_WRAPPED = "steps were taken, but no module could be wrapped"
NOTHING_WRAPPED = (
    f"{NOT_WRAPPED}; looked for an nn.Module that is called with gradients enabled and owns parameters that require a "
    "gradient and that a torch optimizer holds, where there is one. "
    "`model.forward(x)` of a model without submodules calls no module: write `model(x)`. A class with a `__call__` of "
    "its own is called past nn.Module's, where parallel wrappers act: let it have a forward alone"
)
FUNCTIONAL = (
    ": functional_call at {} runs a module on tensors that stand in for its parameters, and parallel wrappers act in "
    "calls of the module itself, on the parameters that it holds"
)
OF_NO_MODULE = (
    ": {} tensors that are no module's parameters, and modules alone are wrapped. Make them parameters of an nn.Module "
    "and train by calling it"
)
OF_COPIES = (
    ". {}, holds parameters that require gradients, and no optimizer holds any of them: where one steps copies of "
    "them, such as weights in full precision, give --modes native"
)
NO_STEP = "the script ended without a training step: no optimizer.step() on gradients and no backward() was seen"
NO_UPDATE = "the script ended without a training step: no optimizer.step() on gradients was seen after {}"
STARTED = ". Processes that it starts itself are not watched: if those train, give --modes native"
APART = "gradients were no longer synchronised: parameters were equal on all ranks after warm-up and differ now"
ASKED = ". Does the script train past a call of its model, or change parameters by what only one rank has seen?"
REPLACED = (
    "after {} the script trains another model, with another optimizer, and no window was measured yet. "
    "Let one model train longer, or give --warmup and --steps that fit in, such as 5 and 10"
)
# An optimizer that runs more backward passes in one step does all the training in it, as L-BFGS with a large max_iter,
# or its closure accumulates the gradients of as many batches.
MOST_PASSES = 100
IN_A_LOOP = "if it evaluates its closure that often, give max_iter=20 or so, and call step in a loop"
NOT_RETURNED = f"optimizer.step has run {{}} backward passes, last at {{}}, and has not returned: {IN_A_LOOP}"
IN_ONE_STEP = f"its last optimizer.step ran {{}} backward passes: {IN_A_LOOP}; else "
LEFT_BEHIND = (
    "the script trains one model after another, each with an optimizer that it built then. Those that no optimizer "
    "holds any more may yet be trained again, so dpdoctor keeps them: {} so far, and figures of memory include them"
)
MOVED_ON = (
    "after {} the script began to train another model, with another optimizer: nothing is measured of that one, nor of "
    "those that follow"
)
NO_WINDOW = (
    "--time-budget was over before a window could be measured: {} took {}, with what the script does in between; give "
    "--time-budget {} or so"
)
MANY_THREADS = ". Torch computes with {} in each rank, whose share of the cores is {}: OMP_NUM_THREADS={} may be faster"
# Two of warm-up, the proof, a window of two steps, as profiled steps take longer.
LEAST_STEPS_TO_A_WINDOW, LEAST_STEPS_OF_A_WINDOW = 8, 2
AFTER_ABLATIONS = (
    " Or does it keep a state beside model and optimizer that an ablation could not put back? Then give "
    "--ablations none"
)
UNSEEN = (
    "torch's profiler saw {} of the {} that a step issues: the others, such as those of a communication hook, come "
    "from threads that it does not see, and are missing in what a step exchanges and in the trace"
)
LEAST_STEPS_OF_A_CUT_WINDOW = 4
# So that it is known before a window is measured whether ranks trained on the same samples, and whether they still do.
TOLD_STEPS_OF_WARMUP = 2


class Conductor:
    """`on_step` is called at the end of every step of the reference optimizer, and nothing else moves it.

    Attributes:
        has_moved_on: whether recording ended, with a window measured, as the script began to train another model.
        is_proving: whether the step that has begun is the proof's.
    """

    def __init__(self, parts: Parts, first: Segment) -> None:
        self._parts = parts
        self._segment = first
        self._number = 0
        self._done = 0
        self._begin_ns: int | None = None
        self._measured = 0
        self._proof: Proof | None = None
        self._tracer: Tracer | None = None
        self._cpu = CpuMeter()
        self._core: CoreQueue | None = None
        self._queued_before_ns = 0
        self._queued_ns: int | None = None
        self._faults_before = 0
        self._faults: int | None = None
        self._replaced = 0
        self._first_pass_ns = 0
        self._period = 1
        self._gradient_places: list[torch.Tensor] = []
        self._turns = Turns(first.num_steps, self._period)
        self.has_moved_on = self.is_proving = False
        parts.watch.entered.is_on = first.kind == "warmup"

    def on_step(self) -> None:
        """Record the step that ends here and, at the end of a segment, meet the other ranks."""
        segment, parts = self._segment, self._parts
        if parts.hooks.are_out:
            self._passed()
            return
        if parts.counter.num_replaced != self._replaced:
            self._optimizer_replaced()
        self._done = done = self._done + 1
        parts.steplog.step(self._number, counted=done > segment.skip)
        parts.watch.is_training = False
        if parts.watch.entered.is_on:
            parts.watch.entered.step_ended()
        if self._number == 0 and done == 1:
            parts.heartbeat.enter("warmup")
        if done == segment.skip + segment.num_steps:
            self._edge()
            return
        if self._tracer is not None:
            self._tracer.step()
        if segment.kind == "warmup" and done == TOLD_STEPS_OF_WARMUP:
            parts.watch.entered.is_on = False
        if done == segment.skip:
            self._open()
        counted = done - segment.skip
        if parts.hooks.in_turns and not self._turns.is_watched(counted):
            parts.hooks.take_out(self._turns.left(counted))

    def _passed(self) -> None:
        """Record steps that ended unseen and, at the end of the segment, meet the other ranks."""
        segment, parts = self._segment, self._parts
        for step in parts.hooks.passed():
            self._done += 1
            is_counted = self._done > segment.skip
            parts.steplog.passed(self._number, step.begin_ns, step.end_ns, counted=is_counted, is_edge=step.is_edge)
        if self._done == segment.skip + segment.num_steps:
            self._edge()
            return
        if self._done == segment.skip:
            self._open()
        counted = self._done - segment.skip
        if self._turns.is_watched(counted):
            parts.hooks.put_back()
            parts.steplog.restart()
        else:
            parts.hooks.begin(self._turns.left(counted))

    def passed_in_step(self, time_budget_s: float) -> None:
        """A backward pass in an optimizer's step ended: stop where that step has taken as long as all training may.

        All ranks ask after the same passes, and go by the clock of rank 0.
        """
        parts, num_passes = self._parts, self._parts.counter.num_passes
        if num_passes == 1:
            self._first_pass_ns = parts.clock()
        if num_passes % MOST_PASSES:
            return
        is_over = parts.clock() - self._first_pass_ns > 1e9 * time_budget_s
        if not parts.agreement.gather([int(is_over)])[0][0]:
            return
        if self._measured:
            parts.ending.stop("ok")
        parts.ending.stop("failed", NOT_RETURNED.format(f"{num_passes:,}", lines.caller()))

    def _optimizer_replaced(self) -> None:
        """The optimizer whose steps count is another one from now on; go on where it trains what was wrapped."""
        parts = self._parts
        self._replaced = parts.counter.num_replaced
        parts.steplog.interrupted()
        if self._proof is None or not parts.wrapping.unwrapped():
            return
        status, _ = self.script_returned()
        lasted = units.count(parts.counter.replaced_after, "step")
        if status == "ok":
            self.has_moved_on = True
            parts.report.warn(MOVED_ON.format(lasted))
        parts.ending.stop(status, None if status == "ok" else REPLACED.format(lasted))

    def _open(self) -> None:
        """Begin the counted steps, with nothing of the uncounted ones left on the device."""
        if self._segment.kind == "measure":
            self._parts.watch.entered.is_on, self._parts.watch.passing_over = False, None
        if self._segment.kind != "proof":
            self._gradient_places.clear()
        synchronise()
        self._parts.loaders.replay.keep(on=False)
        self._begin()
        self._parts.steplog.restart()

    def _begin(self) -> None:
        self._core = self._core or CoreQueue()
        self._queued_before_ns, self._queued_ns = self._core.waited_ns(), None
        self._faults_before, self._faults = page_faults(), None
        # Last of all, as it is the first to be read at the end: what it adds up lasts as long as the window.
        if self._segment.kind == "measure" and self._segment.ablation == FULL:
            self._cpu.begin()
        self._begin_ns = self._parts.clock()

    def _edge(self) -> None:
        parts, done = self._parts, self._segment
        synchronise()
        end_ns = parts.clock()
        self._cpu.end()
        if self._begin_ns is not None:
            self._faults = page_faults() - self._faults_before
        if self._core is not None and self._core.tells:
            self._queued_ns = self._core.waited_ns() - self._queued_before_ns
        if self._tracer is not None:
            self._tracer.step()
        if done.ablation == FULL and done.kind != "proof":
            parts.loaders.replay.note_levels()
        if self._proof is not None and done.kind == "proof":
            self._proof.stop()
        if not parts.wrapping.has_modules:
            parts.ending.stop("failed", self._nothing_wrapped())
        facts, barrier_ns = meet(parts, self._step_ns(end_ns), warming=done.kind == "warmup")
        self._period = facts.period
        # Ranks have just met: all try at once, as they compute in a step.
        self._close(
            end_ns,
            barrier_ns,
            complete=parts.ablation_runner.leave(measured=done.kind == "measure"),
            pace_ns=core_benchmark_ns(),
        )
        if parts.memory is not None:
            parts.recorder.memory(parts.memory(self._number))
        parts.recorder.flush()
        if done.kind == "proof":
            parts.ablation_runner.settle(self._prove())
        else:
            self._refuse_unwrapped()
        following = self._after(done, replace(facts, unfit=parts.ablation_runner.unfit))
        if following.kind == "over":
            self._refuse_slow(facts)
        if done.kind == "measure" != following.kind:
            self._refuse_apart()
        self._gradient_places.clear()
        self._enter(following)

    def _after(self, done: Segment, facts: Facts) -> Segment:
        """Return what rank 0 decides; after the proof that is also which ablations there is time for."""
        parts = self._parts
        following = parts.agreement.share(parts.director.after(done, facts) if parts.director else None)
        if done.kind in {"proof", "measure"}:
            parts.ablation_runner.drop(parts.director.dropped if parts.director else ())
        if parts.director and parts.director.given_way:
            parts.report.warn(parts.director.given_way)
        if done.kind == "proof" and parts.ablation_runner.is_running:
            parts.report.keep_peak()
        return following

    def _refuse_slow(self, facts: Facts) -> None:
        """No window fits: say what steps take, and what would be enough."""
        steps = max(1, self._parts.steplog.num_steps - 1)
        step_s = facts.elapsed_s / steps
        # What took so long may come in a few steps only, and early: it comes again.
        enough = math.ceil(max(LEAST_STEPS_TO_A_WINDOW * step_s, facts.elapsed_s + LEAST_STEPS_OF_A_WINDOW * step_s))
        taken = units.count(steps, "step"), units.seconds(facts.elapsed_s)
        threads, fair = torch.get_num_threads(), self._parts.ablation_runner.fair_threads
        are_many = threads > fair and not torch.cuda.is_available()
        hint = MANY_THREADS.format(units.count(threads, "thread"), fair, fair) if are_many else ""
        self._parts.ending.stop("failed", f"{NO_WINDOW.format(*taken, enough)}{hint}")

    def _refuse_apart(self) -> None:
        """What held after warm-up must hold when the last window was measured."""
        parts = self._parts
        if parts.mode.replicates:
            sums = parts.agreement.gather([checksum(parts.wrapping.trained())])
            if len({numbers[0] for numbers in sums}) > 1:
                why = parts.mode.why_apart()
                doubt = f"{ASKED}{AFTER_ABLATIONS if parts.ablation_runner.is_running else ''}"
                parts.ending.stop("failed", f"{APART}{why or doubt}")

    def _step_ns(self, end_ns: int) -> int:
        """Return the usual time of a step of this segment."""
        median_ns, counted = self._parts.steplog.median_ns(), self._done - self._segment.skip
        return median_ns if self._begin_ns is None else usual_step_ns(median_ns, end_ns - self._begin_ns, counted)

    def _close(self, end_ns: int, barrier_ns: int, *, complete: bool, pace_ns: int | None = None) -> None:
        segment, counted = self._segment, max(0, self._done - self._segment.skip)
        self._measured += segment.kind == "measure" and segment.ablation == FULL and complete
        self._parts.recorder.window(
            WindowRecord(
                window=self._number,
                kind=segment.kind,
                ablation=segment.ablation,
                round=segment.round,
                first_step=self._parts.steplog.num_steps - counted + 1,
                num_steps=counted,
                begin_ns=self._begin_ns or self._parts.steplog.first_ns or end_ns,
                end_ns=end_ns,
                barrier_ns=barrier_ns,
                complete=complete,
                queued_ns=self._queued_ns,
                core_benchmark_ns=pace_ns,
                page_faults=self._faults,
            )
        )

    def _enter(self, segment: Segment) -> None:
        """Begin a segment: nothing of the edge is charged to its first step."""
        parts = self._parts
        if segment.kind == "stop":
            self.try_loaders()
            parts.ending.stop("ok")
        if segment.kind == "proof":
            if parts.counter.num_replaced and (number := parts.wrapping.num_left_behind()):
                parts.report.warn(LEFT_BEHIND.format(units.count(number, "model")))
            self._proof = Proof(parts.wrapping.trained())
            parts.watch.keep_inputs = True
            parts.watch.forwards.clear()
        if segment.kind == "trace":
            self._tracer = Tracer(parts.directory, segment, parts.phases, parts.watch, parts.comm_kernels)
            parts.agreement.gather([0])
        if parts.director:
            parts.report.warmed_up(parts.director.steady)
        if segment.kind == "proof" or segment.ablation != FULL:
            # Profiler and operators that are called for the first time keep memory.
            self._gradient_places = aside.gradient_places(parts.wrapping.trained())
        self._switch(segment)
        parts.watch.entered.is_on = segment.ablation == FULL and segment.kind in {"warmup", "measure"}
        self._segment, self._number, self._done = segment, self._number + 1, 0
        self._turns = Turns(segment.num_steps, self._period)
        self.is_proving = segment.kind == "proof"
        parts.heartbeat.enter(segment.kind if segment.ablation == FULL else EXPERIMENT, self._number)
        parts.steplog.restart()
        self._begin_ns = None
        if segment.skip == 0:
            self._begin()

    def try_loaders(self) -> None:
        """Find out what other settings of the loaders would cost, last of all: meanwhile workers fill their queues."""
        director = self._parts.director
        if director is not None and director.tries_loaders and self._measured:
            self._parts.loaders.measure_hand_offs()

    def _switch(self, segment: Segment) -> None:
        """Switch the segment's ablation on, and leave the loaders as far ahead as they are in full windows."""
        parts, before = self._parts, self._segment
        if segment.kind != "proof":
            parts.watch.micro_batches.clear()
        parts.ablation_runner.enter(segment.ablation)
        parts.loaders.replay.keep(on=before.kind == "proof" and parts.ablation_runner.replays)
        if (before.ablation, segment.ablation) != (FULL, FULL) and not parts.loaders.replay.replays:
            parts.loaders.replay.drain(parts.agreement)

    def _prove(self) -> Counters:
        """Judge the proof; return what its step did."""
        parts = self._parts
        assert self._proof is not None
        # Let go of them: a generator's output would keep its graph, and so its activations, until the end.
        inputs, parts.watch.inputs, parts.watch.keep_inputs = parts.watch.inputs, [], False
        with torch._C.DisableTorchFunctionSubclass():  # they may be of a class that refuses to be looked at
            try:
                counters = replace(self._proof.counters(inputs), micro_batches=sum(parts.watch.forwards.values()))
            except LostStepError as error:
                parts.ending.stop("failed", str(error))
            parts.watch.entered.forward(inputs)
        parts.watch.entered.step_ended()
        look_again(parts)
        forwards, made_late = dict(parts.watch.forwards), parts.wrapping.made_late()
        unwrapped = parts.wrapping.unwrapped()
        checks = self._proof.checks(parts.mode, counters, forwards, unwrapped, parts.agreement, made_late=made_late)
        parts.report.proved(checks, counters, self._proof.touched)
        self._note_unseen(counters)
        failed = next((check for check in checks if check.ok is False), None)
        if failed is not None:
            parts.ending.stop("failed", failed.text)
        parts.wrapping.settle()
        parts.report.write("running")
        return counters

    def _note_unseen(self, counters: Counters) -> None:
        """Say which collectives of the proof's step are not counted; on a GPU their kernels are seen."""
        exchanges, seen = self._parts.steplog.exchanges, sum(each.count for each in counters.collectives.values())
        issued = exchanges.last.collectives if exchanges is not None else None
        if issued is not None and seen < issued and not torch.cuda.is_available():
            self._parts.report.warn(UNSEEN.format(seen, units.count(issued, "collective")))

    def _nothing_wrapped(self) -> str:
        """Return that no module could be wrapped, and what is known of why or, where nothing is, what may be."""
        if at := self._parts.mode.passes.functional:
            return NOT_WRAPPED + FUNCTIONAL.format(at)
        wrapping, unheld = self._parts.wrapping, self._parts.wrapping.unheld()
        copies = OF_COPIES.format(unheld) if unheld and not self._parts.mode.only_observes else ""
        if who := wrapping.trains_no_module():
            return NOT_WRAPPED + OF_NO_MODULE.format(who) + copies
        return NOTHING_WRAPPED + wrapping.past_graphs() + copies

    def _refuse_unwrapped(self) -> None:
        """A module that begins to train after the proof would train unsynchronised and unseen."""
        names = self._parts.wrapping.unwrapped() if self._proof else ()
        if names and self._parts.mode.distributed:
            self._parts.ending.stop("failed", TRAINED_LATE.format(names[0]))

    def script_returned(self) -> tuple[str, str | None]:
        """Return status and reason for a script that ended before enough was recorded."""
        parts, counted = self._parts, self._done - self._segment.skip
        if parts.steplog.num_steps == 0:
            passes = parts.mode.passes
            if passes.num_ended and not passes.functional:
                return "failed", NO_UPDATE.format(units.count(passes.num_ended, "backward pass"))
            return "failed", NO_STEP + (FUNCTIONAL.format(passes.functional) if passes.functional else STARTED)
        if not parts.wrapping.has_modules:
            return "failed", self._nothing_wrapped()
        if self._begin_ns is not None and counted > 0:
            # Until when a device worked on the last step is not known any more: the script may have gone on to test.
            # Nor is whether an ablation did on all ranks what it says.
            is_known = not torch.cuda.is_available() and self._segment.ablation == FULL
            complete = self._segment.kind == "measure" and counted >= LEAST_STEPS_OF_A_CUT_WINDOW and is_known
            self._close(parts.steplog.last_ns, 0, complete=complete)
        parts.recorder.flush()
        if self._measured:
            return "ok", None
        steps, num_passes = units.count(parts.steplog.num_steps, "step"), parts.counter.num_passes
        in_one_step = IN_ONE_STEP.format(f"{num_passes:,}") if num_passes > MOST_PASSES else ""
        return "failed", (
            f"the script ended after {steps}, before a window could be measured; {in_one_step}"
            "let it train longer (more epochs or data), or give --warmup and --steps that fit in, such as 10 and 20"
        )

    def close(self) -> None:
        """Stop the profiler where it is still running, and write what is kept."""
        tracer, self._tracer = self._tracer, None  # one that cannot be stopped is not stopped again
        if tracer is not None:
            try:
                tracer.stop()
            except Exception as error:  # such as a full disk
                if not self._measured:
                    raise
                self._parts.report.lost_trace(error)
            self._parts.report.saw_own_code(tracer.own_code(), tracer.call_tree())
        self._parts.report.used_cpu(self._cpu.use())
        self._parts.recorder.flush()


def usual_step_ns(median_ns: int, wall_ns: int, counted: int) -> int:
    """Return the usual time of so many steps; a GPU's host runs ahead of it, so that there the window's wall counts."""
    if not torch.cuda.is_available() or counted < 1:
        return median_ns
    return max(median_ns, wall_ns // counted)


def synchronise() -> None:
    """Wait for every device that this process uses: nn.DataParallel's drives several.

    To wait for another one would take memory there, which may be another rank's.
    """
    for index in range(torch.cuda.device_count()):
        if torch.cuda.max_memory_reserved(index):
            torch.cuda.synchronize(index)
