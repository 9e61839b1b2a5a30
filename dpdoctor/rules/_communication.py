"""What the rules of communication share: how much of it is exposed, and what the arm without it says of a part."""

from __future__ import annotations

from dataclasses import dataclass

from dpdoctor import units
from dpdoctor.analysis import TRACE_MODE, ArmSummary, Figure, stats
from dpdoctor.analysis.communication import exposed_share, removable
from dpdoctor.analysis.trace_budget import part_share
from dpdoctor.rules._base import COVERAGE, Case, Weighed, above_zero, agree, measured_arm, weigh
from dpdoctor.rules._traced import how_to_trace, launch_of, on_gpu, traces

ARM = "no_comm"
ON_CORES = "without a GPU communication takes the cores that compute, and slows what it runs beside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What communication costs, as shares of a step.

    Attributes:
        total: of a traced step, communication beside which nothing computes: mean over ranks, with what they wait for
            each other.
        exposed: the same on the rank that has least of it, for which the others wait.
        on_cores: what communication takes of the cores that compute; None: it has others.
        removable: what would go with the communication.
        all_ranks: every rank left a trace; else the waiting cannot be told apart.
    """

    total: Figure
    exposed: Figure
    on_cores: Figure | None
    removable: Figure
    all_ranks: bool


def communicates(case: Case) -> bool:
    """Return whether ranks of this mode exchange tensors by collectives; nn.DataParallel has rules of its own."""
    found = traces(case).digests
    if launch_of(case) is None or case.name == "dp" or any(digest.data_parallel for digest in found):
        return False
    return case.mode.world_size > 1 or any(digest.collectives or digest.unknown_communication for digest in found)


def why_untold(case: Case) -> str | None:
    """Return why the mode's traces do not tell what its ranks communicate; None: they do, or there are none."""
    return traces(case).why_unknown


def neither(case: Case) -> str:
    """Return that neither trace nor arm shows what communication costs, and what would; no option given already."""
    shown = f"no trace shows what communication costs: {how_to_trace(case)}"
    if case.name == TRACE_MODE:
        return shown
    return f"{shown}; and no arm does: {how_to_arm(case)}"


def how_to_arm(case: Case) -> str:
    """Return in a clause what would make the arm without communication tell more."""
    arm = case.mode.arms.get(ARM)
    if arm is None:
        return f"profile with --arms {ARM}"
    return f"{ARM} was not measured: {arm.share.reason}" if arm.share.value is None else "profile with more --rounds"


def exposure(case: Case) -> Exposure | None:
    """Return the exposed communication of the mode's traces; None: they hold no whole step, or do not tell it."""
    found, launch = traces(case), launch_of(case)
    total = part_share(found, "exposed_comm")
    if launch is None or total.value is None:
        return None
    world_size = max([case.mode.world_size, *(digest.world_size or 1 for digest in found.digests)])
    gone = removable(launch, case.analysis.summary.fingerprint.cores)
    return Exposure(
        total=total,
        exposed=exposed_share(found),
        on_cores=gone.on_cores,
        removable=gone.total,
        all_ranks=len(found.digests) >= world_size,
    )


def arm_of(case: Case) -> ArmSummary | None:
    """Return the arm without communication; None: it was not run."""
    return measured_arm(case, ARM)


def weigh_part(case: Case, claim: Figure) -> Weighed:
    """Return what is to be believed of a part of the exposed communication, given the arm that removes all of it.

    Refuted where removing everything gains nothing. Else the part of the arm's gain that it is of the exposed
    communication in the trace: confirmed where it is most of it.
    """
    arm, seen = arm_of(case), exposure(case)
    weighed = weigh(claim, arm)
    if arm is None or seen is None or weighed.status != "confirmed":
        return weighed
    part = min(1.0, (claim.value or 0.0) / seen.exposed.value) if seen.exposed.value else 0.0
    return Weighed(cost=stats.scaled(arm.share, part), status="confirmed" if part >= COVERAGE else "inferred")


def arm_words(case: Case) -> tuple[str, ...]:
    """Return what the arm no_comm gave, in a clause; empty: it was not asked for."""
    arm = case.mode.arms.get(ARM)
    if arm is None:
        return ()
    if arm.share.value is None or arm.gain.value is None:
        return (f"the arm without communication was not measured: {arm.share.reason}",)
    if not above_zero(arm.share):
        return (f"without communication (arm no_comm) a step is not measurably shorter{_range(arm.share)}",)
    gain, ratio = units.seconds(arm.gain.value), units.share(arm.share.value)
    return (f"without communication (arm no_comm) a step is {gain} shorter, {ratio} of it",)


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
    left_out = f" ({seen.total.reason})" if seen.total.reason else ""
    return (
        f"in the trace communication beside which nothing computes is {units.share(seen.total.value)} of a step"
        f"{left_out}{which}"
    )


def agreement_words(seen: Exposure, arm: ArmSummary) -> str:
    """Return in a clause whether the trace and the arm agree on what communication costs."""
    assert seen.removable.value is not None
    assert arm.share.value is not None
    if agree(seen.removable, arm.share):
        return "trace and arm agree" if above_zero(arm.share) else "trace and arm do not contradict each other"
    if arm.share.value > seen.removable.value:
        return "trace and arm disagree: the arm gains more, as communication also slows what runs beside it"
    return (
        "trace and arm disagree: the arm gains less, as a step then waits for something else, or for "
        "collectives of the script's own, which the arm leaves in"
    )


def core_words(case: Case) -> tuple[str, ...]:
    """Return what belongs to every figure of communication without a GPU; empty with one."""
    return () if on_gpu(case) else (ON_CORES,)


def adopted_line(case: Case) -> str | None:
    """Return where the script calls the module that was adopted first; None: none was."""
    units_adopted = case.mode.adoption.units if case.mode.adoption else ()
    return units_adopted[0].line if units_adopted else None
