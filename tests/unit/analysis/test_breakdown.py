"""Shares of traced time: totals over totals, of whole steps where there are any."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.base.traces import NO_STEPS, NONE_IN_COMMON, CommonSteps, Traces, common_steps
from dpdoctor.analysis.breakdown import OF_ALL, PARTS, breakdown_shares, trace_breakdown, waiting_shares
from dpdoctor.digest import DeviceStep, Digest, Replay
from tests.builders import traced_runs


def digest(*compute_ms: int) -> Digest:
    """Return a rank whose steps compute so long and idle for 10 ms; a quarter of that is not for data."""
    (found,) = traced_runs.late_rank(1, 0)
    parts = [traced_runs.device(steps=1, of=traced_runs.breakdown(ms, idle=10)) for ms in compute_ms]
    device = replace(parts[0], steps=tuple(_numbered(part.steps[0], n) for n, part in enumerate(parts)))
    return replace(found, devices=(device,))


def _numbered(step: DeviceStep, number: int) -> DeviceStep:
    return replace(step, step=number)


def test_a_share_is_all_of_a_part_over_all_of_the_time() -> None:
    shares = breakdown_shares(Traces([digest(30, 90), digest(50, 30)]))
    assert shares["compute"].value == pytest.approx(200 / 240)
    assert shares["idle"].value == pytest.approx(40 / 240)
    assert sum(shares[part].value or 0 for part in PARTS) == pytest.approx(1)
    causes = sum(figure.value or 0 for key, figure in shares.items() if key.startswith("idle."))
    assert causes == pytest.approx(40 / 240)
    assert shares["compute"].n == 2
    assert shares["compute"].low is not None


def test_it_is_the_budget_over_its_step() -> None:
    digests = [digest(30, 90, 50), digest(50, 30, 70)]
    budget, shares = trace_breakdown(Traces(digests)), breakdown_shares(Traces(digests))
    assert budget is not None
    for part in PARTS:
        assert shares[part].value == pytest.approx((getattr(budget, part).value or 0) / (budget.step.value or 1))


def test_without_a_whole_step_it_is_of_all_that_was_traced() -> None:
    (found,) = traced_runs.late_rank(1, 0)
    shares = breakdown_shares(Traces([replace(found, devices=(traced_runs.device(steps=0),))]))
    assert shares["compute"].value == pytest.approx(0.46)
    assert (shares["compute"].low, shares["compute"].reason) == (None, OF_ALL.format(NO_STEPS))


def test_where_nothing_was_traced_there_are_no_shares() -> None:
    (found,) = traced_runs.late_rank(1, 0)
    assert breakdown_shares(Traces([])) == breakdown_shares(Traces([replace(found, devices=())])) == {}


def test_a_number_that_comes_twice_is_paired_where_it_does_so_everywhere() -> None:
    twice, once = digest(30, 90), digest(50, 30)
    (device,) = twice.devices
    again = tuple(replace(step, step=0) for step in device.steps)
    twice = replace(twice, devices=(replace(device, steps=again),))
    assert len(common_steps([twice]).steps) == 2
    assert len(common_steps([twice, twice]).steps) == 2
    assert common_steps([twice, once]) == CommonSteps(steps=(), left_out=NONE_IN_COMMON)


def replayed(*without_ms: int) -> Digest:
    """Return a rank whose replayed step takes 100, 80 and 60 ms as it is."""
    steps_ns, without_ns = (tuple(ms * 1_000_000 for ms in found) for found in ((100, 80, 60), without_ms))
    of = Replay(num_steps=7, host_times=(1.0, 0.7, 0.4), step_ns=steps_ns, without_ns=without_ns)
    return replace(digest(30), replay=of)


@pytest.mark.parametrize(
    ("step_s", "share"),
    [
        (None, 0.1),
        (0.120, 0.1),  # slower than with a profiler: as it was with one
        (0.100, 0.1),
        (0.070, 1 - 55 / 70),
        (0.050, 1 - 50 / 60),  # faster than on any host that was replayed
    ],
)
def test_what_waiting_costs_is_read_where_the_replayed_step_is_the_untraced_one(step_s: float, share: float) -> None:
    (found,) = waiting_shares(Traces([replayed(90, 60, 50)]), step_s)
    assert (found.value, found.n) == (pytest.approx(share), 7)


def test_waiting_costs_of_each_rank_that_was_replayed() -> None:
    found = waiting_shares(Traces([replayed(90, 60, 50), digest(30), replayed(70, 60, 50)]), None)
    assert [share.value for share in found] == [pytest.approx(0.1), pytest.approx(0.3)]
    (longer,) = waiting_shares(Traces([replayed(101, 81, 61)]), None)
    assert longer.value == 0
