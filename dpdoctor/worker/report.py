"""What a rank says of itself: rank.json, rewritten whole at each milestone."""

from __future__ import annotations

import resource
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.records import (
    AblationRecord,
    CallNode,
    Check,
    Conversion,
    Counters,
    CpuUse,
    LineShare,
    RankRecord,
    Strategy,
    WrappedModule,
    Written,
)
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data.loaders import Loaders
from dpdoctor.worker.timing.optimizers import Optimizers
from dpdoctor.worker.timing.recorder import StepLog
from dpdoctor.worker.timing.tally import Tally
from dpdoctor.worker.wrap.wrapping import Wrapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the record's facts come from.

    `stage` is the heartbeat's, `written` lists what the overlay caught, `remarks` says how samples were counted,
    `ablations` what became of each.
    """

    wrapping: Wrapping
    optimizers: Optimizers
    loaders: Loaders
    patches: Patches
    tally: Tally
    steplog: StepLog
    stage: Callable[[], str]
    written: Callable[[], tuple[Written, ...]] = tuple
    remarks: Callable[[], tuple[str, ...]] = tuple
    ablations: Callable[[], tuple[AblationRecord, ...]] = tuple


SAME_SAMPLES = "all ranks train on the same samples"
COUNTED_ONCE = ", which are counted once"
DRAWN_BEFORE = (
    ". Random numbers that the script does not seed with a number of its own were drawn apart since the first steps: "
    "where it had drawn its order of samples by them before, processes of its own would not be alike, and "
    "--seed-per-rank shows that where it draws once it has built its optimizer"
)
RANK_HIDDEN = ". {} asks for its rank, and dpdoctor answers as if there were one process"


class Report:
    """Collects the record and writes it. A killed rank leaves the last one written.

    `finds_unused`: the mode looks for trained parameters without a gradient where the baseline found some.

    Attributes:
        same_samples, copies, drawn_alike: Conversion's, as far as is known.
        raised_in: RankRecord's.
        alike_by_seed: Conversion's, if ranks train on the same samples.
        strategies: returns Conversion's.
        asks_rank: returns who asks for its rank.
    """

    def __init__(
        self, directory: Path, record: RankRecord, seed: int, sources: Sources, *, finds_unused: bool = False
    ) -> None:
        self._path = directory / rundir.RANK
        self._record = record
        self._seed = seed
        self._sources = sources
        self._proof: tuple[Check, ...] = ()
        self._warnings: list[str] = []
        self._modules: tuple[WrappedModule, ...] = ()
        self._finds_unused = finds_unused
        self._peaks: tuple[int, list[int | None]] | None = None
        self.same_samples = False
        self.raised_in: tuple[str, ...] = ()
        self.copies = 1
        self.drawn_alike: tuple[str, ...] = ()
        self.alike_by_seed: tuple[str, ...] = ()
        self.strategies: Callable[[], tuple[Strategy, ...]] = tuple
        self.asks_rank: Callable[[], str] = str
        rundir.write_json(self._path, record)

    def proved(self, checks: tuple[Check, ...], counters: Counters, touched: Collection[int]) -> None:
        """Note the proof of conversion, what a step does, and which parameters it left without gradient."""
        self._proof = checks
        self._modules = self._sources.wrapping.records(touched)
        self._record = replace(self._record, counters=counters)

    def warmed_up(self, steady: bool | None) -> None:
        """Note whether warm-up became steady; None: nobody looked."""
        self._record = replace(self._record, warmup_steady=steady)

    def keep_peak(self) -> None:
        """Let the peaks of memory so far be the record's: what dpdoctor takes from now on is not the script's."""
        self._peaks = _peak_memory_bytes(), _peaks_of_devices()

    def used_cpu(self, cpu: CpuUse | None) -> None:
        """Note what the measured windows took of the cores; None: none was measured."""
        self._record = replace(self._record, cpu=cpu)

    def saw_own_code(self, found: tuple[LineShare, ...], calls: tuple[CallNode, ...]) -> None:
        """Note at which lines the script spends its time between the phases of a step, and all calls of its steps."""
        self._record = replace(self._record, own_code=found, call_tree=calls)

    def lost_trace(self, error: Exception) -> None:
        """Note why a trace that was made could not be kept."""
        self._record = replace(self._record, trace_lost=f"{type(error).__name__}: {error}")

    def warn(self, text: str) -> None:
        """Note something about the script that the reader must know; once is enough."""
        if text not in self._warnings:
            self._warnings.append(text)

    def write(self, status: str, reason: str | None = None, ending: str = "") -> None:
        """Write rank.json with this status."""
        peak, peaks = self._peaks or (_peak_memory_bytes(), _peaks_of_devices())
        self._record = replace(
            self._record,
            status=status,
            reason=reason,
            stage=self._sources.stage(),
            ending=ending or self._record.ending,
            raised_in=self.raised_in,
            conversion=self._conversion(),
            steps_per_epoch=self._steps_per_epoch(),
            transforms=self._sources.loaders.transforms(),
            hand_offs=self._sources.loaders.hand_offs(),
            observer_ns=self._sources.steplog.cost_ns,
            peak_memory_bytes=peak,
            devices=tuple(
                replace(device, peak_memory_bytes=num_bytes)
                for device, num_bytes in zip(self._record.devices, peaks, strict=True)
            ),
            ablations=self._sources.ablations(),
        )
        rundir.write_json(self._path, self._record)

    def unwound(self) -> None:
        """Add what the script wrote after it was told to stop."""
        conversion = replace(self._record.conversion, written=self._sources.written())
        self._record = replace(self._record, conversion=conversion)
        rundir.write_json(self._path, self._record)

    def _conversion(self) -> Conversion:
        sources = self._sources
        return Conversion(
            modules=self._modules or sources.wrapping.records(),
            loaders=sources.loaders.records(),
            optimizers=sources.optimizers.names(),
            optimizers_built=sources.optimizers.built_at(),
            seed=self._seed,
            num_threads=torch.get_num_threads(),
            find_unused_parameters=self._finds_unused and sources.wrapping.has_unused,
            patched=sources.patches.names,
            warnings=(
                *sources.wrapping.warnings,
                *self._warnings,
                *sources.remarks(),
                *((self._of_same_samples(),) if self.same_samples else ()),
            ),
            proof=self._proof,
            written=sources.written(),
            same_samples=self.same_samples,
            copies=self.copies,
            drawn_alike=self.drawn_alike,
            alike_by_seed=self._alike_by_seed(),
            asks_rank=self._asks_rank(),
            strategies=self.strategies(),
            made_anew=sources.wrapping.made_anew,
            uncounted=sources.tally.uncounted(),
        )

    def _alike_by_seed(self) -> tuple[str, ...]:
        """Return Conversion's; what the script seeds and draws from in each step is its own doing."""
        return self.alike_by_seed if self.same_samples and not self.drawn_alike else ()

    def _asks_rank(self) -> str:
        """Return Conversion's."""
        return self.asks_rank() if self.same_samples else ""

    def _of_same_samples(self) -> str:
        if self._alike_by_seed():
            return SAME_SAMPLES + DRAWN_BEFORE
        asking = self._asks_rank()
        return SAME_SAMPLES + (RANK_HIDDEN.format(asking) if asking else COUNTED_ONCE)

    def _steps_per_epoch(self) -> int | None:
        main = self._sources.tally.main_loader()
        if main is None:
            return None
        loader, batches_per_step = main
        batches = self._sources.loaders.batches_per_epoch(loader)
        if batches is None:
            return None
        steps, seen = max(1, round(batches / batches_per_step)), self._sources.tally.steps_between_begins(loader)
        # Beside a shorter loader, or in a loop that is left early, it is not read to its end.
        return steps if seen is None or seen == 1 else min(steps, seen)


def _peak_memory_bytes() -> int:
    """Return the most memory that torch's allocator held on a device or, on the CPU, the process (getrusage: KiB)."""
    # A script on a machine with GPUs may still train on the CPU.
    held = [peak for peak in _peaks_of_devices() if peak is not None]
    return max(held) if held else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _peaks_of_devices() -> list[int | None]:
    """Return the most bytes that torch's allocator held on each GPU, in torch's order; None: it never used that one.

    A rank that somebody else started sees the GPUs of all.
    """
    return [torch.cuda.max_memory_reserved(index) or None for index in range(torch.cuda.device_count())]
