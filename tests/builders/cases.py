"""Cases for rules: one mode whose figures are set by hand, over a run of two measured windows."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from dpdoctor.analysis import AblationSummary, Analysis, Figure, LoaderPrediction, LoaderSummary, ModeFacts, analyse
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.summary import NativeSummary
from dpdoctor.records import (
    ALL_PHASES,
    COMMUNICATION,
    HAND_WRITTEN,
    CallNode,
    Conversion,
    EventRecord,
    Loader,
    Rank,
    Sample,
    Strategy,
)
from tests.builders import records

STEP_S = 0.1
# Values behind each figure.
N = 10


class Case(ModeFacts):
    """The facts of a mode, and the analysis that they are of."""

    analysis: Analysis


def case_of(analysis: Analysis, name: str) -> Case:
    """Return a mode of an analysis as a case."""
    facts = analysis.facts[name]
    return Case(analysis=analysis, **asdict(facts))


def figure(value: float, half: float = 0.0, unit: str = "s") -> Figure:
    """Return a known figure with its interval of N values."""
    return Figure(value=value, low=value - half, high=value + half, n=N, unit=unit)


def unknown(unit: str = "s", reason: str = "nobody measured it") -> Figure:
    """Return a figure that is not known."""
    return stats.unknown(unit, reason)


# What the rules ask of ranks that a launcher of the script's own started.
OWN = NativeSummary(launcher=("python",), collectives=Figure(value=8, low=8, high=8, n=N, unit="collectives"))


def by_hand(*, in_backward: bool = False, calls: int = 40, of_gradients: bool = True) -> Conversion:
    """Return a script that exchanges by itself, after the backward pass or while it goes on: gradients, or others."""
    way = Strategy(
        name=HAND_WRITTEN,
        facts="by hand",
        line="train.py:40",
        calls=calls,
        in_backward=in_backward,
        of_gradients=of_gradients,
    )
    return Conversion(strategies=(way,), num_threads=1)


def in_way(name: str, **fields: Any) -> Conversion:
    """Return a script that wraps its model in this way."""
    return Conversion(strategies=(Strategy(name=name, **fields),), num_threads=1)


def calling(function: str, looks: int = 90) -> tuple[CallNode, ...]:
    """Return what the training thread was seen at: a line of the script that calls this function of a library, and so
    many percent of the looks found it there.
    """
    line = CallNode(parent=-1, where="train.py:40", function="<module>", looks=100, own_looks=100 - looks)
    return line, CallNode(parent=0, where=function, function="", looks=looks, own_looks=looks)


def waiting(of: Rank, share: float) -> Rank:
    """Return the rank, of which collectives take this share of each step on the host's clock, the rest its forward."""
    steps = []
    for step in of.steps:
        waited = round(share * step.duration_ns)
        times = {COMMUNICATION: waited, "forward": step.duration_ns - waited}
        phases_ns = tuple(times.get(name, 0) for name in ALL_PHASES)
        steps.append(replace(step, phases_ns=phases_ns, collectives=8, called=8))
    return replace(of, steps=tuple(steps))


def ablation(share: float, half: float = 0.01) -> AblationSummary:
    """Return an ablation that saves this share of a step of STEP_S, give or take."""
    gain, step = figure(share * STEP_S, half * STEP_S), figure((1 - share) * STEP_S, half * STEP_S)
    return AblationSummary(gain=gain, share=figure(share, half, "ratio"), step=step)


def skipped(reason: str = "too little memory") -> AblationSummary:
    """Return an ablation that was not run."""
    return AblationSummary(gain=unknown("s", reason), share=unknown("ratio", reason), step=unknown("s", reason))


def ranks(world_size: int = 1, **fields: Any) -> list[Rank]:
    """Return ranks with two measured windows of four steps of STEP_S; more fields of their records by keyword."""
    return [
        laid_out(records.even_rank(1000 * STEP_S, num_windows=2, index=index, world_size=world_size, **fields))
        for index in range(world_size)
    ]


def laid_out(of: Rank) -> Rank:
    """Return the rank with its steps numbered and end to end."""
    steps, at = [], 0
    for number, step in enumerate(of.steps):
        steps.append(replace(step, step=number, begin_ns=at))
        at += step.duration_ns
    return replace(of, steps=tuple(steps))


