"""What a gate takes from a run: what was run, how long a step takes, why that is not to be judged by, the machine.

What was run, the workload, is apart from where and from what the code says: calibrations and baselines are of one. What
the machine was like explains a difference, but forbids no comparison.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from dpdoctor import redact, units
from dpdoctor.analysis import Diagnosis, Finding, ModeSummary
from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.base.launches import NS, LaunchFacts, of_one_kind, shown
from dpdoctor.analysis.base.summary import RunSummary, Script
from dpdoctor.analysis.machine import (
    CLOCK,
    QUOTA_USED_UP,
    Throttled,
    gpu_samples,
    throttled,
    throttled_periods,
    while_measured,
)
from dpdoctor.records import Conversion, Launch, LaunchRecord, Run, Sample
from dpdoctor.rules import diagnosed
from dpdoctor.spec import ModeSpec, Recording, RunHeader, RunSpec


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A script with its arguments, and how it was spread and recorded.

    Attributes:
        script: relative to the directory that it ran in, or the name of a module.
        args: redacted, as one line of a shell.
        devices: most that a mode drives; 0: as many as a launcher of the script's own starts ranks for. `on`: GPU or
            CPU.
        steps, rounds, warmup, budget_s: of Recording; what is taken from fewer steps or windows varies more.
    """

    script: str
    args: str
    devices: int
    on: str
    threads_per_device: int
    samples_per_step: int | None
    fsdp_wrap: tuple[str, ...] | None
    warmup: int | None
    steps: int | None
    rounds: int
    budget_s: float = Recording().time_budget_s

    def __str__(self) -> str:
        command = f"{self.script} {self.args}".rstrip()
        threads = units.count(self.threads_per_device, "thread")
        wrapped = "" if self.fsdp_wrap is None else f", FSDP wraps: {', '.join(self.fsdp_wrap)}"
        where = units.count(self.devices, self.on) if self.devices else self.on
        return f"{command} on {where} with {threads} each{wrapped}, {self.recording}"

    @property
    def recording(self) -> str:
        """Return how launches are measured."""
        settings = {
            "samples per step": self.samples_per_step,
            "warm-up steps": self.warmup,
            "steps per window": self.steps,
            "time budget": None if self.budget_s == Recording().time_budget_s else units.seconds(self.budget_s),
        }
        told = "".join(f", {name}: {value}" for name, value in settings.items() if value is not None)
        return f"{units.count(self.rounds, 'window')}{told}"


def workload(spec: RunSpec) -> Workload:
    """Return the workload of a run, alike for two checkouts of a script."""
    return Workload(
        script=script_of(spec),
        args=shlex.join(redact.arguments(spec.args)),
        devices=max((mode.num_devices for mode in spec.modes if not mode.launcher), default=0),
        on="GPU" if spec.devices else "CPU",
        threads_per_device=spec.threads_per_device,
        samples_per_step=spec.samples_per_step,
        fsdp_wrap=spec.fsdp_wrap,
        warmup=spec.recording.warmup,
        steps=spec.recording.steps,
        rounds=spec.recording.rounds,
        budget_s=spec.recording.time_budget_s,
    )


def sharing(mode: ModeSpec) -> str:
    """Return how the devices of a mode share batches and where they are, or what starts ranks that do so themselves."""
    if mode.launcher:
        return f"as `{shlex.join(redact.arguments(mode.launcher))}` starts it"
    return f"{mode.batch_rule} {mode.placement}".rstrip()


