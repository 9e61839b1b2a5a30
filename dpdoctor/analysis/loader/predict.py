"""What other settings of the loader would give: the simulation on the measured times, with its interval.

The times are those of the script's own loader or, where it has no worker, of the ablation that tries one; single
fetches that take far longer than the others are told apart.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from statistics import fmean

import msgspec
import numpy as np
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import NS, LaunchFacts
from dpdoctor.analysis.base.stats import Figure, student_t
from dpdoctor.analysis.base.summary import AblationSummary, LoaderPrediction, SlowFetches
from dpdoctor.analysis.loader.feed import Feed, WindowFeed, cpu_ratio, feed, fetch_time, hand_offs_of, receive_time
from dpdoctor.analysis.loader.simulate import Cores, Outcome, Setting, Times, simulate
from dpdoctor.loading import IN_PROCESS, BatchRecord
from dpdoctor.records import Launch, RankRecord
from dpdoctor.spec import BESIDE, RunHeader

NO_SEQUENCE = "no two batches in a row were asked for in a full window"
ALL_QUEUED = "the loader and the training did nothing but wait for a core"
NO_SENDING = "the transfer from a worker was not measured"
# torch's value where a script leaves it out.
DEFAULT_PREFETCH = 2


class UnknownError(ValueError):
    """Something that the simulation needs was not measured; the message says what."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One full window of one rank: seconds of its fetches and of its own work between asks, in their order.

    As they would be with a core for every thread.
    """

    fetch: tuple[float, ...]
    compute: tuple[float, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One loader and its training loop, as measured in `blocks` under `setting`.

    `send` and `receive` are simulate.Times', the seconds of one hand-off.
    """

    blocks: tuple[Block, ...]
    setting: Setting
    cores: Cores
    send: float
    receive: float

    def times(self, blocks: Sequence[Block]) -> Times:
        """Return the times of these blocks, one after another."""
        return Times(
            fetch=[seconds for block in blocks for seconds in block.fetch],
            compute=[seconds for block in blocks for seconds in block.compute],
            send=self.send,
            receive=self.receive,
        )


def measured(feed: Feed, launch: Launch, header: RunHeader) -> Measured:
    """Return what one mode's launch says of its loader and its steps.

    Raises:
        UnknownError: something is missing.
    """
    blocks = tuple(block for part in feed.parts if (block := _block(part)) is not None)
    if not blocks:
        raise UnknownError(fetch_time(feed).reason or NO_SEQUENCE)
    blocks = tuple(block for block in blocks if any((*block.fetch, *block.compute)))
    if not blocks:
        raise UnknownError(ALL_QUEUED)
    hand_offs = hand_offs_of(feed, launch)
    failure = next((hand_off.failure for hand_off in hand_offs if hand_off.failure), None)
    if failure is not None:
        raise UnknownError(f"the dataset works in no loader process; there it raises {failure}")
    receive = receive_time(feed, hand_offs)
    if receive.value is None or not hand_offs:
        raise UnknownError(NO_SENDING)
    return Measured(
        blocks=blocks,
        setting=_present_setting(feed),
        cores=_cores(feed, launch, header, blocks),
        send=max(hand_off.send_ns for hand_off in hand_offs) * NS,
        receive=receive.value,
    )


def _present_setting(feed: Feed) -> Setting:
    """Return what the script sets."""
    loader = feed.loader
    return Setting(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or DEFAULT_PREFETCH,
        in_order=loader.in_order,
    )


def ranks_of_a_node(launch: Launch) -> int:
    """Return the most ranks that share a machine."""
    hosts = Counter(rank.record.host for rank in launch.ranks if rank.record)
    return max(hosts.values(), default=1)


def _block(part: WindowFeed) -> Block | None:
    """Return a window's times, without the waits for a core; None: nothing follows anything in it.

    Without workers all that an ask takes beyond the fetch is work of the training thread.
    """
    compute = tuple(
        _without_queue(after.asked_ns - batch.asked_ns - _loading_ns(batch), after.gap_queued_ns)
        for batch, after in pairwise(part.steady)
        if (after.iteration, after.batch) == (batch.iteration, batch.batch + 1)
    )
    fetch = tuple(_without_queue(batch.fetch_ns, batch.queued_ns) for batch in part.fetched)
    return Block(fetch=fetch, compute=compute) if fetch and compute else None


def _loading_ns(batch: BatchRecord) -> int:
    return batch.fetch_ns if batch.worker == IN_PROCESS else batch.wait_ns


def _without_queue(total_ns: int, queued_ns: int) -> float:
    return max(0, total_ns - queued_ns) * NS


def _cores(feed: Feed, launch: Launch, header: RunHeader, blocks: Sequence[Block]) -> Cores:
    records = [rank.record for rank in launch.ranks if rank.record]
    threads = max((_threads(record) for record in records), default=1)
    ratio = cpu_ratio(feed).value
    return Cores(
        num=header.fingerprint.cores / ranks_of_a_node(launch),
        fetch=1.0 if ratio is None else min(1.0, ratio),
        compute=min(_compute_cores(feed, records, blocks), threads),
        threads=threads,
    )


