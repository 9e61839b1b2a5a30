"""What ran where, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.report.blocks import Absent, Block, Cell, Column, Facts, Fold, Lines, Paragraph, Table, View
from dpdoctor.report.text import amount_cell, mode_label, whole_cell
from dpdoctor.report.traces.traced import is_trace_run

NOT_MEASURED = Absent(
    what="Throughput, host phases, single steps, machine load, conversion of the script",
    reason="traces that existed before do not hold them; dpdoctor profile measures them",
)
READER = Paragraph(
    text="This is the machine that read the traces, not the one that was traced; what the traces say of that stands in "
    "the table at the top."
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return the command to repeat the run, the script or the paths of the traces, the machine and the versions."""
    return [
        _reproduce(analysis),
        Fold(title="Script, settings and modes", blocks=(*_what_ran(analysis),)),
        Fold(title="Machine and versions", blocks=(_machine(analysis), _gpus(analysis), *_packages(analysis))),
        *([NOT_MEASURED] if is_trace_run(analysis) else []),
    ]


def _what_ran(analysis: Diagnosis) -> Sequence[Block]:
    if is_trace_run(analysis):
        return [_reader(analysis), READER]
    return [_script(analysis), _modes(analysis)]


def _reproduce(analysis: Diagnosis) -> Lines:
    command = shlex.join(analysis.summary.command)
    return Lines(caption="How to reproduce", lines=(f"cd {shlex.quote(analysis.run.header.spec.cwd)}", command))


def _reader(analysis: Diagnosis) -> Facts:
    summary = analysis.summary
    return Facts(
        pairs=(("Traces", summary.script.path), ("Read", summary.created), ("dpdoctor", summary.dpdoctor)),
    )


def _script(analysis: Diagnosis) -> Facts:
    summary, spec = analysis.summary, analysis.run.header.spec
    return Facts(
        pairs=(
            ("Module" if spec.is_module else "Script", summary.script.path),
            ("Arguments", shlex.join(summary.script.args) or "none"),
            ("SHA-256", summary.script.sha256 or "unknown: the script could not be read as one file"),
            ("Created", summary.created),
            ("dpdoctor", summary.dpdoctor),
            ("Seed", f"{spec.seed}{', then one per rank' if spec.seed_per_rank else ''}"),
            ("Threads per device", str(spec.threads_per_device)),
            ("Devices", ", ".join(spec.devices) or "CPU"),
            ("Launches per mode", str(spec.repeat)),
            *_recording(analysis),
            ("Samples per step and rank", "counted" if spec.samples_per_step is None else str(spec.samples_per_step)),
            ("Modules that FSDP shards as one", "chosen" if spec.fsdp_wrap is None else ", ".join(spec.fsdp_wrap)),
            ("File writes", "really written" if spec.allow_writes else "redirected to an overlay, or refused"),
        )
    )


def _recording(analysis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yield how much was recorded, and of what."""
    recording = analysis.run.header.spec.recording
    steps = "at least 4, for 0.5 s" if recording.steps is None else str(recording.steps)
    yield "Time budget of each launch", units.seconds(recording.time_budget_s)
    yield "Warm-up", "until steady" if recording.warmup is None else units.count(recording.warmup, "step")
    yield "Steps per window", steps
    yield "Rounds of windows, at most", str(recording.rounds)
    yield "Steps traced", str(recording.trace_steps)
    yield "Ablations", ", ".join(recording.ablations) or "none"


def _modes(analysis: Diagnosis) -> Table:
    """Return what each mode was to be run on."""
    return Table(
        caption="Modes, in the order in which they ran.",
        columns=(
            Column(title="Mode"),
            Column(title="Processes", numeric=True),
            Column(title="Devices", numeric=True),
            Column(title="Batches"),
            Column(title="Asked for"),
        ),
        rows=tuple(
            (
                Cell(text=mode_label(mode.name)),
                whole_cell(mode.world_size),
                whole_cell(mode.num_devices, note=mode.placement),
                Cell(text=mode.batch_rule),
                Cell(text="by name" if mode.name in analysis.run.header.spec.requested_modes else "for comparison"),
            )
            for mode in analysis.run.header.spec.modes
        ),
    )


def _machine(analysis: Diagnosis) -> Facts:
    machine = analysis.summary.fingerprint
    return Facts(
        pairs=(
            ("Host", machine.host),
            ("CPU", machine.cpu or "unknown: the system does not name it"),
            ("Cores", str(machine.cores)),
            ("Memory", units.size(machine.memory_bytes)),
            ("System", machine.system),
            ("Python", machine.python),
            ("GPU driver", machine.driver or "none found"),
        )
    )


def _gpus(analysis: Diagnosis) -> Table | Absent:
    gpus = analysis.summary.fingerprint.gpus
    if not gpus:
        return Absent(what="GPUs", reason="no GPU was found on this machine")
    return Table(
        caption="GPUs of this machine.",
        columns=(Column(title="GPU"), Column(title="Memory", numeric=True), Column(title="UUID")),
        rows=tuple((Cell(text=gpu.name), amount_cell(gpu.memory_bytes, "bytes"), Cell(text=gpu.uuid)) for gpu in gpus),
    )


def _packages(analysis: Diagnosis) -> Iterator[Block]:
    packages = analysis.summary.fingerprint.packages
    if packages:
        yield Facts(pairs=tuple(sorted(packages.items())))
    else:
        reason = "traces do not say what made them" if is_trace_run(analysis) else "none was recorded"
        yield Absent(what="Package versions", reason=reason)


def result(analysis: Diagnosis) -> str:
    """Return the versions and the machine that figures depend on most."""
    machine = analysis.summary.fingerprint
    torch = machine.packages.get("torch")
    versions = (f"torch {torch}",) if torch else ()
    return ", ".join((*versions, f"Python {machine.python}", units.count(machine.cores, "core")))


VIEW: View[Diagnosis] = View(
    name="environment",
    title="Environment",
    build=build,
    result=result,
    is_half=True,
)
