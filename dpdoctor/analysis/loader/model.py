"""What is said of a loader: its figures, its parts, and what other settings would give."""

from __future__ import annotations

from dataclasses import dataclass

from dpdoctor.analysis.figure import Figure
from dpdoctor.spec import LoaderSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSummary:
    """One callable in a chain of transforms: seconds per batch, and its share of the batch's fetch."""

    name: str
    per_batch: Figure
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSummary:
    """One loader process. `busy` is the share of the measured time that it spent on fetching."""

    rank: int
    worker: int
    batches: int
    fetch: Figure
    busy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPrediction:
    """What an event simulation of the DataLoader predicts; `step` in seconds, `wait` the part of it spent waiting."""

    num_workers: int
    prefetch_factor: int | None
    step: Figure
    wait: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTrial:
    """A setting that was tried in turns with the script's own; `speedup`: how many times as fast a step is with it."""

    setting: LoaderSetting
    speedup: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFetches:
    """Fetches that take far longer than the others; a loader of which all fetches differ much has none.

    Attributes:
        count: of the `total` that were timed.
        seconds: of the median one of them; `usual_seconds` is that of the median one of all.
        cpu_ratio: CPU time of the fetching thread over theirs.
        step: what a step would take if they took no longer than usual, predicted; unknown where nothing is.
    """

    count: int
    total: int
    seconds: float
    usual_seconds: float
    cpu_ratio: float
    step: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSummary:
    """The loader that fed the training, seen from inside, in the full windows of one mode.

    Attributes:
        line: where the script iterates it; the other settings are the script's own.
        built_at: where the script builds it; empty: that was not seen.
        fetch: seconds that a worker (or the training thread, without workers) takes for a batch; wall.
        fetch_cv: standard deviation of the fetches over their mean; what an event simulation needs and a mean hides.
        slow_fetches: the few that take far longer than the others; None: there are none.
        cpu_ratio: CPU time of the fetching thread over `fetch`: near 1 it computes, near 0 it waits for I/O.
        collate: the part of `fetch` that puts samples together.
        wait: seconds per step that the training thread waits.
        ready_batches: share of the asks that found so many batches ready.
        transfer: seconds to take over a batch that lies ready.
        epoch_start: seconds that the first batch of an iteration takes beyond the usual.
        predictions: for every number of workers and prefetch factor within the budget of cores and memory.
        advice: the prediction to follow; None: leave it as it is, or unknown; `advice_reason` says which and why.
        baseline_same_workers: what one device would take with as many loader processes as all ranks have; None for one
            device, and where the ranks have none, as each then fetches for itself.
        trial: what came of the setting that was tried in a launch of its own; None: there was no such launch.
        index: place in Conversion.loaders.
    """

    line: str
    dataset: str
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    batch_bytes: float | None
    fetch: Figure
    fetch_cv: float | None
    cpu_ratio: Figure
    collate: Figure
    wait: Figure
    ready_batches: dict[int, float]
    transfer: Figure
    epoch_start: Figure
    transforms: tuple[TransformSummary, ...]
    workers: tuple[WorkerSummary, ...]
    predictions: tuple[LoaderPrediction, ...] = ()
    advice: LoaderPrediction | None = None
    advice_reason: str = ""
    baseline_same_workers: LoaderPrediction | None = None
    trial: LoaderTrial | None = None
    slow_fetches: SlowFetches | None = None
    index: int = 0
    built_at: str = ""

    @property
    def arguments_line(self) -> str:
        """Where an argument of the DataLoader is to be changed: where it is built, as far as that was seen."""
        return self.built_at or self.line
