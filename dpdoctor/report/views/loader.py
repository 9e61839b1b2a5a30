"""The loader seen from inside: what its processes do, what a batch costs, and how many workers to set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, Figure, LoaderSummary, ModeSummary
from dpdoctor.analysis.base.launches import shown
from dpdoctor.analysis.loader.feed import feed, fetch_times
from dpdoctor.analysis.loader.trial import changes, tried_step
from dpdoctor.analysis.weighing import above_zero
from dpdoctor.report.blocks import (
    Absent,
    Block,
    Callout,
    Chart,
    Column,
    Facts,
    Fold,
    Grid,
    Note,
    OfMode,
    Paragraph,
    Table,
    View,
)
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.charts import Bar, Part, StackedBar, interval_bars, share_bars
from dpdoctor.report.drawing.loader_charts import fetch_boxes, predicted_step
from dpdoctor.report.text import (
    absent_of,
    amount_cell,
    as_typed,
    figure_cell,
    figure_text,
    name_cell,
    sentence,
    whole_cell,
    with_interval,
)
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing

LONGEST_NAME = 32
# More depths than these are one bar: a queue that is this full never keeps anybody waiting.
MOST_DEPTHS = 6
# More rows than these nobody reads; run.json has every process.
MOST_WORKERS = 64
DEPTH_COLORS = (
    charts.VERMILION,
    charts.ORANGE,
    charts.SKY,
    charts.GREEN,
    charts.PURPLE,
    charts.GREY,
    charts.BLUE,
)
WORKER_COLUMNS = (
    Column(title="Worker"),
    Column(title="Batches", numeric=True),
    Column(title="Fetch", numeric=True),
    Column(title="Busy", numeric=True),
)
NO_FETCHES = "no fetch was timed in a full window"
NO_TRANSFORMS = "no chain of transforms, such as torchvision's Compose, was seen in the dataset"
MEANING = (
    "Fetching is what a worker, or the training thread without workers, does for a batch: the dataset's items with "
    "their transforms, and putting them together. Predictions come from replaying the measured fetches through a "
    "simulation of the DataLoader: those of the ablation one_worker, where the script has no workers and it ran. They "
    "hold for this machine and this step. A box to the right of the others is a slow process; long whiskers stall "
    "training now and then."
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the advice, the loader's figures, transforms, ready depth, workers and predicted steps."""
    shown = standing.shown_modes(analysis.summary)
    seen = {name: mode for name, mode in shown.items() if mode.loader}
    if not seen:
        return [Absent(what="Loader", reason="no loader was seen from inside in this run's measured windows")]
    modes = [
        OfMode(mode=name, blocks=tuple(_loader(analysis, name, mode.loader)))
        for name, mode in seen.items()
        if mode.loader
    ]
    missing = absent_of(
        "Loader", {name: _why_not(mode) for name, mode in analysis.summary.modes.items() if name not in seen}
    )
    return [*modes, *missing, Note(text=MEANING)]


def _why_not(mode: ModeSummary) -> str:
    return standing.withheld_briefly(mode) or "no loader was seen from inside"


def _loader(analysis: Diagnosis, mode: str, loader: LoaderSummary) -> Iterator[Block]:
    yield from _advice(loader, tried_step(analysis.summary.modes[mode]) if loader.trial is None else None)
    yield Grid(
        blocks=(
            Facts(pairs=tuple(_facts(loader, analysis.summary.command))),
            _fetches(analysis, mode),
            *_transforms(loader),
            *_ready(loader),
        )
    )
    yield Fold(title="Predicted step by num_workers", blocks=(_predicted(loader),))
    for table in _workers(loader):
        yield Fold(title=units.count(len(loader.workers), "loader process"), blocks=(table,))
    yield from _control(loader)


def _predicted(loader: LoaderSummary) -> Chart | Absent:
    if any(found.step.value is not None for found in loader.predictions):
        return predicted_step(loader)
    return Absent(what="Predicted step", reason=loader.advice_reason or "nothing could be simulated")


def _advice(loader: LoaderSummary, tried: Figure | None) -> Iterator[Callout]:
    advice, in_trial = loader.advice, loader.trial is not None and loader.trial.speedup.value is not None
    if tried is not None:
        measured = f"A step takes {with_interval(tried)} with it, measured in this run (ablation one_worker)"
        yield _to_set(loader, 1, None, measured)
    elif advice is not None and in_trial:
        yield _to_set(loader, advice.num_workers, advice.prefetch_factor, loader.advice_reason)
    elif advice is not None:
        predicted = (
            f"A step is then predicted to take {with_interval(advice.step)}, "
            f"{figure_text(advice.wait)} of it waiting for data"
        )
        reason = f" ({loader.advice_reason})" if loader.advice_reason else ""
        yield _to_set(loader, advice.num_workers, advice.prefetch_factor, predicted + reason)
    elif loader.advice_reason:
        yield Callout(tone="plain", title="No other setting is advised", text=sentence(loader.advice_reason))


def _to_set(loader: LoaderSummary, num_workers: int, prefetch: int | None, why: str) -> Callout:
    arguments = ", ".join(changes(loader, num_workers, prefetch))
    return Callout(tone="warn", title=f"Set {arguments}", text=sentence(why))


