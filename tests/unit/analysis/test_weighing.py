"""A claim beside its experiment: what is believed of it, and whether both say the same."""

from __future__ import annotations

import pytest

from dpdoctor.analysis import AblationSummary, CrossCheck, Figure
from dpdoctor.analysis.base.traces import NO_TRACE
from dpdoctor.analysis.weighing import Status, allowed, cross_checks, weigh_against
from tests.builders.cases import by_hand, figure, unknown, waiting
from tests.builders.records import even_rank, launch, rank, step, window


def share(value: float | None, half: float | None = 0.0, n: int = 9) -> Figure:
    if value is None:
        return Figure(value=None, unit="ratio", reason="the batches keep their place in a file")
    low, high = (None, None) if half is None else (value - half, value + half)
    return Figure(value=value, low=low, high=high, n=n, unit="ratio")


def checks(**gained: Figure) -> tuple[CrossCheck, ...]:
    """Return the checks of a launch that waits for data in 30% of each step, with the shares that its ablations
    gained.
    """
    steps = [step(100, phases_ms={"data_wait": 30, "forward": 70}, window=number) for number in (1, 2, 3)]
    windows = [window(100, window=number) for number in (1, 2, 3)]
    seconds = Figure(value=None, unit="s", reason="not asked for")
    ablations = {name: AblationSummary(gain=seconds, share=figure, step=seconds) for name, figure in gained.items()}
    return cross_checks(ablations, launch(rank(steps, windows)), cores=2)


def one(gained: Figure) -> CrossCheck:
    (found,) = checks(cached_batches=gained)
    return found


class TestAgrees:
    @pytest.mark.parametrize(
        ("gained", "agrees"),
        [
            (share(0.30), True),
            (share(0.349), True),  # within 5% of the step
            (share(0.351), False),
            (share(0.251), True),
            (share(0.249), False),
            # Within its own interval.
            (share(0.39, 0.1), True),
            (share(0.41, 0.1), False),
            # One round gives no interval: within the tolerance is agreement, beyond it nothing can be told.
            (share(0.34, None, n=1), True),
            (share(0.60, None, n=1), None),
            (share(None), None),
        ],
    )
    def test_within_the_tolerance_or_the_interval(self, gained: Figure, agrees: bool | None) -> None:
        assert one(gained).agrees is agrees

    def test_both_sides_are_told(self) -> None:
        found = one(share(0.6))
        assert (found.ablation, found.observed.value, found.gain.value) == ("cached_batches", pytest.approx(0.3), 0.6)
        assert found.tolerance == pytest.approx(0.05)

    def test_an_unknown_side_gives_its_reason(self) -> None:
        unknown = share(None)
        assert one(unknown).reason == unknown.reason
        assert unknown.reason

    def test_without_ablations_nothing_is_compared(self) -> None:
        assert checks() == ()

    def test_communication_needs_a_trace(self) -> None:
        (found,) = checks(no_comm=share(0.2))
        assert (found.ablation, found.agrees, found.reason) == ("no_comm", None, NO_TRACE)


def test_errors_of_both_sides_count() -> None:
    assert allowed(share(0.5, 0.06), share(0.5, 0.08)) == pytest.approx(0.1)


@pytest.mark.parametrize(("device", "by_clock"), [("cpu", True), ("cuda:0", False)])
def test_on_a_gpu_the_hosts_clock_is_not_held_against_no_comm(device: str, by_clock: bool) -> None:
    """There the calls only queue them."""
    of = [waiting(even_rank(100, num_windows=3, device=device, conversion=by_hand()), 0.2)]
    seconds = Figure(value=None, unit="s", reason="not asked for")
    ablations = {"no_comm": AblationSummary(gain=seconds, share=share(0.2), step=seconds)}
    found = cross_checks(ablations, launch(*of, mode="native"), cores=2)
    assert any("on the host's clock" in check.what for check in found) is by_clock


CLAIM = figure(0.40, 0.05, "ratio")


@pytest.mark.parametrize(
    ("gained", "half", "status", "cost"),
    [
        (0.30, 0.10, "confirmed", 0.30),
        (0.10, 0.15, "refuted", 0.10),
        (-0.02, 0.01, "refuted", -0.02),  # taking it away has a cost of its own
        (0.30, 0.40, "inferred", 0.40),
        (-0.40, 0.38, "inferred", 0.40),  # with less to do a step is longer: something else changed
    ],
)
def test_an_experiment_proves_refutes_or_cannot_tell(gained: float, half: float, status: Status, cost: float) -> None:
    weighed = weigh_against(CLAIM, figure(gained, half, "ratio"))
    assert (weighed.status, weighed.value) == (status, cost)


def test_without_an_experiment_the_claim_stands_as_inferred() -> None:
    assert weigh_against(CLAIM, unknown("ratio")).status == "inferred"
