"""What other settings of the loader would give: the simulation on the measured times, with its interval.

The times are those of the script's own loader or, where it has no worker, of the ablation that tries one; single
fetches that take far longer than the others are told apart.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.figure import Figure
from dpdoctor.analysis.base.launch_facts import LaunchFacts
from dpdoctor.analysis.base.stats import student_t
from dpdoctor.analysis.base.summary import AblationSummary, LoaderPrediction, SlowFetches
from dpdoctor.analysis.base.windows import NS
from dpdoctor.analysis.loader.feed import Feed, feed
from dpdoctor.analysis.loader.measured import DEFAULT_PREFETCH, Block, Measured, UnknownError, measured
from dpdoctor.analysis.loader.simulate import Outcome, Setting, Times, simulate
from dpdoctor.spec import BESIDE, RunHeader

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
