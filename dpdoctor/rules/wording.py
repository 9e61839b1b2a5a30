"""What rules about communication and traces have in common: how a part is weighed, and sentences of evidence."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.analysis import TRACE_MODE, AblationSummary, Figure, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.communication import Exposure
from dpdoctor.analysis.facts import NO_COMM, Peak
from dpdoctor.analysis.weighing import COVERAGE, Weighed, above_zero, agree, is_loss, weigh

LAST_ONLY = "reduce gradients in the last micro-batch only"
# The forward pass decides whether DDP reduces in the backward pass that follows: it has to be under no_sync(), too.
NO_SYNC_CODE = "with contextlib.nullcontext() if is_last else model.no_sync(): criterion(model(x), y).backward()"
ON_CORES = "without a GPU communication takes the cores that compute, and slows what it runs beside"
TRACED_STEPS = "these are traced steps: without a profiler the host is faster"
# A few whole steps more than are lost at the ends.
TRACE_STEPS = 12
LONGER = "a longer --time-budget leaves time for "
# Of a trace that was not cut short, the steps at its ends that are not whole.
CUT = 2


def weigh_part(facts: ModeFacts, claim: Figure) -> Weighed:
    """Return what is to be believed of a part of the exposed communication, given the ablation that removes all of it.

    Refuted where removing everything gains nothing. Else the part of the ablation's gain that it is of the exposed
    communication in the trace: confirmed where it is most of it.
    """
    ablation, seen = facts.ablation(NO_COMM), facts.exposure
    weighed = weigh(claim, ablation)
    if ablation is None or seen is None or weighed.status != "confirmed":
        return weighed
    part = min(1.0, (claim.value or 0.0) / seen.exposed.value) if seen.exposed.value else 0.0
    return Weighed(cost=stats.scaled(ablation.share, part), status="confirmed" if part >= COVERAGE else "inferred")


def why_no_steps(facts: ModeFacts, shows: str) -> str:
    """Return why traces have no step to look at, or that there is none that `shows` what is asked."""
    return facts.traces.common.left_out if facts.traces else f"without a trace nothing shows {shows}"


def how_to_trace(facts: ModeFacts) -> str:
    """Return in a clause what would give a trace of enough whole steps; never an option that was given already."""
    asked = facts.spec.recording.trace_steps
    if facts.name == TRACE_MODE:
        return "give traces of more ranks or steps"
    if facts.mode.trace_reason:
        return facts.mode.trace_reason
    if asked and not facts.traces:
        return f"{LONGER}a trace"
    if asked and _most_steps(facts) < asked - CUT:
        return f"{LONGER}more traced steps"
    return f"profile with --trace-steps {2 * asked or TRACE_STEPS}"


def _most_steps(facts: ModeFacts) -> int:
    devices = [device for digest in facts.traces.digests for device in digest.devices]
    return max((len(device.steps) for device in devices), default=0)


def neither(facts: ModeFacts) -> str:
    """Return that neither trace nor ablation shows what communication costs, and what would; no option given
    already.
    """
    shown = f"no trace shows what communication costs: {how_to_trace(facts)}"
    if facts.name == TRACE_MODE:
        return shown
    return f"{shown}; and no ablation does: {how_to_ablation(facts)}"


def how_to_either(facts: ModeFacts) -> str:
    """Return in a clause what would make trace or ablation tell more; a remedy that both have is said once."""
    trace = how_to_trace(facts)
    if facts.name == TRACE_MODE:
        return trace
    ablation = how_to_ablation(facts)
    if ablation.startswith(LONGER) and trace.startswith(LONGER):
        return f"{ablation} or {trace.removeprefix(LONGER)}"
    return f"{ablation}; or {trace}"


def how_to_ablation(facts: ModeFacts) -> str:
    """Return in a clause what would make the ablation without communication tell more."""
    ablation = facts.mode.ablations.get(NO_COMM)
    if ablation is None:
        return f"profile with --ablations {NO_COMM}"
    return (
        f"{NO_COMM} was not measured: {ablation.share.reason}"
        if ablation.share.value is None
        else _how_to_more_rounds(facts, ablation.share.n)
    )


def _how_to_more_rounds(facts: ModeFacts, measured: int) -> str:
    if measured < facts.spec.recording.rounds:
        return f"{LONGER}more rounds"
    return "profile with more --rounds"


def ablation_words(facts: ModeFacts) -> tuple[str, ...]:
    """Return what the ablation no_comm gave, in a clause; empty: it was not asked for."""
    ablation = facts.mode.ablations.get(NO_COMM)
    if ablation is None:
        return ()
    if ablation.share.value is None or ablation.gain.value is None:
        return (f"the ablation without communication was not measured: {ablation.share.reason}",)
    if is_loss(ablation.share):
        longer = units.seconds(-ablation.gain.value)
        return (
            f"without communication (ablation no_comm) a step is {longer} longer, so that the ablation tells nothing",
        )
    if not above_zero(ablation.share):
        return (f"without communication (ablation no_comm) a step is not measurably shorter{_range(ablation.share)}",)
    gain, ratio = units.seconds(ablation.gain.value), units.share(ablation.share.value)
    return (f"without communication (ablation no_comm) a step is {gain} shorter, {ratio} of it",)


def _range(share: Figure) -> str:
    if share.low is None or share.high is None:
        return ""
    return f": {units.span(units.share(share.low), units.share(share.high))}"


def trace_words(seen: Exposure) -> str:
    """Return what the traces say of exposed communication, in a clause."""
    assert seen.total.value is not None
    assert seen.exposed.value is not None
    assert seen.removable.value is not None
    waiting = seen.total.value - seen.exposed.value
    if not seen.all_ranks:
        which = ", waiting for ranks that left no trace included"
    else:
        which = f", {units.share(waiting)} of the step waiting for a slower rank" if waiting > 0 else ""
    if seen.on_cores is not None and seen.on_cores.value:
        taken = units.share(seen.on_cores.value)
        which += f"; of the cores that compute it takes another {taken}, beside computing and by what is done around it"
    if seen.clocked is not None and seen.clocked.value is not None:
        which += (
            f"; on the host's clock calls of collectives take {units.share(seen.clocked.value)} of an untraced step"
        )
    if seen.bound is not None:
        which += f"; one device computes as many samples in all but {units.share(seen.bound)} of the time of a step"
    left_out = f" ({seen.total.reason})" if seen.total.reason else ""
    return f"in the trace exposed communication is {units.share(seen.total.value)} of a step{left_out}{which}"


def agreement_words(seen: Exposure, ablation: AblationSummary) -> str:
    """Return in a clause whether what was seen and the ablation agree on what communication costs."""
    assert seen.removable.value is not None
    assert ablation.share.value is not None
    both = "trace and ablation" if seen.clocked is None else "clock and ablation"
    if agree(seen.removable, ablation.share):
        return f"{both} agree" if above_zero(ablation.share) else f"{both} do not contradict each other"
    if ablation.share.value > seen.removable.value:
        return f"{both} disagree: the ablation gains more, as communication also slows what runs beside it"
    return (
        f"{both} disagree: the ablation gains less, as a step then waits for something else, or for "
        "collectives of the script's own, which the ablation leaves in"
    )


def rank_words(facts: ModeFacts) -> str:
    """Return, as the end of a clause, of which of several ranks a share of the step is that all of them lose."""
    return ", on the rank where that is longest" if facts.communicates and len(facts.traces.digests) > 1 else ""


def core_words(facts: ModeFacts) -> tuple[str, ...]:
    """Return what belongs to every figure of communication without a GPU; empty with one."""
    return () if facts.on_gpu else (ON_CORES,)


def library_words(facts: ModeFacts) -> tuple[str, ...]:
    """Return that a library runs the backward passes after each of which dpdoctor's wrapper reduces; else empty."""
    if facts.mode.native is not None or not facts.reduces_each_micro_batch or not facts.library_backward:
        return ()
    return (
        f"{facts.library_backward} runs the backward pass: in a job of its own it may reduce in the last micro-batch "
        "only, as it is; --modes native shows whether it does",
    )


def shared_words(peak: Peak) -> tuple[str, ...]:
    """Return what belongs to the peak of a GPU that several ranks use; empty for one rank's."""
    if not peak.is_bound:
        return ()
    return (f"{units.count(len(peak.ranks), 'rank')} use it: their peaks are added up, and need not have come at once",)


def wrapped_line(facts: ModeFacts) -> str | None:
    """Return where the script calls the module that was wrapped first; None: none was."""
    units_wrapped = facts.mode.conversion.modules if facts.mode.conversion else ()
    return units_wrapped[0].line if units_wrapped else None