def _threads(record: RankRecord) -> int:
    """Return the threads that compute a step; beside a GPU one feeds it, and the others have little to do."""
    return max(1, record.conversion.num_threads) if record.device_type == "cpu" else 1


def _compute_cores(feed: Feed, records: Sequence[RankRecord], blocks: Sequence[Block]) -> float:
    """Return the cores that a training process keeps busy between its asks; no limit where nobody counted."""
    uses = [record.cpu for record in records if record.cpu and record.cpu.wall_s > 0]
    compute = fmean(seconds for block in blocks for seconds in block.compute)
    if not uses or compute <= 0:
        return math.inf
    wall_s, asks = sum(part.window.wall_s for part in feed.parts), sum(len(part.asked) for part in feed.parts)
    per_ask = sum(use.cpu_s for use in uses) / sum(use.wall_s for use in uses) * wall_s / asks
    own = [batch.cpu_ns * NS for part in feed.parts for batch in part.fetched if batch.worker == IN_PROCESS]
    return max(0.0, per_ask - (fmean(own) if own else 0.0)) / compute


REPLICATES = 8
LEAST_BATCHES = 200
# More say hardly more, and each of the many settings is simulated on all of them.
MOST_BATCHES = 300
# More processes on one device give what so many give, as long as a fetch does not take as many steps; the control of a
# thousand ranks has thousands.
MOST_PROCESSES = 256
# Of each worker's queue: a queue that was empty at the beginning must not count.
SETTLE = 4
# By how much a step may last longer or shorter than is predicted, for what is shared and not simulated. The worst of
# 28 predictions of tests/benchmarks/loader_prediction.py on two cores was 17% off where they kept their pace, and
# 39% where somebody else's work on the same processor changed it by 42%: a change that no prediction can know.
MODEL_ERROR = 0.30


class Basis(msgspec.Struct, frozen=True, dict=True):
    """One setting as it was measured, with its step: others are simulated from the same times, it comes out as it was.

    Two blocks or more are drawn anew for each replicate, whole, so that what varies from window to window counts.
    """

    measured: Measured
    step: Figure

    @cached_property
    def runs(self) -> list[tuple[Times, Outcome]]:
        """Return the times of each replicate, and what the simulation makes of them under the measured setting.

        Of few blocks the same are drawn again and again: those replicates are one and the same object.
        """
        known: dict[tuple[int, ...], tuple[Times, Outcome]] = {}
        for blocks in (drawn := _replicates(_few(self.measured.blocks))):
            if _identity(blocks) not in known:
                times = self.measured.times(blocks)
                known[_identity(blocks)] = times, _run(self.measured, times, self.measured.setting)
        return [known[_identity(blocks)] for blocks in drawn]

    @property
    def _now(self) -> list[Outcome]:
        return [outcome for _, outcome in self.runs]

    def prediction(self, setting: Setting, model: float) -> LoaderPrediction:
        """Return what a setting gives; `model` is the error of the simulation, as a share of the step."""
        as_measured = setting == self.measured.setting
        outcomes = self._now if as_measured else self._outcomes(lambda times: _run(self.measured, times, setting))
        step = self._step(outcomes, model)
        assert step.value is not None
        compute = step.value * (1 - outcomes[0].wait / outcomes[0].step)
        return LoaderPrediction(
            num_workers=setting.num_workers,
            prefetch_factor=setting.prefetch_factor if setting.num_workers else None,
            step=step,
            wait=Figure(
                value=step.value - compute,
                low=None if step.low is None else max(0.0, step.low - compute),
                high=None if step.high is None else max(0.0, step.high - compute),
                n=step.n,
                unit="s",
            ),
        )

    def without_fetches_above(self, limit: float, usual: float) -> Figure:
        """Return the seconds of a step if each fetch of more than `limit` seconds took the `usual` ones instead."""

        def shorter(times: Times) -> Times:
            return replace(times, fetch=[usual if f > limit else f for f in times.fetch])

        outcomes = self._outcomes(lambda times: _run(self.measured, shorter(times), self.measured.setting))
        return self._step(outcomes, MODEL_ERROR)

    def _outcomes(self, of: Callable[[Times], Outcome]) -> list[Outcome]:
        """Return what `of` makes of each replicate's times; it is asked once for those that are the same."""
        found = {id(times): of(times) for times in {id(times): times for times, _ in self.runs}.values()}
        return [found[id(times)] for times, _ in self.runs]

    def _step(self, outcomes: Sequence[Outcome], model: float) -> Figure:
        ratios = [outcome.step / now.step for outcome, now in zip(outcomes, self._now, strict=True)]
        return _times(self.step, ratios, model)


