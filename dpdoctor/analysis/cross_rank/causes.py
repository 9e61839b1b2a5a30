"""What a late rank did for longer than the others, in the steps in which it was late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from statistics import median

from dpdoctor.analysis.cross_rank.model import StepLateness
from dpdoctor.analysis.cross_rank.stragglers import COVERAGE
from dpdoctor.digest import DeviceStep, Digest


class LongerThanOthers:
    """What ranks did in each step, of the digests of one job by rank."""

    def __init__(self, digests: Mapping[int, Digest], steps: StepLateness) -> None:
        self._of_ranks = {rank: _by_step(digest) for rank, digest in digests.items()}
        self._late = {
            rank: dict(zip(steps.steps.tolist(), column.tolist(), strict=True))
            for rank, column in zip(digests, steps.lateness_ns.T, strict=True)
        }

    def tells(self, rank: int, steps: Collection[int]) -> bool:
        """Return whether this rank and another one hold any of these steps."""
        return bool(self._held(rank, steps))

    def cause(self, rank: int, steps: Collection[int]) -> str | None:
        """Return what covers enough of the rank's lateness in these steps: by how much longer it did it than others do.

        None: nothing does.
        """
        longer: Counter[str] = Counter()
        total = 0.0
        for step in self._held(rank, steps):
            total += self._late[rank].get(step, 0)
            own, *others = (of[step] for of in self._from(rank) if step in of)
            for cause in own:
                longer[cause] += round(own[cause] - median(other[cause] for other in others))
        cause, most = max(sorted(longer.items()), key=lambda item: item[1], default=("", 0))
        return cause if most > 0 and most >= COVERAGE * total else None

    def _from(self, rank: int) -> list[dict[int, Counter[str]]]:
        """Return what all ranks did, this one first."""
        return [self._of_ranks[rank], *(of for other, of in self._of_ranks.items() if other != rank)]

    def _held(self, rank: int, steps: Collection[int]) -> list[int]:
        own, *others = self._from(rank)
        return [step for step in sorted(steps) if step in own and any(step in of for of in others)]


def _by_step(digest: Digest) -> dict[int, Counter[str]]:
    """Return by step how long each cause lasted on the rank's devices, added up."""
    found: dict[int, Counter[str]] = {}
    for step in (step for device in digest.devices for step in device.steps):
        found.setdefault(step.step, Counter()).update(_spent(step))
    return found


def _spent(step: DeviceStep) -> dict[str, int]:
    """Return what a device did besides communicating, by the causes of Calls."""
    of = step.breakdown
    return {"compute": of.compute_ns, "copy": of.h2d_ns + of.copy_ns, **step.idle_by}
