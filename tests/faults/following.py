"""Whether several ranks train as one device does, by the losses that a script printed."""

from __future__ import annotations

import math

from tests.faults.conftest import Profiled

NUM_STEPS = 20


def losses(printed: str) -> list[float]:
    """Return the losses of a script that prints a line `samples loss` per step."""
    return [float(line.split()[1]) for line in printed.splitlines()]


def assert_follows_single(done: Profiled, mode: str) -> None:
    """Under `--batch global` the mean of the ranks' losses is the loss of one device, step by step."""
    single = losses(done.printed("single"))
    ranks = [losses(done.printed(mode, rank)) for rank in (0, 1)]
    assert len(single) >= NUM_STEPS
    for alone, *parts in list(zip(single, *ranks, strict=False))[:NUM_STEPS]:
        assert math.isclose(alone, sum(parts) / 2, rel_tol=1e-5)
