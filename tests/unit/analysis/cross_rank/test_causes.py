"""What a rank that is late did for longer than the others: by its steps, where its trace has them."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor.analysis.cross_rank import Stragglers, compare_ranks
from dpdoctor.digest import Breakdown, DeviceDigest, DeviceStep
from tests.builders.simulated_ranks import MS, digests, lockstep

STEPS = 12
LATE = 5


def device(spent: dict[str, int], *, steps: int = STEPS) -> DeviceDigest:
    """Return a device that computes, copies and idles for so many ms in each step, and communicates for the rest."""
    idle = {cause: ms * MS for cause, ms in spent.items() if cause not in ("compute", "copy")}
    of = Breakdown(
        compute_ns=spent.get("compute", 0) * MS,
        exposed_comm_ns=0,
        h2d_ns=0,
        copy_ns=spent.get("copy", 0) * MS,
        idle_ns=sum(idle.values()),
        comm_ns=0,
    )
    found = tuple(
        DeviceStep(step=number, begin_ns=0, end_ns=of.total_ns, breakdown=of, idle_by=idle) for number in range(steps)
    )
    return DeviceDigest(index=0, name="", begin_ns=0, whole=of, steps=found, launch_delay=None, launches=0)


def verdict(usual: dict[str, int], late: dict[str, int], *, steps: int = STEPS) -> Stragglers:
    """Return what is said of rank 1, which comes to each call LATE ms after the others, and computed before it."""
    work = np.full((STEPS, 3), 4 * MS)
    work[:, 1] += LATE * MS
    ranks = [[replace(call, cause="compute") for call in calls] for calls in lockstep(work, [MS] * STEPS)]
    made = [
        replace(digest, devices=(device(late if digest.rank == 1 else usual, steps=steps),))
        for digest in digests(ranks)
    ]
    return compare_ranks(made).verdict


@pytest.mark.parametrize(
    ("usual", "late", "cause"),
    [
        ({"compute": 4}, {"compute": 9}, "compute"),
        ({"compute": 4}, {"compute": 4, "data": 5}, "data"),
        ({"compute": 4, "data": 3}, {"compute": 4, "data": 3, "copy": 5}, "copy"),
        ({"compute": 4}, {"compute": 4, "data": 4, "python": 1}, "data"),
        # It computes for longest, and no longer than the others.
        ({"compute": 4}, {"compute": 4, "data": 3, "annotation": 2}, None),
        ({"compute": 4}, {"compute": 4}, None),
    ],
)
def test_it_is_what_the_rank_does_longer_than_the_others(
    usual: dict[str, int], late: dict[str, int], cause: str | None
) -> None:
    found = verdict(usual, late)
    assert (found.kind, found.rank, found.cause) == ("persistent", 1, cause)


def test_without_steps_it_is_what_lasts_longest_before_the_calls() -> None:
    assert verdict({"compute": 4}, {"compute": 4, "data": 5}, steps=0).cause == "compute"
