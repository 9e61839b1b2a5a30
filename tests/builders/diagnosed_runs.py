"""Analyses with ablations, a loader seen from inside, a waterfall and findings, as the report must be able to show
them.
"""

from __future__ import annotations

from msgspec.structs import replace

from dpdoctor.analysis import (
    WATERFALL_TERMS,
    AblationSummary,
    Analysis,
    CrossCheck,
    Figure,
    Finding,
    Inconclusive,
    LoaderPrediction,
    LoaderSummary,
    ModeSummary,
    Waterfall,
)
from dpdoctor.analysis.base.summary import TransformSummary, WorkerSummary
from tests.builders import runs
from tests.builders.traced_runs import HOSTILE

N = 9
SKIPPED = "the dataset keeps its place in a file"


def figure(value: float, half: float = 0.0, unit: str = "s") -> Figure:
    """Return a known figure with its interval."""
    return Figure(value=value, low=value - half, high=value + half, n=N, unit=unit)


def unknown(reason: str, unit: str = "s") -> Figure:
    """Return a figure that is not known."""
    return Figure(value=None, unit=unit, reason=reason)


def ablation(gain: float, step: float, half: float = 0.001) -> AblationSummary:
    """Return what an ablation gave, in seconds."""
    full = gain + step
    return AblationSummary(
        gain=figure(gain, half), share=figure(gain / full, half / full, "ratio"), step=figure(step, half)
    )


def skipped(reason: str = SKIPPED) -> AblationSummary:
    """Return an ablation that was not run."""
    return AblationSummary(gain=unknown(reason), share=unknown(reason, "ratio"), step=unknown(reason))


def prediction(num_workers: int, step: float, prefetch_factor: int | None = 2) -> LoaderPrediction:
    """Return a predicted step; without workers nothing is prefetched."""
    factor = prefetch_factor if num_workers else None
    return LoaderPrediction(
        num_workers=num_workers, prefetch_factor=factor, step=figure(step, step / 50), wait=figure(step / 10)
    )


def loader(name: str = "FakeData", transform: str = "RandomAffine") -> LoaderSummary:
    """Return a loader of two workers that is the bottleneck; four would do."""
    predictions = (
        prediction(0, 0.120),
        *(prediction(workers, 0.1 / workers + 0.01, factor) for workers in (1, 2, 4) for factor in (2, 4)),
    )
    return LoaderSummary(
        line="train.py:30",
        dataset=name,
        num_workers=2,
        prefetch_factor=2,
        pin_memory=False,
        persistent_workers=True,
        batch_bytes=38_535_168.0,
        fetch=figure(0.080, 0.002),
        fetch_cv=0.12,
        cpu_ratio=figure(0.97, 0.01, "ratio"),
        collate=figure(0.004),
        wait=figure(0.040, 0.001),
        ready_batches={0: 0.7, 1: 0.2, 9: 0.1},
        transfer=figure(0.0006),
        epoch_start=unknown("no epoch began inside a measured window"),
        transforms=(
            TransformSummary(name=transform, per_batch=figure(0.039), share=0.49),
            TransformSummary(name="ToTensor", per_batch=figure(0.020), share=0.25),
        ),
        workers=tuple(
            WorkerSummary(rank=0, worker=number, batches=20, fetch=figure(0.080, 0.003), busy=0.8) for number in (0, 1)
        ),
        predictions=predictions,
        advice=prediction(4, 0.035),
        advice_reason="the fewest that are within 2% of the fastest",
        baseline_same_workers=prediction(4, 0.060),
    )


def waterfall(**unknown_terms: str) -> Waterfall:
    """Return a waterfall from 100–143 ms of which these terms are unknown, for these reasons."""
    values = dict(zip(WATERFALL_TERMS, (-0.040, 0.060, 0.012, 0.006, 0.004, 0.0, 0.001), strict=True))
    lost = sum(values[term] for term in unknown_terms)
    known = {term: figure(value, 0.002) for term, value in values.items()}
    terms = {term: unknown(unknown_terms[term]) if term in unknown_terms else known[term] for term in WATERFALL_TERMS}
    terms["other"] = figure(values["other"] + lost, 0.003)
    return Waterfall(
        ideal=figure(0.100, 0.001),
        measured=figure(0.143, 0.001),
        terms=terms,
        sources=dict.fromkeys(WATERFALL_TERMS, "an ablation"),
    )