class Predictor(msgspec.Struct, frozen=True):
    """Predicts from one mode's measurements, and so that the present setting comes out as it was measured.

    `tried`: what one worker did, where the script has none. All that its process and the training cost each other is
    in it, and none of that is in what was measured without.
    """

    present: Basis
    tried: Basis | None = None

    def predictions(self, settings: Sequence[Setting]) -> tuple[LoaderPrediction, ...]:
        """Return the prediction of each setting."""
        return tuple(self._prediction(setting) for setting in settings)

    def _prediction(self, setting: Setting) -> LoaderPrediction:
        basis = self.tried if self.tried is not None and setting.num_workers else self.present
        return basis.prediction(setting, 0.0 if setting == basis.measured.setting else MODEL_ERROR)


def _few(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the blocks or, where they hold more batches than are simulated, as many of them, drawn by chance."""
    mean = sum(len(block.fetch) for block in blocks) / len(blocks)
    most = max(2, round(MOST_BATCHES / mean))
    return blocks if len(blocks) <= most else random.Random(0).sample(blocks, most)


def _replicates(blocks: Sequence[Block]) -> list[list[Block]]:
    """Return the blocks as they were measured and, from two on, as often drawn anew from them."""
    chance = random.Random(0)  # the same report from the same run
    drawn = range(REPLICATES if len(blocks) > 1 else 0)
    return [list(blocks), *(chance.choices(blocks, k=len(blocks)) for _ in drawn)]


def _identity(blocks: Sequence[Block]) -> tuple[int, ...]:
    return tuple(map(id, blocks))


def _run(measured: Measured, times: Times, setting: Setting) -> Outcome:
    setting = replace(setting, num_workers=min(setting.num_workers, MOST_PROCESSES))
    settle = SETTLE * setting.num_workers * setting.prefetch_factor
    num_batches = max(LEAST_BATCHES, len(times.fetch))
    return simulate(times, setting, measured.cores, num_batches=num_batches, settle=settle)


def _times(step: Figure, ratios: Sequence[float], model: float) -> Figure:
    """Return the step times the first ratio; its interval adds up that of the step, of the ratio and of the model."""
    assert step.value is not None
    value = step.value * ratios[0]
    # A calibrated step has an interval though one window tells nothing of how windows vary.
    if step.high is None or step.n < 2 or len(ratios) < 3:
        return Figure(value=value, n=step.n, unit=step.unit)
    t = student_t(step.n - 1)
    sampling = t * statistics.stdev(ratios[1:]) / ratios[0]
    half = value * math.hypot(step.high / step.value - 1, sampling, model)
    return Figure(value=value, low=max(0.0, value - half), high=value + half, n=step.n, unit=step.unit)


# A fetch that takes less than this many times the usual is not worth a look, however even the others are.
LEAST_RATIO = 2.0
# Fewer than this are an accident, and a larger share of all is no exception.
LEAST_SLOW = 3
MOST_SHARE = 0.25
NOT_SIMULATED = "the loader could not be simulated"


def slow_fetches(feed: Feed, basis: Basis | None) -> SlowFetches | None:
    """Return the fetches that take far longer than the others; what a step takes without is simulated from `basis`."""
    timed = [batch for part in feed.parts for batch in part.fetched]
    fetches = np.array([max(0, batch.fetch_ns - batch.queued_ns) for batch in timed], float) * NS
    if not len(fetches):
        return None
    usual = float(np.median(fetches))
    limit = stats.outlier_limit(fetches, LEAST_RATIO)
    is_slow = fetches > limit
    count = int(is_slow.sum())
    if not LEAST_SLOW <= count <= MOST_SHARE * len(fetches):
        return None
    cpu_s = sum(batch.cpu_ns for batch, slow in zip(timed, is_slow, strict=True) if slow) * NS
    return SlowFetches(
        count=count,
        total=len(fetches),
        seconds=float(np.median(fetches[is_slow])),
        usual_seconds=usual,
        cpu_ratio=min(1.0, cpu_s / float(fetches[is_slow].sum())),
        step=basis.without_fetches_above(limit, usual) if basis else stats.unknown("s", NOT_SIMULATED),
    )


ABLATION = BESIDE


def tried(
    present: Measured,
    launch: LaunchFacts,
    ablations: Mapping[str, AblationSummary],
    header: RunHeader,
    *,
    disturbed: bool = False,
) -> Basis | None:
    """Return what the ablation measured; None: it did not run, or too little of it is known.

    `disturbed` is Feed's.
    """
    step = ablations[ABLATION].step if ABLATION in ablations else None
    found = feed(launch, ablation=ABLATION)
    if step is None or step.value is None or found is None:
        return None
    loader = replace(found.loader, num_workers=1, prefetch_factor=DEFAULT_PREFETCH, in_order=True)
    try:
        beside = measured(replace(found, loader=loader, disturbed=disturbed), launch, header)
    except UnknownError:
        return None
    # Cores were counted in the full windows alone.
    cores = replace(present.cores, fetch=beside.cores.fetch)
    return Basis(replace(beside, cores=cores), step)