def _facts(loader: LoaderSummary, command: Sequence[str]) -> Iterator[tuple[str, str]]:
    prefetch = "" if loader.prefetch_factor is None else f", prefetch_factor={loader.prefetch_factor}"
    if loader.built_at:
        yield "Built at", as_typed(loader.built_at, command)
    yield "Iterated at", as_typed(loader.line, command)
    yield "Dataset", loader.dataset
    yield "Workers", f"num_workers={loader.num_workers}{prefetch}"
    yield "persistent_workers", "yes" if loader.persistent_workers else "no"
    yield "Pinned memory", "yes" if loader.pin_memory else "no"
    yield "Batch", "unknown" if loader.batch_bytes is None else units.size(loader.batch_bytes)
    yield "Fetching a batch", _spread(loader)
    if loader.slow_fetches is not None:
        slow = f"{units.whole(loader.slow_fetches.count)} of {units.whole(loader.slow_fetches.total)}"
        yield "Far slower than the others", f"{slow}: {units.seconds(loader.slow_fetches.seconds)}"
    if loader.queued is not None and above_zero(loader.queued):
        yield "Waiting for a core while fetching", _known(loader.queued)
    yield "Collate", _known(loader.collate)
    yield "CPU utilisation while fetching", _known(loader.cpu_ratio)
    yield "Waiting, per step", _known(loader.wait)
    yield "Worker-to-main transfer", _known(loader.transfer)
    yield "Extra wait for an epoch's first batch", _known(loader.epoch_start)


def _spread(loader: LoaderSummary) -> str:
    spread = "" if loader.fetch_cv is None else f", spread {units.share(loader.fetch_cv)}"
    return _known(loader.fetch) + spread


def _known(figure: Figure) -> str:
    return with_interval(figure) if figure.value is not None else f"unknown: {figure.reason}"


def _fetches(analysis: Diagnosis, mode: str) -> Chart | Absent:
    found = feed(shown(analysis.run.modes[mode]))
    times = fetch_times(found) if found else {}
    return fetch_boxes(times) if times else Absent(what="How long a fetch takes", reason=NO_FETCHES)


def _transforms(loader: LoaderSummary) -> Iterator[Chart | Absent]:
    known = [found for found in loader.transforms if found.per_batch.value is not None]
    if not known:
        yield Absent(what="What a fetch consists of", reason=NO_TRANSFORMS)
        return
    chart = interval_bars(
        title="What a fetch consists of",
        x_title="per batch",
        bars=[Bar(name=found.name, figure=found.per_batch, color=charts.BLUE) for found in known],
        how_to_read="One bar is one callable of the chain of transforms, in the order in which they are called.",
    )
    shares = " ".join(f"{found.name} is {units.share(found.share)} of loading." for found in known)
    yield replace(chart, alternative=f"{chart.alternative} {shares}")


def _ready(loader: LoaderSummary) -> Iterator[Chart | Absent]:
    """Yield how often so many batches lay ready, or why none was counted."""
    if not loader.ready_batches or not loader.num_workers:
        why = "nobody counted them in a full window" if loader.num_workers else "num_workers is 0"
        yield Absent(what="Prefetched batches", reason=why)
        return
    deep = sum(share for depth, share in loader.ready_batches.items() if depth >= MOST_DEPTHS)
    ratios = {str(depth): loader.ready_batches.get(depth, 0.0) for depth in range(MOST_DEPTHS)}
    ratios[f"{MOST_DEPTHS} or more"] = deep
    yield share_bars(
        title="Prefetched batches when training asked",
        whole="all asks",
        rows=[StackedBar(name="asks", ratios=ratios, amounts=dict.fromkeys(ratios, "of all asks"))],
        parts=[
            Part(key=depth, name=f"{depth} ready", colors=(color, charts.DARK_INK))
            for depth, color in zip(ratios, DEPTH_COLORS, strict=True)
        ],
        how_to_read="Mostly 0 ready: training waits for its loader; else the loader is ahead.",
    )


def _workers(loader: LoaderSummary) -> Iterator[Table]:
    """Yield a row per loader process or, of many, the slowest; nothing without any."""
    if loader.workers:
        slowest = sorted(loader.workers, key=lambda found: found.fetch.value or 0.0, reverse=True)[:MOST_WORKERS]
        shown = sorted(slowest, key=lambda found: (found.rank, found.worker))
        total = units.whole(len(loader.workers))
        more = "" if len(shown) == len(loader.workers) else f" Shown: the {MOST_WORKERS} slowest of {total}."
        yield Table(
            caption="Loader processes, in the measured windows. Busy is the share of the time spent on fetching."
            + more,
            columns=WORKER_COLUMNS,
            rows=tuple(
                (
                    name_cell(f"rank {found.rank}, worker {found.worker}", LONGEST_NAME),
                    whole_cell(found.batches),
                    figure_cell(found.fetch),
                    amount_cell(found.busy, "ratio"),
                )
                for found in shown
            ),
        )


def _control(loader: LoaderSummary) -> Iterator[Paragraph]:
    control = loader.baseline_same_workers
    if control is None:
        return
    processes = units.count(control.num_workers, "loader process")
    yield Paragraph(
        text=f"Control: one device alone with {processes}, as many as all ranks have, is predicted to take "
        f"{_known(control.step)} per step. The mode's speedup up to there is parallel data loading."
    )


def result(analysis: Diagnosis) -> str:
    """Return the workers of the leading mode's loader, what a batch takes and what a step waits for it."""
    name = standing.focus(analysis.summary)
    loader = None if name is None else analysis.summary.modes[name].loader
    if loader is None:
        return ""
    times = {"per batch": loader.fetch, "wait per step": loader.wait}
    known = [f"{figure_text(figure)} {what}" for what, figure in times.items() if figure.value is not None]
    return ", ".join((f"{name}: num_workers={loader.num_workers}", *known))


VIEW: View[Diagnosis] = View(
    name="loader",
    title="Loader",
    build=build,
    applies=is_profile,
    result=result,
)