def waits(seen: float, gained: AblationSummary, *, agrees: bool) -> CrossCheck:
    """Return what the clock and the ablation without a loader say of waiting for data."""
    what = "waiting for data, on the host's clock"
    share = figure(seen, 0.01, "ratio")
    return CrossCheck(
        what=what, ablation="cached_batches", observed=share, gain=gained.share, agrees=agrees, tolerance=0.05
    )


def finding(rule: str = "data_starved", mode: str = "ddp", **fields: object) -> Finding:
    """Return a confirmed, critical finding; more fields by keyword."""
    known = Finding(
        rule=rule,
        mode=mode,
        severity="critical",
        status="confirmed",
        title="the loader starves training: 42% of each step",
        cost=figure(0.42, 0.03, "ratio"),
        evidence=("Training waits for data in 41% of a step.", "With batches that lie ready a step is shorter."),
        cause="its workers compute and are too few",
        remedy="set num_workers=4; now it is 2",
        code="DataLoader(..., num_workers=4)",
        line="train.py:30",
        speedup=figure(1.7, 0.1, "x"),
    )
    return replace(known, **fields)


def with_modes(of: Analysis, **modes: ModeSummary) -> Analysis:
    """Return an analysis with some modes replaced."""
    summary = replace(of.summary, modes={**of.summary.modes, **modes})
    return replace(of, summary=summary)


def with_findings(of: Analysis, *findings: Finding, inconclusive: tuple[Inconclusive, ...] = ()) -> Analysis:
    """Return an analysis with these findings."""
    return replace(of, summary=replace(of.summary, findings=findings, inconclusive=inconclusive))


def diagnosed_run() -> Analysis:
    """Return single, an inactive DataParallel, DDP with everything that can be found, and an FSDP that failed."""
    found = runs.cpu_run()
    single, ddp = found.summary.modes["single"], found.summary.modes["ddp"]
    of_single, of_ddp = ablation(0.040, 0.060), ablation(0.005, 0.138)
    found = with_modes(
        found,
        single=replace(
            single,
            ablations={"cached_batches": of_single},
            cross_checks=(waits(0.400, of_single, agrees=True),),
            loader=loader(),
        ),
        ddp=replace(
            ddp,
            ablations={
                "cached_batches": of_ddp,
                "no_comm": skipped("too little memory for a copy of the parameters"),
                "amp": ablation(-0.010, 0.153),
            },
            cross_checks=(waits(0.420, of_ddp, agrees=False),),
            loader=loader(),
            waterfall=waterfall(slower_ranks="no two ranks left a trace"),
        ),
    )
    refuted = finding(
        "exposed_communication", status="refuted", severity="info", remedy=None, code=None, title="talks, but for free"
    )
    return with_findings(
        found,
        finding(short_remedy="set num_workers=4"),
        finding("gc_pauses", severity="warning", status="inferred", ranks=(1,), share_of="epoch", speedup=None),
        finding("loader_gain", severity="info", title="the gain is in the loader"),
        refuted,
        inconclusive=(Inconclusive(rule="straggler", mode="ddp", reason="to tell a pattern 8 whole steps are needed"),),
    )


def hostile_findings() -> Analysis:
    """Return a run in which every text that comes from the script or its data tries to break out of the page."""
    found = diagnosed_run()
    ddp = found.summary.modes["ddp"]
    hostile = loader(HOSTILE[0], HOSTILE[1])
    found = with_modes(
        found,
        ddp=replace(
            ddp,
            loader=replace(hostile, line=HOSTILE[1], advice_reason=HOSTILE[0]),
            ablations={HOSTILE[0]: ablation(0.010, 0.133), HOSTILE[1]: skipped(HOSTILE[0])},
            waterfall=waterfall(transfer=HOSTILE[0]),
        ),
    )
    text = dict.fromkeys(("title", "remedy", "short_remedy"), HOSTILE[0])
    text |= {"cause": HOSTILE[1], "code": HOSTILE[1], "line": HOSTILE[2]}
    return with_findings(
        found,
        finding(HOSTILE[0], evidence=HOSTILE[:3], **text),
        inconclusive=(Inconclusive(rule=HOSTILE[1], mode="ddp", reason=HOSTILE[0]),),
    )
