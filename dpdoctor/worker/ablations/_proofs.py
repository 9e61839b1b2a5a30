"""Whether an ablation did what it says, and came off again: shown by counting what the ranks exchange, in every run.

A switch may silently do nothing, or never come off: then a gain is the noise's, or full windows are no such windows any
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from dpdoctor import units
from dpdoctor.worker.ablations._wire import Wire
from dpdoctor.worker.timing.exchanges import Issued
from dpdoctor.worker.wrap.proof import bits

# Windows may differ by this share of what they exchange in a step.
WITHIN = 0.1
# Or by all of it in single steps, in which a script logs or evaluates: what so many of the steps exchange is usual.
USUAL = 0.75
# Enough of a parameter to see that it is another one: where ranks part, they part in all of it.
MOST_LOOKED_AT = 1 << 12

NOT_KNOWN = "torch does not count the collectives of this backend any more"
OTHERWISE = "after it, full windows exchange {} in a step instead of {}: what it switched did not come off"
PARTED = "in its windows the script makes {} of its own in a step instead of {}: it goes by what ranks exchange"
WENT_ON = "it could not keep the ranks from exchanging: {} in a step were still issued, {} were to be left"
LARGE = "an exchange of {} numbers went on in its windows: gradients or parameters that it does not know"
APART = (
    "parameters were equal on all ranks, and are not any more after a full window: the script keeps a state, such as a "
    "momentum of its own, that could not be put back"
)
UNLIKE = "its steps exchange {} each, those of full windows {}"


class Counted:
    """Holds what full windows exchange against what they did at first, and an ablation's windows against them.

    `wire` is what exchanges gradients and parameters.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._full: Issued | None = None

    def full(self, window: Issued, *, anew: bool) -> str | None:
        """Return why a full window is none; None: it exchanges what the first one did.

        `anew`: no ablation was on since the last one, so that it is the script that goes on otherwise.
        """
        if not window.steps:
            return None
        if window.collectives is None:
            return NOT_KNOWN
        if self._full is None or anew:
            self._full = window
            return None
        return self._unlike(window, OTHERWISE)

    def beside(self, window: Issued) -> str | None:
        """Return why a window of an ablation that leaves the ranks' exchanges alone did not; None: it did."""
        if self._full is None or not window.steps:
            return None
        return self._unlike(window, UNLIKE)

    def apart(self, window: Issued) -> str | None:
        """Return why a window without exchanges was none; None: it issued exactly what was to be left."""
        if self._full is None or self._full.collectives is None or window.collectives is None:
            return NOT_KNOWN
        kept = _KEPT.per_step(window)
        if not _KEPT.is_alike(self._full, window):
            return PARTED.format(_calls(kept), _calls(_KEPT.per_step(self._full)))
        # What C++ issues by itself, such as a norm over sharded gradients, goes on; the reducer does not.
        before = Issued() if self._wire.has_reducer else self._full
        if not _UNSEEN.is_alike(before, window):
            left = units.digits(kept + _UNSEEN.per_step(before))
            return WENT_ON.format(_number(_COLLECTIVES.per_step(window)), left)
        if window.kept_elements >= self._wire.least:
            return LARGE.format(units.whole(window.kept_elements))
        return None

    def fewer(self, window: Issued) -> str | None:
        """Return why a window in which gradients are exchanged less often exchanged no less; None: it did."""
        if self._full is None or self._full.collectives is None or window.collectives is None:
            return NOT_KNOWN
        before, now = _COLLECTIVES.per_step(self._full), _COLLECTIVES.per_step(window)
        is_less = now < (1 - WITHIN) * before
        return None if is_less else WENT_ON.format(_number(now), f"fewer than {units.digits(before)}")

    def _unlike(self, window: Issued, words: str) -> str | None:
        """Return in these words that a window has not the collectives of the full one; None: it has."""
        assert self._full is not None
        if _COLLECTIVES.is_alike(self._full, window):
            return None
        return words.format(*(_number(_COLLECTIVES.per_step(one)) for one in (window, self._full)))


def fingerprint(parameters: Iterable[torch.Tensor]) -> int:
    """Return a sum over the bits of evenly spaced elements of each parameter; equal values give equal sums."""
    total = 0
    for parameter in parameters:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        flat = local.detach().flatten()
        total = (total * 31 + bits(flat[:: max(1, flat.numel() // MOST_LOOKED_AT)])) % 2**62
    return total


# Of a step: collectives, and calls of Python's that are kept, payload and dropped.
_Step = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Counter:
    """Something that is counted in each step, by what it is of such numbers, added up or of one step."""

    of: Callable[[_Step], int]

    def per_step(self, window: Issued) -> float:
        """Return the mean over a window's steps."""
        numbers = window.collectives or 0, window.kept, window.payload, window.dropped
        return self.of(numbers) / max(1, window.steps)

    def is_alike(self, one: Issued, other: Issued) -> bool:
        """Return whether two windows have it alike: in the mean, or in what most of their steps have."""
        before, now = self.per_step(one), self.per_step(other)
        usual = self._usual(one)
        return abs(before - now) <= WITHIN * abs(before) or (usual is not None and usual == self._usual(other))

    def _usual(self, window: Issued) -> int | None:
        """Return what USUAL of a window's steps have alike; None: so many have nothing."""
        found = Counter[int]()
        for step, number in window.each.items():
            found[self.of(step)] += number
        value, number = max(found.items(), key=lambda item: item[1], default=(0, 0))
        return value if number >= USUAL * window.steps else None


_COLLECTIVES, _KEPT = _Counter(lambda step: step[0]), _Counter(lambda step: step[1])
# Collectives that no call of Python's issued.
_UNSEEN = _Counter(lambda step: step[0] - step[1] - step[2] + step[3])


def _number(per_step: float) -> str:
    return f"{units.digits(per_step)} {'collective' if per_step == 1 else 'collectives'}"


def _calls(per_step: float) -> str:
    return f"{units.digits(per_step)} {'call' if per_step == 1 else 'calls'}"