def script_of(spec: RunSpec) -> str:
    """Return the script relative to the directory that it ran in, or the name of the module."""
    return spec.target if spec.is_module else os.path.relpath(spec.target, spec.cwd)


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Of all launches of a mode; None: this machine does not tell, or it was not sampled.

    Attributes:
        pressure: share of the time in which some task waited for a core; ratio.
        throttled: periods of a CPU quota in which it was used up.
        sm_clock_mhz: median of the GPUs that ranks used.
    """

    pressure: float | None
    throttled: int | None
    sm_clock_mhz: float | None


def conditions(launches: Sequence[LaunchFacts]) -> Conditions:
    """Return what was sampled while something was measured."""
    found = [_samples(launch) for launch in launches]
    pressures = [p for samples in found for p in _growths(samples, "pressure_cpu_s", per_second=True)]
    throttled = [t for samples in found for t in _growths(samples, "num_throttled", per_second=False)]
    of_gpus = [s.values for launch in launches for samples in gpu_samples(launch).values() for s in samples]
    clocks = [values[CLOCK] for values in of_gpus if CLOCK in values]
    return Conditions(
        pressure=median(pressures) if pressures else None,
        throttled=round(sum(throttled)) if throttled else None,
        sm_clock_mhz=median(clocks) if clocks else None,
    )


def _samples(launch: LaunchFacts) -> list[Sample]:
    windows = [rank.window for window in launch.windows() for rank in window.ranks]
    begin, end = min((w.begin_ns for w in windows), default=0), max((w.end_ns for w in windows), default=0)
    return [sample for sample in launch.samples if begin <= sample.at_ns <= end]


def _growths(samples: Sequence[Sample], name: str, *, per_second: bool) -> Iterator[float]:
    """Yield by how much a cumulative reading of the host grew in a launch; nothing where it was read only once."""
    seen = [(s.at_ns * NS, s.values[name]) for s in samples if s.source == "host" and name in s.values]
    if len(seen) > 1:
        (first_s, first), (last_s, last) = seen[0], seen[-1]
        yield (last - first) / (last_s - first_s) if per_second else last - first


# Fewer steps than this make a median that moves with single steps.
LEAST_STEPS = 20


def seconds_per_step(launch: LaunchFacts) -> float | None:
    """Return the mean of the faster half of the launch's measured windows, in seconds per step; None: there is none.

    Whatever else a machine does makes windows slower, never faster, so the faster half spreads less from launch to
    launch than the median or the mean of all. Of windows, not of steps: what holds up one step in ten is in every
    window, but not in the faster half of the steps; and on a GPU only the edges of windows wait for the device.
    """
    found = sorted(window.seconds_per_step for window in launch.windows())
    return fmean(found[: (len(found) + 1) // 2]) if found else None


def shown_seconds_per_step(launch: LaunchFacts) -> float | None:
    """Return the seconds per step that a report shows of the launch, those of all its windows; None: there are none."""
    found = [window.step() for window in launch.windows()]
    return sum(seconds for seconds, _ in found) / sum(steps for _, steps in found) if found else None


def num_steps(launch: LaunchFacts) -> int:
    """Return the number of steps that `seconds_per_step` is taken from."""
    return sum(len(window.ranks[0].steady) for window in launch.windows())


# Of the steps with the largest batch: up to this share it came together by chance. Epochs of three steps, of which the
# first is left out and the last is smaller, have it in a half of the others, give or take where windows begin.
MOST_SHARE_OF_CHANCE = 0.25


def typical_batch(launch: LaunchFacts) -> int | None:
    """Return the samples of all ranks in a step; None: nothing was measured, or batches are of many sizes.

    The largest, because the last batch of an epoch is smaller, and how many of those are seen varies. Where that is
    rare, batches are put together by what is in them, and no two launches see the same.
    """
    per_rank = [
        [step.samples_drawn or step.samples_entered for w in launch.windows() for step in w.ranks[index].steady]
        for index in range(len(launch.ranks))
    ]
    if not per_rank or not all(per_rank):
        return None
    largest = [max(samples) for samples in per_rank]
    if any(of.count(most) <= MOST_SHARE_OF_CHANCE * len(of) for of, most in zip(per_rank, largest, strict=True)):
        return None
    return sum(largest)


def recompilations(launch: LaunchFacts) -> int:
    """Return how often torch.compile compiled while it was measured, on the rank where it did most."""
    return max((_compiled(launch, index) for index in range(len(launch.ranks))), default=0)


def _compiled(launch: LaunchFacts, index: int) -> int:
    windows = [found.ranks[index].window for found in launch.windows()]
    events = [event.at_ns for event in launch.ranks[index].events if event.kind == "compile"]
    return sum(any(window.begin_ns <= at < window.end_ns for window in windows) for at in events)


def compiles(launch: Launch) -> bool:
    """Return whether the script uses torch.compile."""
    return any(event.kind == "compile" for rank in launch.ranks for event in rank.events)


def disturbance(launch: LaunchFacts, cores: int) -> str | None:
    """Return why a launch on a machine of so many cores is not to be judged by, in clauses; None: it is."""
    if launch.record.status != "ok":
        return None
    clauses = (*_lowered_clocks(launch), *_quota(launch), *_compilations(launch), *_others(launch, cores))
    return "; ".join(clauses) or None


def _lowered_clocks(launch: LaunchFacts) -> tuple[str, ...]:
    if not any(rank.record.devices for rank in launch.ranks if rank.record):
        return ()
    found = throttled(launch)
    return (found.words,) if isinstance(found, Throttled) else ()


def _quota(launch: LaunchFacts) -> tuple[str, ...]:
    share = throttled_periods([launch]).value
    if share is None or share <= QUOTA_USED_UP:
        return ()
    return (f"a CPU quota held processes back in {units.share(share)} of its periods",)


def _compilations(launch: LaunchFacts) -> tuple[str, ...]:
    number = recompilations(launch)
    return (f"torch.compile compiled {units.count(number, 'graph')} while it was measured",) if number else ()


def _others(launch: LaunchFacts, cores: int) -> tuple[str, ...]:
    taken = while_measured(launch, cores)
    return () if taken is None else (taken,)


class RecordedMode(msgspec.Struct, frozen=True, kw_only=True):
    """One mode of a run.

    Attributes:
        seconds: per step in the faster half of its windows, of each launch that measured any, in their order; those
            that steady figures leave out are left out here, too.
        shown: the same in all of its windows, as reports show it; empty in baselines from before it was kept.
        steps: fewest that one of them is taken from.
        batch: samples of all ranks in a step of the first launch whose batch is whole.
        compiled: whether the script uses torch.compile.
        disturbed: why launches are not to be judged by, one sentence each.
        summary: of all launches, without what only the report shows.
        again: of another launch than that whose counters `summary` has: in which it differs, they vary by nature;
            None: there was only one.
    """

    seconds: tuple[float, ...]
    steps: int
    batch: int | None
    compiled: bool
    conditions: Conditions
    summary: ModeSummary
    again: ModeSummary | None = None
    disturbed: tuple[str, ...] = ()
    shown: tuple[float, ...] = ()


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
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
    header = replace(run.header, spec=_without_place(run.header.spec))
    modes = {name: recorded_mode(analysis.run, name, summary) for name, summary in analysis.summary.modes.items()}
    return Recorded(header=header, modes=modes, findings=analysis.summary.findings)


def recorded_mode(run: Run, name: str, summary: ModeSummary) -> RecordedMode:
    """Return what is kept of one mode of a run, given its summary."""
    launches = of_one_kind(run.modes[name])
    seconds, shown = (list(map(of, launches)) for of in (seconds_per_step, shown_seconds_per_step))
    reasons = ((launch.record.launch, disturbance(launch, run.header.fingerprint.cores)) for launch in launches)
    return RecordedMode(
        seconds=tuple(value for value in seconds if value is not None),
        shown=tuple(value for value in shown if value is not None),
        steps=min((num_steps(launch) for launch in launches), default=0),
        batch=typical_batch(launches[0]) if launches else None,
        compiled=any(map(compiles, launches)),
        conditions=conditions(launches),
        summary=_kept(summary),
        again=_another_launch(run, name) if len(run.modes[name]) > 1 else None,
        disturbed=tuple(f"launch {number}: {reason}" for number, reason in reasons if reason is not None),
    )


def _another_launch(run: Run, name: str) -> ModeSummary:
    seen = shown(run.modes[name]).record.launch
    another = next(launch for launch in run.modes[name] if launch.record.launch != seen)
    alone = replace(run, modes={**{mode: found[1:2] for mode, found in run.modes.items()}, name: (another,)})
    return _kept(analyse(alone).summary.modes[name])


def _kept(mode: ModeSummary) -> ModeSummary:
    """Return a summary without what neither gate nor comparison reads, which is most of its size."""
    conversion = mode.conversion and replace(mode.conversion, written=(), warnings=(), patched=())
    return replace(
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
    return replace(spec, target=script_of(spec), cwd=os.curdir)


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
