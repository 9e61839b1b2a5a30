"""Whether an ablation did what it says, and came off again: shown by counting what the ranks exchange, in every run.

A switch may silently do nothing, or never come off: then a gain is the noise's, or full windows are no such windows any
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

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
        before, now = _per_step(self._full.collectives, self._full), _per_step(window.collectives, window)
        is_alike = _alike(before, now) or _usually_alike(self._full, window, _collectives)
        return None if is_alike else OTHERWISE.format(_number(now), _number(before))

    def beside(self, window: Issued) -> str | None:
        """Return why a window of an ablation that leaves the ranks' exchanges alone did not; None: it did."""
        if self._full is None or not window.steps:
            return None
        before, now = _per_step(self._full.collectives, self._full), _per_step(window.collectives, window)
        is_alike = _alike(before, now) or _usually_alike(self._full, window, _collectives)
        return None if is_alike else UNLIKE.format(_number(now), _number(before))

    def apart(self, window: Issued) -> str | None:
        """Return why a window without exchanges was none; None: it issued exactly what was to be left."""
        if self._full is None or self._full.collectives is None or window.collectives is None:
            return NOT_KNOWN
        kept_before, kept = _per_step(self._full.kept, self._full), _per_step(window.kept, window)
        if not (_alike(kept_before, kept) or _usually_alike(self._full, window, _kept)):
            return PARTED.format(_calls(kept), _calls(kept_before))
        # What C++ issues by itself, such as a norm over sharded gradients, goes on; the reducer does not.
        before = Issued() if self._wire.has_reducer else self._full
        left = _unseen(before)
        if not (_alike(left, _unseen(window)) or _usually_alike(before, window, _unseen_in)):
            return WENT_ON.format(_number(_per_step(window.collectives, window)), units.digits(kept + left))
        if window.kept_elements >= self._wire.least:
            return LARGE.format(units.whole(window.kept_elements))
        return None

    def fewer(self, window: Issued) -> str | None:
        """Return why a window in which gradients are exchanged less often exchanged no less; None: it did."""
        if self._full is None or self._full.collectives is None or window.collectives is None:
            return NOT_KNOWN
        before, now = _per_step(self._full.collectives, self._full), _per_step(window.collectives, window)
        is_less = now < (1 - WITHIN) * before
        return None if is_less else WENT_ON.format(_number(now), f"fewer than {units.digits(before)}")


def fingerprint(parameters: Iterable[torch.Tensor]) -> int:
    """Return a sum over the bits of evenly spaced elements of each parameter; equal values give equal sums."""
    total = 0
    for parameter in parameters:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        flat = local.detach().flatten()
        total = (total * 31 + bits(flat[:: max(1, flat.numel() // MOST_LOOKED_AT)])) % 2**62
    return total


def _unseen(window: Issued) -> float:
    """Return the collectives in a step that no call of Python's issued."""
    return _per_step((window.collectives or 0) - window.kept - window.payload + window.dropped, window)


# Of a step: collectives, and calls of Python's that are kept, payload and dropped.
_Step = tuple[int, int, int, int]


def _collectives(step: _Step) -> int:
    return step[0]


def _kept(step: _Step) -> int:
    return step[1]


def _unseen_in(step: _Step) -> int:
    collectives, kept, payload, dropped = step
    return collectives - kept - payload + dropped


def _usually(window: Issued, of: Callable[[_Step], int]) -> int | None:
    """Return what USUAL of a window's steps have alike; None: so many have nothing."""
    found = Counter[int]()
    for step, number in window.each.items():
        found[of(step)] += number
    value, number = max(found.items(), key=lambda item: item[1], default=(0, 0))
    return value if number >= USUAL * window.steps else None


def _usually_alike(one: Issued, other: Issued, of: Callable[[_Step], int]) -> bool:
    usual = _usually(one, of)
    return usual is not None and usual == _usually(other, of)


def _per_step(number: int | None, window: Issued) -> float:
    return (number or 0) / max(1, window.steps)


def _alike(before: float, now: float) -> bool:
    return abs(before - now) <= WITHIN * abs(before)


def _number(per_step: float) -> str:
    return f"{units.digits(per_step)} {'collective' if per_step == 1 else 'collectives'}"


def _calls(per_step: float) -> str:
    return f"{units.digits(per_step)} {'call' if per_step == 1 else 'calls'}"