def analysis(name: str, of: Sequence[Rank], samples: Sequence[Sample] = (), **fields: Any) -> Analysis:
    """Return the analysis of a run of one mode with these ranks; fields of its summary are then set by keyword."""
    launch = replace(records.launch(*of, mode=name), samples=tuple(samples))
    return with_mode(analyse(records.run({name: [launch]}, {name: len(of)})), name, **fields)


def with_mode(of: Analysis, name: str, **fields: Any) -> Analysis:
    """Return an analysis with these fields of one mode's summary set."""
    modes = {**of.summary.modes, name: replace(of.summary.modes[name], **fields)}
    return replace(of, summary=replace(of.summary, modes=modes))


def case(
    name: str = "single",
    *,
    world_size: int = 1,
    of: Sequence[Rank] | None = None,
    samples: Sequence[Sample] = (),
    phases_s: Mapping[str, float] | None = None,
    single: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Case:
    """Return one mode with a step of STEP_S and no interval to speak of, as a rule sees it.

    Args:
        name: the mode's.
        world_size: ranks, where `of` does not say it.
        of: its ranks, with steps and events; steady ones by default.
        samples: of the host and the devices.
        phases_s: host seconds per step of some phases, the rest of the step being forward.
        single: fields of the baseline's summary; None: there is no baseline in the run.
        fields: of the mode's ModeSummary.
    """
    made = analysis(name, ranks(world_size) if of is None else of, samples)
    known = {"step": figure(STEP_S, 0.001), "phases": phases(phases_s or {})}
    made = with_mode(made, name, **{**known, **fields})
    if single is None:
        return case_of(made, name)
    base = analysis("single", ranks(), step=figure(STEP_S, 0.001), phases=phases({}))
    base = with_mode(base, "single", **single)
    modes = {"single": base.summary.modes["single"], **made.summary.modes}
    run = replace(made.run, modes={"single": base.run.modes["single"], **made.run.modes})
    return case_of(Analysis(summary=replace(made.summary, modes=modes), run=run), name)


def phases(some_s: Mapping[str, float]) -> dict[str, Figure]:
    """Return the seconds of every phase of a step of STEP_S: these, the rest being forward."""
    names = ("data_wait", "h2d", "forward", "backward", "optimizer", "other")
    seconds = {**dict.fromkeys(names, 0.0), "forward": STEP_S - sum(some_s.values()), **some_s}
    return {name: figure(value, value / 50) for name, value in seconds.items()}


def prediction(
    num_workers: int, step_s: float, wait_s: float = 0.0, prefetch_factor: int | None = None
) -> LoaderPrediction:
    """Return what a simulation would say of a number of workers."""
    return LoaderPrediction(
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        step=figure(step_s, step_s / 50),
        wait=figure(wait_s, 0.001),
    )


def loader(**fields: Any) -> LoaderSummary:
    """Return a loader without workers that computes 40 ms for a batch and is waited for as long."""
    known = LoaderSummary(
        line="train.py:30",
        dataset="Digits",
        num_workers=0,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        batch_bytes=1e6,
        fetch=figure(0.04, 0.001),
        fetch_cv=0.1,
        cpu_ratio=figure(0.99, 0.01, "ratio"),
        collate=figure(0.002),
        wait=figure(0.04, 0.001),
        ready_batches={},
        transfer=figure(0.0),
        epoch_start=figure(0.05),
        transforms=(),
        workers=(),
    )
    return replace(known, **fields)


def conversion(**fields: Any) -> Conversion:
    """Return one loader, as the conversion knows it, without workers; its fields by keyword."""
    known = {"line": "train.py:30", "dataset": "Digits", "sampler": "RandomSampler", "batch_size": 32}
    known |= {"num_workers": 0, "num_batches": 100, "rule": "per-device"}
    return Conversion(loaders=(Loader(**{**known, **fields}),), num_threads=1)


def eventful(of: Rank, kind: str, every: int, seconds: float, detail: str = "") -> Rank:
    """Return the rank, its steps end to end, with an event at the begin of every so many-th."""
    of, took = laid_out(of), round(seconds * 1e9)
    events = [
        EventRecord(kind=kind, at_ns=step.begin_ns, duration_ns=took, step=step.step, detail=detail)
        for step in of.steps[every - 1 :: every]
    ]
    return replace(of, events=(*of.events, *events))


def cases_of(name: str, kind: str) -> dict[str, Case]:
    """Return the cases of one kind that the rule's test file offers."""
    found: dict[str, Case] = getattr(importlib.import_module(f"tests.unit.rules.test_{name}"), kind)
    return found
