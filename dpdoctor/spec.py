"""What is to be run: the one value that the launcher, the workers and the reader agree on."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dpdoctor import units

SCHEMA = 2
BATCH_RULES = ("per-device", "global")
# The one mode of a run directory that was made of existing traces.
TRACE_MODE = "trace"
# The mode that all others are compared with.
BASELINE = "single"
# The mode whose ranks the script, or a launcher of its own, starts.
NATIVE = "native"
# How much longer than the launcher a collective waits for its peers: only the launcher sees which rank hangs.
COLLECTIVE_GRACE_S = 10.0


class ModeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One mode as it will be launched.

    Attributes:
        name: the mode's file name in dpdoctor/worker/modes.
        world_size: number of processes.
        num_devices: devices that all processes together drive; one each, but DataParallel's one process drives several.
        distributed: whether the processes form a process group.
        batch_rule: what happens to the script's batches, one of BATCH_RULES.
        inactive: why the mode does nothing on this machine; None: it does.
        replicas: for each replica of nn.DataParallel its GPU, as a place in RunSpec.devices; empty: one on every GPU.
        launcher: what comes before the script in the command that starts its ranks, of which the script or that
            launcher decides how many there are; empty: dpdoctor starts them.
    """

    name: str
    world_size: int
    num_devices: int
    distributed: bool
    batch_rule: str
    inactive: str | None = None
    replicas: tuple[int, ...] = ()
    launcher: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"world_size is {self.world_size}; a mode needs at least one process")
        if self.distributed and self.num_devices != self.world_size:
            raise ValueError(
                f"{self.num_devices} devices for {self.world_size} processes; distributed ones have one each"
            )
        if self.batch_rule not in BATCH_RULES:
            raise ValueError(f"batch_rule is {self.batch_rule!r}; known: {', '.join(BATCH_RULES)}")
        if self.replicas and self.num_devices != len(set(self.replicas)):
            raise ValueError(f"num_devices is {self.num_devices}; replicas lie on {len(set(self.replicas))}")

    @property
    def placement(self) -> str:
        """Return where the replicas that were asked for lie: `2 replicas on one GPU: 0,0`; empty: none were."""
        return f"{placement(self.replicas)}: {','.join(map(str, self.replicas))}" if self.replicas else ""


def placement(replicas: Sequence[int]) -> str:
    """Return in words on how many GPUs replicas lie, given the GPU of each."""
    num_gpus = len(set(replicas))
    return f"{units.count(len(replicas), 'replica')} on {'one GPU' if num_gpus == 1 else units.count(num_gpus, 'GPU')}"


class LoaderSetting(msgspec.Struct, frozen=True, kw_only=True):
    """How many processes of a DataLoader fetch, and how many batches each of them fetches ahead; of none, nothing."""

    num_workers: int
    prefetch_factor: int

    @property
    def words(self) -> str:
        """Return it as arguments."""
        ahead = f", prefetch_factor={self.prefetch_factor}" if self.num_workers else ""
        return f"num_workers={self.num_workers}{ahead}"


# The ablation that tries a loader process; who leaves it out tries no other settings either.
BESIDE = "one_worker"
# The ablation of a launch that tries another setting; nobody asks for it by name.
OTHER_SETTING = "other_loader_setting"
# Why neither of them can run, in a further launch as little as in this one.
SEVERAL_LOADERS = "not one loader alone feeds the training"
# torch fetches two batches ahead where the script does not say.
ONE_WORKER = LoaderSetting(num_workers=1, prefetch_factor=2)


