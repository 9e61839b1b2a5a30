"""What a gate keeps of a run: the seconds per step of its launches, one summary of each mode, what it ran on."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, Finding, ModeSummary
from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.launch_facts import every
from dpdoctor.analysis.summary import RunSummary, Script
from dpdoctor.gate.evidence.conditions import Conditions, conditions
from dpdoctor.gate.evidence.disturbed import disturbance
from dpdoctor.gate.evidence.measured import compiles, num_steps, seconds_per_step, typical_batch
from dpdoctor.gate.evidence.workload import script_of
from dpdoctor.records import Conversion, Launch, LaunchRecord, Run
from dpdoctor.rules import diagnosed
from dpdoctor.spec import RunHeader, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMode:
    """One mode of a run.

    Attributes:
        seconds: per step, of each launch that measured any, in their order.
        steps: fewest that one of them is taken from.
        batch: samples of all ranks in the median step of the first launch.
        compiled: whether the script uses torch.compile.
        disturbed: why launches are not to be judged by, one sentence each.
        summary: of all launches, without what only the report shows.
        again: of the second launch alone: counters in which it differs vary by nature; None: there was only one.
    """

    seconds: tuple[float, ...]
    steps: int
    batch: int | None
    compiled: bool
    conditions: Conditions
    summary: ModeSummary
    again: ModeSummary | None = None
    disturbed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One run. Paths of `header.spec` are relative to the directory that the script ran in, which is of one machine."""

    header: RunHeader
    modes: dict[str, RecordedMode]
    findings: tuple[Finding, ...]

    @property
    def asked_for(self) -> tuple[str, ...]:
        """Return the modes that were asked for by name; others only served them."""
        return tuple(name for name in self.modes if name in self.header.spec.requested_modes)

    def analysis(self) -> Diagnosis:
        """Return the figures as a Diagnosis, with one empty launch of each mode in the place of its records."""
        summary = RunSummary(
            dpdoctor=self.header.dpdoctor,
            command=self.header.command,
            script=Script(
                path=self.header.spec.target,
                sha256=self.header.fingerprint.script_sha256,
                args=self.header.spec.args,
            ),
            created=self.header.created,
            fingerprint=self.header.fingerprint,
            modes={name: mode.summary for name, mode in self.modes.items()},
            findings=self.findings,
        )
        launches: dict[str, tuple[Launch, ...]] = {
            name: (_empty_launch(name, mode.summary.status),) for name, mode in self.modes.items()
        }
        return Diagnosis(summary=summary, run=Run(path=Path(), header=self.header, modes=launches))


def recorded(run: Run) -> Recorded:
    """Return what is kept of a run."""
    analysis = diagnosed(run)
    header = dataclasses.replace(run.header, spec=_without_place(run.header.spec))
    modes = {name: recorded_mode(analysis.run, name, summary) for name, summary in analysis.summary.modes.items()}
    return Recorded(header=header, modes=modes, findings=analysis.summary.findings)


def recorded_mode(run: Run, name: str, summary: ModeSummary) -> RecordedMode:
    """Return what is kept of one mode of a run, given its summary."""
    launches = every(run.modes[name])
    seconds = [seconds_per_step(launch) for launch in launches]
    reasons = ((launch.record.launch, disturbance(launch, run.header.fingerprint.cores)) for launch in launches)
    return RecordedMode(
        seconds=tuple(value for value in seconds if value is not None),
        steps=min((num_steps(launch) for launch in launches), default=0),
        batch=typical_batch(launches[0]) if launches else None,
        compiled=any(map(compiles, launches)),
        conditions=conditions(launches),
        summary=_kept(summary),
        again=_second_launch(run, name) if len(launches) > 1 else None,
        disturbed=tuple(f"launch {number}: {reason}" for number, reason in reasons if reason is not None),
    )


def _second_launch(run: Run, name: str) -> ModeSummary:
    alone = dataclasses.replace(run, modes={mode: found[1:2] for mode, found in run.modes.items()})
    return _kept(analyse(alone).summary.modes[name])


def _kept(mode: ModeSummary) -> ModeSummary:
    """Return a summary without what neither gate nor comparison reads, which is most of its size."""
    conversion = mode.conversion and dataclasses.replace(mode.conversion, written=(), warnings=(), patched=())
    return dataclasses.replace(
        mode,
        stderr_tail=(),
        conversion=conversion,
        traces=(),
        cross_checks=(),
        loader=None,
        waterfall=None,
        waterfall_reason="",
    )


def _without_place(spec: RunSpec) -> RunSpec:
    return dataclasses.replace(spec, target=script_of(spec), cwd=os.curdir)


def _empty_launch(mode: str, status: str) -> Launch:
    return Launch(record=LaunchRecord(mode=mode, launch=1, status=status), ranks=(), samples=())


def training_data(conversion: Conversion | None) -> str | None:
    """Return what the script trained on, as far as its first loader tells; None: there was no loader."""
    if conversion is None or not conversion.loaders:
        return None
    first = conversion.loaders[0]
    if first.num_batches is None:
        return first.dataset
    return f"{first.dataset}, {units.count(first.num_batches, 'batch')} per epoch"
