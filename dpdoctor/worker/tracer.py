"""The trace window: a few steps under torch.profiler, last of all, because it slows a process even after it stopped.

Each rank digests its own trace, so that many ranks do it side by side.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from dpdoctor import rundir
from dpdoctor.attribution.digesting import digest_file
from dpdoctor.records import PHASES, CallNode, LineShare
from dpdoctor.worker.base.director import Segment
from dpdoctor.worker.base.profiler import Profile
from dpdoctor.worker.facts.stack_sampler import CallTree, Moment, OwnCode
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.wrap.redirect import Watch


class Tracer:
    """Records one trace segment and writes it, gzipped, when it is stopped; beside it, its digest.

    The phases of the steps stand in the trace, and the script is looked at where it is in none of them.
    """

    def __init__(
        self, directory: Path, segment: Segment, phases: PhaseClock, watch: Watch, comm_kernels: str | None
    ) -> None:
        self._directory = directory
        self._comm_kernels = comm_kernels
        self._path = directory / rundir.TRACE
        self._phases = phases
        self._watch = watch
        self._calls = CallTree()
        self._own_code = OwnCode(self._moment, phases.claimed, self._calls)
        self._lost: Exception | None = None
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = Profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=segment.skip, active=segment.num_steps, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
        )
        self._profile.start()
        phases.mark(lambda phase: record_function(f"dpdoctor: {PHASES[phase]}"))
        self._own_code.step_ended()
        self._own_code.start()

    def step(self) -> None:
        """Mark the end of a step."""
        self._profile.step()
        self._own_code.step_ended()

    def _write(self, finished: profile) -> None:
        """Write the trace; what goes wrong waits for `stop`: this runs at the end of a step, inside the script."""
        try:
            finished.export_chrome_trace(str(self._path))
        except Exception as error:  # noqa: BLE001 - such as a full disk
            self._path.unlink(missing_ok=True)
            self._lost = error

    def stop(self) -> None:
        """Stop the profiler, and keep what it recorded, if it came to record anything.

        Raises:
            Exception: what was recorded cannot be written or read; a trace that may hold secrets is removed.
        """
        self._own_code.stop()
        self._phases.mark(None)
        self._profile.stop()
        if self._lost is not None:
            raise self._lost
        if self._path.exists():
            try:
                rundir.redact_trace(self._path)
            except Exception:
                self._path.unlink()
                raise
            digest = digest_file(self._path, comm_kernels=self._comm_kernels)
            rundir.write_whole(self._directory / rundir.DIGEST, rundir.encode(digest))

    def _moment(self) -> Moment | None:
        """Return where in a step the script is; None: in a phase, or in forwards without gradients."""
        phases, evaluations = self._phases, self._watch.evaluations
        if not phases.is_outside() or (evaluations is not None and evaluations.is_on):
            return None
        return Moment(gap=phases.gap, is_training=self._watch.is_training, is_preparing=phases.has_fetched)

    def own_code(self) -> tuple[LineShare, ...]:
        """Return where the script was seen between the phases of a step."""
        return self._own_code.found()

    def call_tree(self) -> tuple[CallNode, ...]:
        """Return what the training thread was seen at, as a tree."""
        return self._calls.nodes()
