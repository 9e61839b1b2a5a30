"""What a run consists of: one record per line or file of a run directory, and a whole run in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from dpdoctor.digest import BETWEEN_PHASES, HOST_PHASES, Digest
from dpdoctor.loading import BatchRecord, HandOff, TransformTime
from dpdoctor.spec import LoaderSetting, RunHeader

# The "ablation" of windows in which nothing is switched off.
FULL = "full"
PHASES = HOST_PHASES
# Follows PHASES in the steps of ranks that dpdoctor did not start: their collectives, as far as Python calls them.
COMMUNICATION = "communication"
ALL_PHASES = (*PHASES, COMMUNICATION)
BETWEEN = BETWEEN_PHASES


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One optimizer update on one rank; times in ns of the host's monotonic clock.

    Attributes:
        duration_ns: from the end of the step before to the end of this one; the phases add up to it.
        phases_ns: exclusive host time in the order of PHASES or, in mode native, of ALL_PHASES.
        samples_drawn: indices drawn by the loaders whose batches this step trained on.
        samples_entered: dim 0 of the first tensor of the first forward of each micro-batch; where no loader counts, the
            dimension that is the batch's, and 0 where that cannot be told.
        micro_batches: backward passes on other samples each that add to the gradients of one model before an optimizer
            steps; the fewest, where several optimizers step in turn.
        epoch_edge: an epoch began, or an evaluation ran, inside this step.
        counted: False for the first step after a window edge.
        elements: of the first tensor of the first forward of each micro-batch: more in longer sequences; 0: not known.
        samples_handed: indices drawn for what these loaders handed out, of which the script may pass some over, or be
            ahead; None: not recorded.
        collectives: that were issued in the step, over all groups; None: not counted. `called`: those that Python calls
            on the thread that trains, the others being torch's own or another thread's.
        reconciled: the samples drawn are to be found in what entered the model; false: tensors of other sizes did.
        interrupted: another optimizer took many steps in it, too; it is none that the script usually does.
        watched: more than its end was seen; false: nothing else of it is known.
    """

    step: int
    window: int
    begin_ns: int
    duration_ns: int
    phases_ns: tuple[int, ...]
    samples_drawn: int
    samples_entered: int
    micro_batches: int
    epoch_edge: bool
    counted: bool
    elements: int = 0
    samples_handed: int | None = None
    reconciled: bool = True
    collectives: int | None = None
    called: int | None = None
    interrupted: bool = False
    watched: bool = True


class WindowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run of consecutive steps between two edges; `end_ns - begin_ns` covers its counted steps.

    `kind` is warmup, proof, measure or trace; `ablation` is what was switched off (`full`: nothing).
    `barrier_ns` is what this rank waited at the closing edge; `queued_ns` what the thread that trains waited for a core
    although it could run, between begin and end; None: the kernel does not tell. `core_benchmark_ns` is the CPU time of
    a fixed piece of arithmetic, which all ranks try at once at the closing edge; None: not tried. `page_faults` counts
    the pages that the process took from the kernel without any disk, between begin and end; None: not looked at.
    """

    window: int
    kind: str
    ablation: str
    round: int
    first_step: int
    num_steps: int
    begin_ns: int
    end_ns: int
    barrier_ns: int
    complete: bool
    queued_ns: int | None = None
    core_benchmark_ns: int | None = None
    page_faults: int | None = None


# In an event's detail, before a line of the user's, and before that a library.
CALLED_AT, CALLED_BY = ", called at ", ", by "


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened on one rank and how long it took.

    Attributes:
        kind: gc, a pause of Python's garbage collector; evaluation, all forwards without gradients between two steps,
            with their loader; inference, those that read no loader, with what lies between them and training, such as
            a rollout; checkpoint, one torch.save or save_file of safetensors; compile, what torch.compile did
            at once; iterator, DataLoader.__iter__.
        at_ns: when it began.
        step: steps that had ended by then.
        detail: of gc, the generation and, if gc.collect() was called, after CALLED_BY the library that did and after
            CALLED_AT the user's line that did or called that; of checkpoint, the file's name; of compile, what torch
            did and its compile id, as in `dynamo 0/1`: of frame 0, and not its first; of iterator, the loader's place
            in Conversion.loaders.
    """

    kind: str
    at_ns: int
    duration_ns: int = 0
    step: int
    detail: str = ""


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the memory of one rank held at the end of a window, between an update and the next step.

    Of GPUs all that the rank uses, added up; on the CPU, of the host's memory. None: not measured there.

    Attributes:
        parameters_bytes: of the model and its buffers; `gradients_bytes`: that were not set to None;
            `optimizer_bytes`: its state.
        allocated_bytes: what torch's allocator has given out; `reserved_bytes`: what it holds, given out or not.
        peak_allocated_bytes: the most that was given out since the process began.
        resident_bytes: of the host's memory, that the process takes.
    """

    at_ns: int
    window: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    resident_bytes: int | None = None


class WrappedModule(msgspec.Struct, frozen=True, kw_only=True):
    """One wrapped module. `line` is where the script calls it; sharded parameters count whole."""

    name: str
    line: str
    num_parameters: int
    trainable_bytes: int
    unused: tuple[str, ...] = ()


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """One DataLoader that the script iterated at `line`, and what was done to its batches.

    `built` is where its arguments are, of the first one where several look alike; empty: that was not seen. `rebuilt`:
    most of its iterations were over a DataLoader that had just been built.
    """

    line: str
    dataset: str
    sampler: str
    batch_size: int | None
    num_workers: int
    num_batches: int | None
    rule: str
    note: str = ""
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True
    built: str = ""
    rebuilt: bool = False

    def __eq__(self, other: object) -> bool:
        """Return whether it looks alike where it is iterated: that is one loader, wherever it was built."""
        return isinstance(other, Loader) and self._looks == other._looks

    __ne__ = object.__ne__  # that of a Struct compares all fields

    def __hash__(self) -> int:
        return hash(self._looks)

    @property
    def is_for_evaluation(self) -> bool:
        """Return whether every rank takes all of it because it is evaluated on."""
        return "an evaluation" in self.note

    @property
    def _looks(self) -> tuple[Any, ...]:
        return astuple(replace(self, built="", rebuilt=False))


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that conversion must show. `ok` None: could not be judged, `text` says why."""

    name: str
    ok: bool | None
    text: str


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """One file that the script opened for writing, made or removed, and that was kept away from it.

    `change` is new, changed or removed; `num_bytes` is the size it would have.
    """

    path: str
    change: str
    num_bytes: int = 0


