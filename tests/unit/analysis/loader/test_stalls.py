"""Single slow fetches: which count, and what a step would take without them."""

from __future__ import annotations

import pytest

from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.loader.feed import Feed, feed
from dpdoctor.analysis.loader.measured import Block, Measured
from dpdoctor.analysis.loader.predict import Basis
from dpdoctor.analysis.loader.sharing import Cores
from dpdoctor.analysis.loader.simulate import Setting
from dpdoctor.analysis.loader.stalls import NOT_SIMULATED, slow_fetches
from tests.builders.feeding import STEPS_PER_WINDOW, batch, launch, rank


def fed(fetches: list[float], *, cpu: float = 1.0) -> Feed:
    """Return the feed of one rank whose batches take so many ms, computing for a share of it."""
    batches = [batch(n, asked=(n - 1) * 100, wait=ms, cpu=cpu * ms) for n, ms in enumerate(fetches, 1)]
    found = feed(launch(rank(batches, num_windows=len(fetches) // STEPS_PER_WINDOW)))
    assert found is not None
    return found


# Of 16 batches every fourth takes 60 ms instead of 10.
STALLING = [10.0, 10.5, 9.5, 60.0] * 4


def test_they_are_counted_and_compared_with_the_usual() -> None:
    found = slow_fetches(fed(STALLING, cpu=0.2), None)
    assert found is not None
    assert (found.count, found.total) == (4, 16)
    assert (found.seconds, found.usual_seconds) == (pytest.approx(0.060), pytest.approx(0.01025))
    assert found.cpu_ratio == pytest.approx(0.2)
    assert (found.step.value, found.step.reason) == (None, NOT_SIMULATED)


@pytest.mark.parametrize(
    "fetches",
    [
        pytest.param([10.0] * 16, id="all alike"),
        pytest.param([*[10.0] * 14, 60.0, 60.0], id="two are an accident"),
        pytest.param([10.0, 60.0] * 8, id="half of them are no exception"),
        pytest.param([10.0, 10.0, 10.0, 19.0] * 4, id="not twice the usual"),
        pytest.param([5.0, 10.0, 15.0, 22.0] * 4, id="all differ much"),
    ],
)
def test_other_loaders_have_none(fetches: list[float]) -> None:
    assert slow_fetches(fed(fetches), None) is None


def test_the_time_in_which_a_fetch_wanted_a_core_is_not_the_loaders() -> None:
    queued = [
        batch(n, asked=(n - 1) * 100, wait=ms, queued_ns=round((ms - 10) * 1e6))
        for n, ms in enumerate(STALLING, 1)
        if ms >= 10
    ]
    found = feed(launch(rank(queued, num_windows=4)))
    assert found is not None
    assert slow_fetches(found, None) is None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_step_without_them_is_that_of_a_loader_that_has_none(num_workers: int) -> None:
    # 10 ms of computing; a fetch of 10 ms, every tenth of 110: on average 20.
    blocks = (Block(fetch=(*(0.010,) * 9, 0.110) * 20, compute=(0.010,) * 200),) * 2
    measured = Measured(
        blocks=blocks, setting=Setting(num_workers=num_workers), cores=Cores(num=8), send=0.0, receive=0.0
    )
    step_s = 0.030 if num_workers == 0 else 0.020
    step = Basis(measured, Figure(value=step_s, low=step_s * 0.99, high=step_s * 1.01, n=5, unit="s"))
    without = step.without_fetches_above(0.020, 0.010)
    assert without.value == pytest.approx(0.020 if num_workers == 0 else 0.010, rel=0.02)
    assert without.high is not None
    assert step.without_fetches_above(0.2, 0.010).value == pytest.approx(step_s)