# What a launch trains at most that measures what watching costs.
CONTROL_S, CONTROL_ROUNDS = 8.0, 5
# Watched and bare launches beyond the planned ones, two for a turn.
MOST_TURNS = 2
# Steps of warm-up before a trace for which a mode is launched once more.
MOST_WARMUP = 10


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """How much is recorded. None means: decided by rank 0 from what it measures.

    Attributes:
        warmup: steps before the first window; None: until the step time is steady.
        steps: counted steps per window; None: at least 4 steps and 0.5 s.
        rounds: most rounds of windows; fewer when `time_budget_s` runs out.
        time_budget_s: seconds that each launch of a mode may train after its first step, with the trace.
        trace_steps: steps recorded by torch.profiler at the end; 0 turns the trace off.
        comm_kernels: what kernels that communicate are called, too, as a regular expression; None: nothing else.
        explain: stop after the proof of conversion, measure nothing.
        trace_only: trace right after the proof, measure nothing.
        loader_trials: at the end, try what a loader's hand-offs and fetches cost, for predictions of other settings.
        loader_setting: which a launch is made to try, in windows between those of the script's own; None: the
            launch is another one.
        ablations: names of the ablations to interleave with full windows, files of dpdoctor/worker/ablations; each mode
            runs those that it can.
        raised: why some of these are left out all the same: a launch failed with them.
    """

    warmup: int | None = None
    steps: int | None = None
    rounds: int = 10
    time_budget_s: float = 60.0
    trace_steps: int = 12
    comm_kernels: str | None = None
    explain: bool = False
    trace_only: bool = False
    loader_trials: bool = True
    loader_setting: LoaderSetting | None = None
    ablations: tuple[str, ...] = ()
    raised: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("warmup", self.warmup, 1),
            ("steps", self.steps, 1),
            ("rounds", self.rounds, 1),
            ("trace_steps", self.trace_steps, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")
        if not self.time_budget_s > 0:
            raise ValueError(f"time_budget_s is {self.time_budget_s}; it must be above 0")

    def of_control(self) -> Recording:
        """Return how much a launch records that measures what watching costs: as much as the mean of a step needs."""
        return Recording(
            warmup=self.warmup,
            rounds=CONTROL_ROUNDS,
            time_budget_s=min(CONTROL_S, self.time_budget_s),
            trace_steps=0,
            loader_trials=False,
        )

    def of_trace(self, num_steps: int) -> Recording | None:
        """Return what a launch for the trace alone records of a script that takes so many steps; None: too few.

        A quarter of the steps at most warms up, and three are left for the proof and for the profiler to begin.
        """
        warmup = max(1, min(MOST_WARMUP, num_steps // 4))
        trace_steps = min(self.trace_steps, num_steps - warmup - 3)
        if trace_steps < 1:
            return None
        return replace(self, trace_only=True, warmup=warmup, trace_steps=trace_steps, ablations=(), loader_trials=False)


# What keeps compiled code and programs from the user's files, the best first; the next where one cannot stand.
WALLS = ("overlay", "landlock", "none")
# What is said of an error that the overlay of the kernel's made; the mode is then launched again behind the next wall.
OVERLAY_FULL = "what it writes is kept in memory; --wall landlock keeps it on the disk"
OVERLAY_IN_THE_WAY = "its files lie under an overlay of the kernel's; --wall landlock does without"
# Of a bare launch, which is then made again without copies.
COPIES_IN_THE_WAY = "it finds copies of its files, large directories as mounts, and may not write installed packages"
# What the process that is to become a command says where no wall can stand around it, before why.
NO_WALL = "no wall can stand here: "
# Of mode native, for which there is no other wall.
OVERLAY_ALONE = "its files lie under an overlay of the kernel's, in memory; --allow-writes does without"


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides a run.

    Attributes:
        target: absolute path of the script, or the dotted name of a module when `is_module`.
        args: the script's own arguments.
        cwd: directory the script runs in.
        modes: modes in the order they run; the baseline, when there is one, first.
        requested_modes: the modes asked for by name; the others serve them.
        devices: one CUDA_VISIBLE_DEVICES entry per rank; empty: the CPU.
        threads_per_device: host threads a rank may use for one operation.
        seed: seed of torch, numpy and random, alike on every rank and in every mode.
        seed_per_rank: once the script has built an optimizer, each rank draws random numbers of its own.
        repeat: launches of each mode.
        timeout_s: seconds without any progress after which a mode is ended.
        samples_per_step: per rank; None: counted.
        fsdp_wrap: class names of the modules that FSDP gathers as one unit; None: chosen.
        allow_writes: the script's files are really written.
        wall: the first of WALLS that may stand between the script and the user's files.
        no_overlay: why there is none any more; empty: nothing speaks against it.
        no_baseline: why there is no baseline although one was wanted.
        control: the baseline is also launched bare, to measure what watching costs.
        go_on: a script that distributes itself is let run to its own end, once enough is recorded.
    """

    target: str
    is_module: bool = False
    args: tuple[str, ...] = ()
    cwd: str
    modes: tuple[ModeSpec, ...]
    requested_modes: tuple[str, ...]
    devices: tuple[str, ...] = ()
    threads_per_device: int
    seed: int = 0
    seed_per_rank: bool = False
    repeat: int = 1
    timeout_s: float = 300.0
    samples_per_step: int | None = None
    fsdp_wrap: tuple[str, ...] | None = None
    allow_writes: bool = False
    wall: str = WALLS[0]
    no_overlay: str = ""
    no_baseline: str = ""
    control: bool = False
    go_on: bool = False
    recording: Recording = Recording()

    def __post_init__(self) -> None:
        if self.threads_per_device < 1:
            raise ValueError(f"threads_per_device is {self.threads_per_device}; it must be at least 1")
        if self.repeat < 1:
            raise ValueError(f"repeat is {self.repeat}; it must be at least 1")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be above 0")

    @property
    def named(self) -> str:
        """Return the target as a command names it that is given beside the script."""
        return f"-m {self.target}" if self.is_module else Path(self.target).name

    @property
    def homes(self) -> tuple[Path, ...]:
        """Return the directories in which the script lives and runs."""
        if self.is_module:
            return (Path(self.cwd),)
        target = Path(self.target)  # which may be a link
        return tuple(dict.fromkeys((Path(self.cwd), target.parent, target.resolve().parent)))

    @property
    def collective_timeout_s(self) -> float:
        """Return how long a rank waits in a collective before it gives up."""
        return self.timeout_s + COLLECTIVE_GRACE_S


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML describes it; `memory_bytes` None: it does not tell, as where the memory is the host's."""

    name: str
    uuid: str
    memory_bytes: int | None


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What must be alike before two runs may be compared. None: could not be found out.

    `governor` is the policy by which the kernel sets the clock of the first core.
    """

    host: str
    cpu: str | None
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    driver: str | None
    system: str
    python: str
    packages: dict[str, str]
    script_sha256: str | None
    governor: str | None = None


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher writes first (header.json): enough to read the directory if nothing else follows.

    `command`, `spec.args` and host names are redacted. `launch_spread` is, by mode, the half width of the 95% interval
    in which launches of this workload lie on this machine, relative; a mode that was not calibrated is missing.
    """

    schema: int = SCHEMA
    dpdoctor: str
    created: str
    command: tuple[str, ...]
    spec: RunSpec
    fingerprint: Fingerprint
    launch_spread: dict[str, float] = msgspec.field(default_factory=dict)


class WorkerTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher hands to each rank of one launch, through the environment variable TASK_VARIABLE.

    `directory` is the launch's own directory; the rank writes below it and nowhere else. `bare`: nothing is watched but
    the ends of steps; `copied`: then the script may find copies of its files, and installed packages that it can only
    read.
    """

    spec: RunSpec
    mode: ModeSpec
    directory: str
    bare: bool = False
    copied: bool = False


TASK_VARIABLE = "DPDOCTOR_TASK"
# How the reason begins for which a script is not converted that starts, or joins, processes of its own.
DISTRIBUTES_ITSELF = "the script distributes itself: "
# What starts processes, which need no launcher then.
SPAWNS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
AMONG = ", as one of "  # so many ranks, whose number nobody told it


def starts_its_ranks(refusal: str) -> bool:
    """Return whether a script that distributes itself is said to start its ranks, too, and needs no torchrun."""
    return AMONG in refusal or any(f"{name} at" in refusal for name in SPAWNS)


# How launchers call the number of ranks on a host: torchrun, accelerate, deepspeed, mpirun, fabric.
RANKS_OPTIONS = ("--nproc-per-node", "--num-processes", "--num-gpus", "-np", "--devices")


def is_of_ranks(option: str) -> bool:
    """Return whether it is an option of a launcher by which the number of ranks is given."""
    return option.replace("_", "-") in RANKS_OPTIONS


def asks_for_several(launcher: Sequence[str]) -> bool:
    """Return whether a launcher's words give a number of ranks above one."""
    pairs = (
        *itertools.pairwise(launcher),
        *((option, value) for option, equals, value in (word.partition("=") for word in launcher) if equals),
    )
    return any(is_of_ranks(option) and value.isdecimal() and int(value) > 1 for option, value in pairs)


# The directory of a launch whose ranks the script, or a launcher of the user's, starts.
NATIVE_VARIABLE = "DPDOCTOR_NATIVE"
# The directory of a rank that runs the script itself: what else the script starts is to be no rank.
REFUSAL_VARIABLE = "DPDOCTOR_REFUSAL"
# What goes first on the import path of interpreters that either of them is to reach.
INJECT = Path(__file__).parent / "inject"
# Asks such a rank for its stacks: SIGUSR1 and SIGUSR2 may be the script's, or its scheduler's.
STACKS_SIGNAL = signal.SIGRTMIN + 9
# nn.DataParallel's `device_ids`, in the numbers of its process; unset where it has no devices to choose from.
DEVICE_IDS_VARIABLE = "DPDOCTOR_DEVICE_IDS"