# What a script exchanges by itself, without a wrapper of torch's.
HAND_WRITTEN = "hand-written"
# Times its gradients that a step reduces from which it does so in several micro-batches.
REDUCED_TWICE = 1.5
# A check of the proof: whether all ranks hold the same parameters.
PARAMETERS_EQUAL = "parameters equal"
# Ranks send tensors to single others, as stages of a pipeline do.
POINT_TO_POINT = "point to point"
# Ranks exchange nothing, in no step.
NOTHING = "none"
# They exchange something in few steps.
NOW_AND_THEN = "now and then"
# Each rank holds a part of every layer, and all of them need the same samples.
TENSOR_PARALLEL = "tensor parallel"


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a script distributes itself, with its facts in words.

    `name`: ddp, fsdp1, fsdp2, dp, zero, POINT_TO_POINT, TENSOR_PARALLEL; hand-written, what the script exchanges by
    itself at `line`; NOW_AND_THEN; NOTHING. Of a hand-written one, `calls` are those of a step,
    and `in_backward` says whether most of them begin while the backward pass goes on, `of_gradients` whether all come
    in it or after it, before the update. `hook` is ddp's communication hook, if it has one, `buffers` how many
    tensors it broadcasts before forward passes, and `trainable_bytes` what it trains; None: nobody looked.
    """

    name: str
    facts: str = ""
    line: str = ""
    calls: int = 0
    in_backward: bool = False
    of_gradients: bool = False
    hook: str = ""
    buffers: int | None = None
    trainable_bytes: int | None = None


# Of a compiled function that calls a model, in the warning that says so: in a bare launch it runs as it was compiled.
RUNS_AS_PYTHON = "here the function runs as Python"
# What a script draws with that it made from a seed itself; --seed-per-rank does not reach it.
OWN_GENERATORS = "numpy.random.default_rng"


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to the script, and the proof that it took effect.

    `written` is what the script would have written, empty when it was allowed to. `same_samples`: in the steps
    that precede windows all ranks trained on the same samples, by the tensors that entered the model, their labels, or
    the indices of what each rank takes whole.
    `optimizers_built`: the line at which each of `optimizers` was built; empty: nobody saw it, or they are gone.
    `strategies` are those of a script that distributes itself.
    `copies`: on how many ranks they were the same, where there are groups of ranks: 1: on none, 0: groups are unlike.
    `drawn_alike`: modules whose random numbers, which the script seeds, each step draws alike on all ranks, where these
    train on the same samples, or on other tensors: if they pick the samples, ranks train on the same ones.
    `alike_by_seed`: modules whose random numbers, which the script does not seed, it drew before or in the first steps,
    not for weights alone and in forward passes, where ranks train on the same samples: these may be the same by
    dpdoctor's seed alone.
    `asks_rank`: the line, or the library with its line, that asked for its rank and was answered as if there were one
    process, where ranks train on the same samples: with its rank it may draw others. Empty: none asked.
    `made_anew`: why a model's forward passes are not seen, as where no module stays for it; empty: they are.
    `uncounted`: why samples are not counted; empty: they are, or it is not known.
    """

    modules: tuple[WrappedModule, ...] = ()
    loaders: tuple[Loader, ...] = ()
    optimizers: tuple[str, ...] = ()
    optimizers_built: tuple[str, ...] = ()
    seed: int = 0
    num_threads: int = 0
    find_unused_parameters: bool = False
    patched: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    proof: tuple[Check, ...] = ()
    written: tuple[Written, ...] = ()
    same_samples: bool = False
    copies: int = 1
    strategies: tuple[Strategy, ...] = ()
    made_anew: str = ""
    drawn_alike: tuple[str, ...] = ()
    alike_by_seed: tuple[str, ...] = ()
    asks_rank: str = ""
    uncounted: str = ""

    @property
    def exchanges_nothing(self) -> bool:
        """Whether ranks that start themselves issued no collective in any step."""
        return any(way.name == NOTHING for way in self.strategies)

    @property
    def proved(self) -> bool | None:
        """True when every check held, False when one failed, None when none was made."""
        if not self.proof:
            return None
        return not any(check.ok is False for check in self.proof)


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Calls and bytes of one kind of collective in one step of one rank."""

    count: int
    num_bytes: int


class InputTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that entered the first forward of a step."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


class HostSync(msgspec.Struct, frozen=True, kw_only=True):
    """Calls in one step, at one line of the script, that wait for the device: `call` is item, tolist, cpu, bool, ...
    or GradScaler.step, which asks whether gradients overflowed.

    Only the outermost is counted: print(loss) formats, which asks for the item, and is one `format` or `repr`.
    `code` is the text of the line, by which it is known again where lines above it came or went; empty: not found.
    """

    call: str
    line: str
    count: int
    code: str = ""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What one step does, counted in one profiled step after warm-up: the same in every step, on any machine.

    What could not be counted is None.

    Attributes:
        syncs: counted on the CPU too, where they cost nothing.
        micro_batches: training passes, forward and backward, added over the modules that the script calls: one batch
            through an encoder and a decoder makes two.
        allocations: blocks that torch's allocator gave out, of the GPUs where there are some, else of the host.
        h2d_bytes: that the training thread copied to devices by to, cuda and copy_; None without a device.
        graph_breaks: of all that torch.compile had compiled by then; None where it compiled nothing.
    """

    operators: int
    collectives: dict[str, Collective]
    inputs: tuple[InputTensor, ...]
    syncs: tuple[HostSync, ...] = ()
    micro_batches: int | None = None
    allocations: int | None = None
    h2d_bytes: int | None = None
    graph_breaks: int | None = None


class AblationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One ablation on one rank. `skipped`: why it was not run, or not to its end; None: it ran."""

    name: str
    skipped: str | None = None


class LineShare(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the script, and its share of the time that the traced steps spend in the loop's own code.

    Attributes:
        training: which part of that share lies between the first forward pass of a step and its update, where a loss is
            computed and gradients are clipped.
        preparing: which part lies between a batch that a loader gave and the forward pass.
        library: what of an installed library runs there, which also runs the training loop that this line started;
            empty: the line is of the loop itself.
    """

    line: str
    share: float
    training: float = 0.0
    preparing: float = 0.0
    library: str = ""


class CallNode(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the training thread in the traced steps, as often as its stack was looked at.

    Attributes:
        parent: place of its caller in the tree, before its own; -1: none.
        where: a line of the user's code, `file:line`, or the function of a library that such a line calls.
        function: that the line is in; empty: `where` is a function.
        looks: at which it was under way; `own_looks`: without anything of the tree below it.
    """

    parent: int
    where: str
    function: str
    looks: int
    own_looks: int


class CpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank took of the host's cores over its measured windows without an ablation, all of them together.

    Attributes:
        cpu_s: of all threads of the rank's process; `workers_cpu_s` of the processes that it started, such as loader
            workers.
        wall_s: of the windows; cpu_s / wall_s is a number of cores.
        involuntary_switches: times a thread of the rank's process had to leave a core to another; None: not counted by
            this kernel.
        num_threads: of the rank's process at the end of the last window, idle ones included.
    """

    cpu_s: float
    workers_cpu_s: float
    wall_s: float
    involuntary_switches: int | None
    num_threads: int


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that a rank sees. `uuid` is NVML's, or of a MIG instance its number after GPU-.

    Attributes:
        peak_memory_bytes: the most that torch's allocator held on it; None: the rank did not use it.
        memory_bytes: that there are of it; None: not recorded.
    """

    name: str
    uuid: str
    peak_memory_bytes: int | None = None
    memory_bytes: int | None = None


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank says of itself. Rewritten whole at each milestone, so a killed rank leaves its last one.

    Attributes:
        status: running, ok, failed or interrupted.
        ending: how the script was left: stopped, stopped by force, returned, raised, let go: to train on unobserved, or
            moved on: stopped with a window measured, as it began to train another model.
        raised_in: the ablations that were on since the last full window, where one of them may be why the script raised
            or gave up.
        observer_ns: host time that dpdoctor's own hooks took in the median counted step.
        peak_memory_bytes: of the process (CPU) or of torch's allocator on the fullest device (CUDA).
        device: what the rank computes on, in words; `device_type` is torch's name of its kind, cpu or cuda.
        devices: the GPUs that the rank sees, in torch's order: one, several under nn.DataParallel, none on the CPU.
        own_code: where the script was seen most between loading, forward, backward and update; empty: it was not
            traced, or never seen there.
        call_tree: what the training thread was seen at in the traced steps; empty: it was not traced.
        trace_lost: why the trace that was made could not be kept; None: it was, or none was made.
        cpu: None: no window was measured to its end.
        clock: the host's monotonic clock and unix time at one moment, in ns: events are in the former, traces in the
            latter.
        protected_by: what keeps the user's files from the script: kernel, an overlay of the kernel's; landlock, which
            refuses what Python's functions do not divert; python, the latter alone; or nothing where it may write.
        not_walled: why it is no better one.
    """

    rank: int
    world_size: int
    pid: int
    host: str
    device: str
    backend: str | None
    status: str
    reason: str | None = None
    stage: str = ""
    ending: str = ""
    raised_in: tuple[str, ...] = ()
    warmup_steady: bool | None = None
    conversion: Conversion = Conversion()
    counters: Counters | None = None
    steps_per_epoch: int | None = None
    observer_ns: float | None = None
    peak_memory_bytes: int | None = None
    device_type: str = "cpu"
    devices: tuple[Device, ...] = ()
    ablations: tuple[AblationRecord, ...] = ()
    transforms: tuple[TransformTime, ...] = ()
    hand_offs: tuple[HandOff, ...] = ()
    own_code: tuple[LineShare, ...] = ()
    call_tree: tuple[CallNode, ...] = ()
    trace_lost: str | None = None
    cpu: CpuUse | None = None
    clock: tuple[int, int] | None = None
    protected_by: str = ""
    not_walled: str = ""

    @property
    def gpus(self) -> dict[int, Device]:
        """The GPUs that it sees, by the numbers with which samples name them, gpu0, ..., unless another GPU has them.

        Of ranks that see one each they are the ranks'.
        """
        return dict(enumerate(self.devices, start=self.rank if len(self.devices) == 1 else 0))


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How one launch of a mode ended, as its parent saw it.

    `status` is ok, failed, interrupted, skipped or inactive. `exit_codes` has one entry per rank or, where somebody
    else starts the ranks, that of the command; None: unknown or, where `ended_by_dpdoctor` says so, not its own.

    Attributes:
        files_changed: what was changed, made or removed meanwhile in the directories in which the script lives and
            runs, by whomever; empty where it may write.
        not_compared: why that is not known; empty: it is.
        again: why it was launched again behind another wall, as the launch before says that failed.
        raised: why it was launched again without some ablations, or without any, as the launch before says that failed
            with them.
        files_refused: lines that ranks printed of a file that they were refused.
        loader_setting: what the launch was made to try; None: it was made for something else.
        world_size: how many ranks there were, where somebody else started them; None: ModeSpec's.
        other_worlds: names in words those that are not shown.
    """

    mode: str
    launch: int
    status: str
    reason: str | None = None
    failed_rank: int | None = None
    stderr_tail: tuple[str, ...] = ()
    exit_codes: tuple[int | None, ...] = ()
    ended_by_dpdoctor: tuple[bool, ...] = ()
    begin_ns: int = 0
    end_ns: int = 0
    loader_setting: LoaderSetting | None = None
    files_changed: tuple[Written, ...] = ()
    not_compared: str = ""
    files_refused: tuple[str, ...] = ()
    again: str = ""
    raised: str = ""
    world_size: int | None = None
    other_worlds: str = ""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one device or of the host. A value that cannot be had is absent from `values`.

    Attributes:
        uuid: of a GPU, as ranks name it; empty: not one, or of a recording from before it was written.
    """

    at_ns: int
    source: str
    values: dict[str, float]
    unknown: dict[str, str] = msgspec.field(default_factory=dict)
    uuid: str = ""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one rank left behind. `record` is None when it died before its first milestone.

    `digest` is what is kept of its trace; None: it made none.
    """

    index: int
    record: RankRecord | None
    steps: tuple[StepRecord, ...]
    windows: tuple[WindowRecord, ...]
    events: tuple[EventRecord, ...]
    trace: Path | None
    digest: Digest | None = None
    batches: tuple[BatchRecord, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of one mode.

    `traced`: how the launch ended that was made for the trace alone, where the script had ended before it.
    """

    record: LaunchRecord
    ranks: tuple[Rank, ...]
    samples: tuple[Sample, ...]
    traced: LaunchRecord | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory in memory. `modes` maps a mode to its launches, in the order of the header.

    `bare`: launches of the baseline in which nothing was watched but the ends of steps. `watched`: as short ones in
    which it was watched once more, because what watching costs was not clear.
    `trials`: of some modes a launch in which another setting of the loader was tried.
    """

    path: Path
    header: RunHeader
    modes: dict[str, tuple[Launch, ...]]
    bare: tuple[Launch, ...] = ()
    watched: tuple[Launch, ...] = ()
    trials: dict[str, Launch] = msgspec.field(default_factory=dict)
