"""slow_warmup: compiling and other first times take much of an epoch, or go on inside of training."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import EventRecord, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import NS
from dpdoctor.analysis.weighing import COVERAGE, SMALL, share_beside
from dpdoctor.rules.rule import Rule, faster_without, severity

# xprof's threshold for "other" time of the host: compiling inside of training.
RECOMPILING = 0.03
# What comes once is told from this share of an epoch, and complained of from that one. Nobody minds a second.
WARNING, LEAST_S = 0.20, 1.0


def _check(facts: ModeFacts) -> Finding | None:
    return _recompiling(facts) or _warming_up(facts)


def _recompiling(facts: ModeFacts) -> Finding | None:
    """Return that the measured steps, long after warm-up, are still compiled anew."""
    share = facts.share_of_events("compile")
    if share.value is None or share.value < RECOMPILING:
        return None
    place, compiles = _compiles(facts)
    measured = [event for event in compiles if _is_measured(facts, place, event)]
    anew_ns = sum(event.duration_ns for event in measured if _is_anew(event))
    evidence = (f"{units.count(len(compiles), 'compilation')} on one rank, {len(measured)} of them in measured steps.",)
    if anew_ns < sum(event.duration_ns for event in measured) / 2:
        return Finding(
            rule="slow_warmup",
            mode=facts.name,
            severity="info",
            status="confirmed",
            title=f"torch.compile still compiles in measured steps: {units.share(share.value)} of them",
            cost=share,
            evidence=(*evidence, "What is compiled there is compiled for the first time, which comes once."),
            cause=None,
            remedy="measure later, with a longer --warmup: figures hold the time of these compilations",
        )
    return Finding(
        rule="slow_warmup",
        mode=facts.name,
        severity=severity(share.value),
        status="confirmed",
        title=f"torch.compile compiles anew inside of training: {units.share(share.value)} of each step",
        cost=share,
        evidence=evidence,
        cause="what is compiled depends on something that changes, such as the shape of the inputs",
        remedy="keep shapes alike (pad to few lengths), or compile with dynamic shapes; TORCH_LOGS=recompiles tells "
        "what changed",
        short_remedy="compile with dynamic shapes",
        code="torch.compile(model, dynamic=True)",
        speedup=faster_without(share),
    )


def _warming_up(facts: ModeFacts) -> Finding | None:
    """Return that what comes once before training is steady is long beside an epoch."""
    lost_s, compiles = _warmup(facts)
    compiled_s = sum(event.duration_ns for event in compiles) * NS
    epoch_s = facts.mode.epoch_s.value
    if epoch_s is None or lost_s < LEAST_S:
        return None
    share = share_beside(stats.mean_interval([lost_s], "s"), epoch_s)
    if share.value is None or share.value < SMALL:
        return None
    anew = [event for event in compiles if _is_anew(event)]
    evidence = [f"The steps of the warm-up take {units.seconds(lost_s)} longer than as many steady ones."]
    if compiles:
        takes, none = ("takes", "it is not one") if len(compiles) == 1 else ("take", "none of them is")
        how_many = f"{units.whole(len(anew))} of them anew" if anew else f"{none} anew"
        evidence.append(f"{units.count(len(compiles), 'compilation')} {takes} {units.seconds(compiled_s)}, {how_many}.")
    return Finding(
        rule="slow_warmup",
        mode=facts.name,
        severity=severity(share.value) if share.value >= WARNING and anew else "info",
        status="confirmed" if compiled_s >= COVERAGE * lost_s else "inferred",
        title=f"warming up takes {units.seconds(lost_s)}: {units.share(share.value)} of the first epoch",
        cost=share,
        share_of="epoch",
        evidence=tuple(evidence),
        cause=_cause(lost_s, compiled_s, bool(anew)),
        remedy="compile once: keep the shapes of inputs alike, or compile with dynamic shapes" if anew else None,
        code="torch.compile(model, dynamic=True)" if anew else None,
    )


def _cause(lost_s: float, compiled_s: float, anew: bool) -> str | None:
    if compiled_s < COVERAGE * lost_s:
        return None
    return "torch.compile compiles the model again for each new shape" if anew else "torch.compile"


def _compiles(facts: ModeFacts) -> tuple[int, list[EventRecord]]:
    """Return the place of the rank that spent most on compilations, and these, of the launch that is shown."""
    launch = facts.launch
    by_rank = [[e for e in rank.events if e.kind == "compile"] for rank in launch.ranks] if launch else []
    return max(enumerate(by_rank), key=lambda of: sum(e.duration_ns for e in of[1]), default=(0, []))


def _is_anew(event: EventRecord) -> bool:
    """Return whether a compile id says that its frame was compiled before: dynamo 0/1, not 0/0."""
    number = event.detail.rpartition("/")[2].split("_")[0]
    return number.isdigit() and int(number) > 0


def _is_measured(facts: ModeFacts, place: int, event: EventRecord) -> bool:
    """Return whether something began in a measured window of the launch that is shown, by the clock of its rank."""
    windows = [window.ranks[place].window for launch, window in facts.windows_with_edges if launch is facts.launch]
    return any(window.begin_ns <= event.at_ns < window.end_ns for window in windows)


def _warmup(facts: ModeFacts) -> tuple[float, list[EventRecord]]:
    """Return the seconds that warm-up steps take beyond steady ones, and what was compiled meanwhile, on one rank.

    The very first step is counted only with its compilations: there dpdoctor wraps the script. That in which it proves
    the wrapping, under a profiler, is none of them.
    """
    step_s, launch = facts.mode.step.value, facts.launch
    place, compiles = _compiles(facts)
    if step_s is None or launch is None or not launch.ranks or not launch.ranks[place].steps:
        return 0.0, []
    rank = launch.ranks[place]
    warming = {window.window for window in rank.windows if window.kind == "warmup"}
    steps = [s for s in rank.steps if s.window in warming and not s.epoch_edge]
    first = rank.steps[0]
    slow_s = sum(max(0.0, s.duration_ns * NS - step_s) for s in steps if s.step != first.step)
    end_ns = max((s.begin_ns + s.duration_ns for s in steps), default=0)
    second_ns = first.begin_ns + first.duration_ns
    compiles = [event for event in compiles if event.at_ns < end_ns]
    first_s = sum(event.duration_ns for event in compiles if event.at_ns < second_ns) * NS
    return slow_s + first_s, compiles


RULE = Rule(
    name="slow_warmup",
    title="Slow warm-up, compiling again",
    what="The first steps take far longer than the others, or torch.compile compiles again inside of training.",
    why="Code is compiled, kernels are tried out and memory is asked for at first use; a shape, a dtype or a number "
    "that changes makes torch.compile begin anew.",
    how="Each compilation is timed as torch reports it, and the steps of the warm-up are compared with the steady "
    "ones. The first step, in which dpdoctor itself works, counts only with its compilations.",
    remedy="Keep shapes alike or compile with dynamic=True; TORCH_LOGS=recompiles names what changed.",
    verified=True,
    check=_check,
)
