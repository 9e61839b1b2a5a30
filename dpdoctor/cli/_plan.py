"""From options to a RunSpec: everything a person can get wrong is said before anything runs."""

from __future__ import annotations

import ast
import math
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import msgspec

from dpdoctor import cgroup, units
from dpdoctor.catalog import ABLATIONS, MODES
from dpdoctor.errors import ScriptNotFoundError, UsageError
from dpdoctor.launch import machine
from dpdoctor.spec import (
    BASELINE,
    BESIDE,
    CONTROL_S,
    MOST_TURNS,
    NATIVE,
    SPAWNS,
    WALLS,
    Gpu,
    ModeSpec,
    Recording,
    RunSpec,
    is_of_ranks,
)
from dpdoctor.worker import modes
from dpdoctor.worker.base.mode import Mode

DATA_PARALLEL = "dp"
# Launchers that are this Python's, wherever PATH leads.
OWN_LAUNCHERS = ("python", "torchrun")
JOINS = ("dist.init_process_group", "distributed.init_process_group", "torch.distributed.init_process_group")
# What a script that knows torchrun reads, by itself or through init_process_group.
SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "env://")
DEFAULT_CPU_RANKS = 2
# Seconds that starting Python, torch and a small script take; only for the estimate that is printed.
STARTUP_S = 10.0
UNSEEN_GPUS = (
    "CUDA finds {}, but NVML, by which dpdoctor finds and watches them, finds none: is libnvidia-ml.so.1 there? In a "
    "container it needs NVIDIA_DRIVER_CAPABILITIES=compute,utility. Or set CUDA_VISIBLE_DEVICES= (empty) to run on the "
    "CPU"
)
# Launches of each repetition that measure what watching costs, without those that follow where it is not clear.
BARE_LAUNCHES = 3


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options that make a RunSpec, as click hands them over.

    `directory` is where the script is and runs; None: the present directory.
    """

    script: str | None
    module: str | None
    args: tuple[str, ...]
    modes: str
    baseline: bool
    nproc: int | None
    batch: str | None
    seed: int
    repeat: int
    timeout: float
    samples_per_step: int | None
    fsdp_wrap: tuple[str, ...] | None
    recording: Recording
    allow_writes: bool = False
    wall: str = WALLS[0]
    control: bool = False
    seed_per_rank: bool = False
    dp_devices: str | None = None
    directory: Path | None = None
    launcher: str | None = None
    go_on: bool = False

    @property
    def here(self) -> Path:
        """Return the absolute directory in which the script runs."""
        return Path.cwd() if self.directory is None else self.directory.resolve()


def known_modes() -> dict[str, Mode]:
    """Return every mode there is, by name."""
    return {mode.name: modes.load(mode.name) for mode in MODES}


def known_ablations(asked: str) -> tuple[str, ...]:
    """Return the names of the ablations that `all`, `none` or a list with commas asks for.

    Raises:
        UsageError: there is no ablation of a name; the message lists those that there are.
    """
    known = [ablation.name for ablation in ABLATIONS]
    if asked in {"all", "none"}:
        return tuple(known) if asked == "all" else ()
    names = tuple(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"there is no ablation {unknown[0]!r}" if unknown else "--ablations names none"
        raise UsageError(f"{what}. Known ablations: {', '.join(known)}, or all, or none")
    return names


def make_spec(options: Options) -> RunSpec:
    """Return the run that the options ask for.

    Raises:
        UsageError: something named does not exist, or cannot be had on this machine.
    """
    _refuse_no_text(options)
    target = _target(options)
    requested = _requested(options.modes)
    is_native = requested == [NATIVE]
    if options.go_on and not is_native:
        raise UsageError(f"--then go-on is for mode {NATIVE}: other modes train on what is thrown away")
    if options.go_on and options.repeat > 1:
        raise UsageError("--then go-on runs a job once, to its own end: leave out --repeat")
    if is_native and options.wall != WALLS[0] and not options.allow_writes:
        raise UsageError(
            f"--wall {options.wall} does not keep processes that others start, the ranks of mode {NATIVE}, from your "
            "files: leave it out, or give --allow-writes"
        )
    devices = _usable_devices(machine.gpus()[0])
    own = _launcher(options)
    if is_native and (options.nproc or 1) > 1 and options.launcher is None and options.module is None:
        _refuse_spawning(target)
    alone, no_baseline = _alone(own, options, devices) if is_native else ((), "")
    has_baseline = options.baseline and BASELINE not in requested and not no_baseline
    wanted = [BASELINE, *requested] if has_baseline else requested
    known = known_modes()
    # How many ranks a script of its own has is its author's affair.
    nproc = _nproc(None if is_native else options.nproc, devices, parallel=any(name != BASELINE for name in wanted))
    devices = devices[:nproc]
    replicas = {DATA_PARALLEL: _replicas(options.dp_devices, wanted, len(devices))}
    return RunSpec(
        target=target,
        is_module=options.module is not None,
        args=options.args,
        cwd=str(options.here),
        modes=tuple(
            _native_spec(name, known[NATIVE], launcher)
            if (launcher := own if name == NATIVE else alone)
            else _mode_spec(name, known[name], nproc, options.batch, replicas.get(name, ()), num_gpus=len(devices))
            for name in wanted
        ),
        requested_modes=tuple(requested),
        devices=devices,
        threads_per_device=max(1, cgroup.cores() // nproc),
        seed=options.seed,
        seed_per_rank=options.seed_per_rank,
        repeat=options.repeat,
        timeout_s=options.timeout,
        samples_per_step=options.samples_per_step,
        fsdp_wrap=options.fsdp_wrap,
        allow_writes=options.allow_writes,
        wall=options.wall,
        no_baseline=no_baseline if options.baseline else "",
        control=options.control and BASELINE in wanted and not is_native,
        recording=options.recording,
        go_on=options.go_on,
    )


def _refuse_no_text(options: Options) -> None:
    """Refuse arguments and directories that are no text: what is handed to ranks is.

    Raises:
        UsageError: names the first.
    """
    texts = (str(options.here), str(options.script or ""), *options.args)
    wrong = next((text for text in texts if not text.isascii() and _is_no_text(text)), None)
    if wrong is not None:
        raise UsageError(f"{os.fsencode(wrong)!r} is no UTF-8; rename it")


def _is_no_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _target(options: Options) -> str:
    if options.module is not None:
        if options.module.startswith("-"):
            raise UsageError(
                f"-m is followed by {options.module}: give options before it, and a module's name after it"
            )
        if not _has_module(options.module, options.here):
            raise ScriptNotFoundError(f"there is no module {options.module!r} on the import path of this Python")
        return options.module
    if options.script is None:
        raise UsageError("give a SCRIPT, or a module with -m")
    path = options.here / options.script
    if not path.exists():
        raise ScriptNotFoundError(f"there is no script {options.script} in {options.here}")
    if not path.is_file():
        raise ScriptNotFoundError(f"{options.script} is a directory; give the script itself, or a package with -m")
    if not os.access(path, os.R_OK):
        raise ScriptNotFoundError(f"{options.script} cannot be read by this user; change its permissions")
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{options.script} is a notebook, which Python does not run; "
            "`jupyter nbconvert --to script` makes a script of it"
        )
    # A script that is a link is known by the link's name, as Python has it.
    return os.path.abspath(path)  # noqa: PTH100 - Path has nothing that leaves links alone


def _has_module(name: str, directory: Path) -> bool:
    """Return whether `python -m` would find a module, without importing the packages that it lies in."""
    places: Sequence[str] | None = [str(directory), *sys.path]  # the first is where `python -m` looks first
    known: list[str] = []
    for part in name.split("."):
        if not part or places is None or (spec := _spec(".".join([*known, part]), places)) is None:
            return False
        known.append(part)
        places = spec.submodule_search_locations
    return True


def _spec(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """Return where a module lies, by its path or a finder of its own, as `pip install -e` may put up."""
    if (spec := PathFinder.find_spec(name, places)) is not None:
        return spec
    finders = (finder for finder in sys.meta_path if finder is not PathFinder)
    return next((found for finder in finders if (found := finder.find_spec(name, places)) is not None), None)


def _requested(modes: str) -> list[str]:
    requested = list(dict.fromkeys(name.strip() for name in modes.split(",") if name.strip()))
    known = [mode.name for mode in MODES]
    unknown = [name for name in requested if name not in known]
    if unknown:
        raise UsageError(f"there is no mode {unknown[0]!r}. Known modes: {', '.join(known)}")
    if not requested:
        raise UsageError(f"--modes names none. Known modes: {', '.join(known)}")
    return requested


def _nproc(asked: int | None, devices: Sequence[str], *, parallel: bool) -> int:
    cores = cgroup.cores()
    if asked is None:
        return (len(devices) or min(DEFAULT_CPU_RANKS, cores)) if parallel else 1
    if devices and asked > len(devices):
        raise UsageError(
            f"--nproc {asked} asks for more ranks than there are GPUs to use ({len(devices)}). Lower it, or set "
            "CUDA_VISIBLE_DEVICES= (empty) to run on the CPU"
        )
    if not devices and asked > cores:
        raise UsageError(f"--nproc {asked} asks for more ranks than there are cores to use ({cores})")
    return asked


def default_ranks() -> int:
    """Return how many ranks a parallel mode has where nobody says it."""
    return _nproc(None, _usable_devices(machine.gpus()[0]), parallel=True)


def _usable_devices(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    if not gpus and (unseen := machine.num_cuda_devices()):
        raise UsageError(UNSEEN_GPUS.format(units.count(unseen, "GPU")))
    devices = machine.visible_devices(gpus)
    twice = next((device for device in devices if devices.count(device) > 1), None)
    if twice is not None:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES names GPU {twice} twice, but a GPU takes one rank. "
            "--dp-devices 0,0 puts two replicas of nn.DataParallel on one GPU"
        )
    return devices


def _replicas(text: str | None, modes: Sequence[str], num_gpus: int) -> tuple[int, ...]:
    """Return the GPU of each replica that --dp-devices asks for; none when it is not given."""
    if text is None:
        return ()
    if DATA_PARALLEL not in modes:
        raise UsageError(f"--dp-devices is for mode {DATA_PARALLEL}, which --modes does not name")
    if not num_gpus:
        raise UsageError("--dp-devices needs a GPU: without one nn.DataParallel calls the plain module")
    try:
        replicas = tuple(int(entry) for entry in text.split(","))
    except ValueError:
        raise UsageError(f"--dp-devices is {text!r}; give numbers of GPUs, with commas between, such as 0,1") from None
    absent = next((gpu for gpu in replicas if not 0 <= gpu < num_gpus), None)
    if absent is not None:
        raise UsageError(
            f"--dp-devices names GPU {absent}, but this run uses {units.count(num_gpus, 'GPU')}, counted from 0"
        )
    if len(replicas) < 2:
        raise UsageError(
            f"--dp-devices {text} asks for one replica: nn.DataParallel then calls the plain module. Give two or more; "
            f"{replicas[0]},{replicas[0]} puts two on one GPU"
        )
    return replicas


def _mode_spec(
    name: str, mode: Mode, nproc: int, batch: str | None, replicas: tuple[int, ...], *, num_gpus: int
) -> ModeSpec:
    inactive = None if replicas else mode.inactive(num_gpus=num_gpus)
    num_devices = len(set(replicas)) or (1 if inactive else mode.num_devices(nproc))
    # One process that drives several devices splits the script's batch, whatever ranks do.
    always = not mode.distributed and name != BASELINE
    return ModeSpec(
        name=name,
        world_size=mode.world_size(nproc),
        num_devices=num_devices,
        inactive=inactive,
        distributed=mode.distributed,
        batch_rule=mode.batch_rule if always or batch is None else batch,
        replicas=replicas,
    )


def _launcher(options: Options) -> tuple[str, ...]:
    """Return what starts the ranks of mode native: the script itself or, where their number is given, torchrun."""
    if options.launcher is not None:
        try:
            found = tuple(shlex.split(options.launcher))
        except ValueError as error:
            raise UsageError(f"--launcher {options.launcher!r} is no command of a shell: {error}") from error
        if not found:
            raise UsageError("--launcher names no command")
        if not (found[0] in OWN_LAUNCHERS or os.sep in found[0] or machine.command(found[0])):
            raise UsageError(f"--launcher: {found[0]} was not found, neither on PATH nor beside {sys.executable}")
        return found
    return ("python",) if options.nproc is None else torchrun(options.nproc)


def torchrun(nproc: int) -> tuple[str, ...]:
    """Return what starts so many ranks of a script that waits to be started as each."""
    return ("torchrun", "--standalone", "--nproc-per-node", str(nproc))


def _refuse_spawning(script: str) -> None:
    """Refuse torchrun for a script that starts its ranks itself: each of torchrun's would start as many again.

    One that may also take its rank from the environment knows both ways.

    Raises:
        UsageError: it starts them; names the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(Path(script).read_bytes())))
        calls = [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # running it says why
    if any(isinstance(node, ast.Constant) and node.value in SET_BY_TORCHRUN for node in nodes):
        return
    if any(name in JOINS and _takes_rank_from_environment(call) for name, call in calls):
        return
    for name, call in calls:
        if name in {"mp.spawn", "mp.start_processes", *SPAWNS}:
            raise UsageError(
                f"{script}:{call.lineno} starts its ranks itself ({name}), and --nproc starts torchrun: leave out "
                "--nproc, or say with --launcher what starts the script"
            )


def _takes_rank_from_environment(call: ast.Call) -> bool:
    """Return whether a call of `init_process_group` gives no rank, its fifth argument; what is unpacked may be one."""
    is_unpacked = any(isinstance(argument, ast.Starred) for argument in call.args)
    gives_rank = len(call.args) > 4 or any(keyword.arg in ("rank", None) for keyword in call.keywords)
    return not (is_unpacked or gives_rank)


def _alone(launcher: tuple[str, ...], options: Options, devices: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return what starts one rank where a launcher starts several; else nothing, and why."""
    if options.go_on:
        return (), "a script that goes on to its own end is run once"
    if launcher == ("python",):
        # One that starts a rank for each GPU that it sees starts one where it sees one.
        return (launcher, "") if len(devices) > 1 else ((), "the script itself decides how many ranks it starts")
    one = tuple(_of_one_rank(launcher))
    if one == launcher:
        return (), f"which option of `{shlex.join(launcher)}` makes it start one rank is not known, or it starts one"
    return one, ""


def _of_one_rank(launcher: Sequence[str]) -> Iterator[str]:
    """Yield a launcher's words with the number of ranks, of its `--option N` or `--option=N`, replaced by one."""
    before = ""
    for word in launcher:
        option, equals, _ = word.partition("=")
        if equals and is_of_ranks(option):
            yield f"{option}=1"
        else:
            yield "1" if is_of_ranks(before) else word
        before = word


def _native_spec(name: str, mode: Mode, launcher: tuple[str, ...]) -> ModeSpec:
    """Return a mode whose ranks the launcher starts. How many there are is found while they run."""
    return ModeSpec(
        name=name,
        world_size=1,
        num_devices=1,
        distributed=mode.distributed,
        batch_rule=mode.batch_rule,
        launcher=launcher,
    )


def describe(spec: RunSpec) -> str:
    """Return the plan and the estimate of its time, in one sentence."""
    threads = units.count(spec.threads_per_device, "thread")
    are_own = all(mode.launcher for mode in spec.modes)  # ranks, with as many threads as they take
    device = "GPU" if spec.devices else "CPU" if are_own else f"CPU with {threads} per device"
    modes = ", ".join(_mode_words(mode, go_on=spec.go_on) for mode in spec.modes)
    launches = len(spec.modes) * spec.repeat
    per_launch = STARTUP_S + (0 if spec.recording.explain else spec.recording.time_budget_s)
    seconds, control = launches * per_launch, ""
    if spec.control:
        seconds += (BARE_LAUNCHES * spec.repeat + 2 * MOST_TURNS) * (STARTUP_S + CONTROL_S)
        control = f", and {BASELINE} in short launches that tell what watching costs,"
    reasons = ", or ".join(_why_again(spec, are_own=are_own))
    again = f", and up to {_about(per_launch)} more for each mode that is launched again: {reasons}"
    less = "" if spec.recording.explain else ", less where training ends first"
    return f"Plan: {modes}{control} on {device}; about {_about(seconds)}{less}{again if reasons else ''}"


def _about(seconds: float) -> str:
    """Return an estimate, no finer than it is."""
    return f"{math.ceil(seconds / 60)} min" if seconds > 90 else f"{10 * math.ceil(seconds / 10)} s"


def _why_again(spec: RunSpec, *, are_own: bool) -> Iterator[str]:
    """Yield why a mode may be launched again, of which nobody knows beforehand."""
    recording = spec.recording
    if recording.explain or spec.go_on:
        return
    if tries_loaders(spec) and not are_own:
        yield "to try another loader setting"
    if recording.trace_steps:
        yield "for a trace, where training ends before it"
    if recording.ablations:
        yield "without an ablation with which it failed"


def tries_loaders(spec: RunSpec) -> bool:
    """Return whether a mode may be launched once more to try another setting of its loader."""
    return BESIDE in spec.recording.ablations and not (spec.recording.explain or spec.go_on)


def _mode_words(mode: ModeSpec, *, go_on: bool) -> str:
    if mode.launcher:
        end = ", to its own end; what it writes is really written" if go_on else ""
        return f"{mode.name} (as {' '.join(mode.launcher)} starts it{end})"
    replicas = f", {mode.placement}" if mode.replicas else ""
    return f"{mode.name} ({units.count(mode.world_size, 'process')}{replicas}, batches {mode.batch_rule})"
