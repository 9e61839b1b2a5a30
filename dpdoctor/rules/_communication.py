"""What the rules of communication share: how much of it is exposed, and what the arm without it says of a part."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from dpdoctor import units
from dpdoctor.analysis import ArmSummary, Figure, stats
from dpdoctor.analysis.communication import exposed_share, on_shared_cores, removable_share
from dpdoctor.rules._base import COVERAGE, Case, Weighed, above_zero, agree, measured_arm, weigh
from dpdoctor.rules._traced import digests, launch_of, on_gpu, share

ARM = "no_comm"
NEITHER = "no trace and no arm no_comm shows what communication costs: profile with --trace-steps 10 --arms no_comm"
ON_CORES = "without a GPU communication takes the cores that compute, and slows what it runs beside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Communication beside which nothing computes, as shares of a traced step.

    Attributes:
        total: mean over ranks, with what they wait for each other.
        exposed: on the rank that has least of it, for which the others wait.
        removable: what would go with the communication: the same, with what runs beside computing and the copying for
            it where both share the cores.
        all_ranks: every rank left a trace; else the waiting cannot be told apart.
    """

    total: Figure
    exposed: Figure
    removable: Figure
    all_ranks: bool


def communicates(case: Case) -> bool:
    """Return whether ranks of this mode exchange tensors by collectives; nn.DataParallel has rules of its own."""
    found = digests(case)
    if launch_of(case) is None or case.name == "dp" or any(digest.data_parallel for digest in found):
        return False
    return case.mode.world_size > 1 or any(digest.collectives for digest in found)


def exposure(case: Case) -> Exposure | None:
    """Return the exposed communication of the mode's traces; None: they hold no whole step."""
    found = digests(case)
    total = share(found, lambda steps: fmean(step.budget.exposed_comm_ns for step in steps))
    if total.value is None:
        return None
    world_size = max([case.mode.world_size, *(digest.world_size or 1 for digest in found)])
    launch = launch_of(case)
    shared = launch is not None and on_shared_cores(launch, case.analysis.summary.fingerprint.cores)
    return Exposure(
        total=total,
        exposed=exposed_share(found),
        removable=removable_share(found, on_shared_cores=shared),
        all_ranks=len(found) >= world_size,
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
    beside = seen.removable.value - seen.exposed.value
    if beside > 0:
        which += f"; beside computing and in copying for it, on the same cores, it takes another {units.share(beside)}"
    return (
        f"in the trace communication beside which nothing computes is {units.share(seen.total.value)} of a step{which}"
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
