"""The parts of one rank that its conductor holds together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import MemoryRecord
from dpdoctor.worker.ablation_runner import AblationRunner
from dpdoctor.worker.base.agreement import Agreement
from dpdoctor.worker.base.director import Director
from dpdoctor.worker.base.mode import Mode
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.ending import Ending
from dpdoctor.worker.report import Report
from dpdoctor.worker.setup import Seeding
from dpdoctor.worker.timing.optimizers import StepCounter
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder, StepLog
from dpdoctor.worker.wrap.redirect import Watch
from dpdoctor.worker.wrap.wrapping import Wrapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the conductor conducts.

    `director` decides on rank 0 and is None on the others; `comm_kernels` is that of Recording;
    `memory` tells what it holds at the end of the window of a number; None: nobody looks.
    """

    mode: Mode
    directory: Path
    clock: Callable[[], int]
    phases: PhaseClock
    steplog: StepLog
    counter: StepCounter
    watch: Watch
    wrapping: Wrapping
    loaders: Loaders
    recorder: Recorder
    heartbeat: Heartbeat
    agreement: Agreement
    ablation_runner: AblationRunner
    director: Director | None
    ending: Ending
    report: Report
    seeding: Seeding
    comm_kernels: str | None = None
    memory: Callable[[int], MemoryRecord] | None = None
