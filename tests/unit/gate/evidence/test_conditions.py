from __future__ import annotations

import pytest

from dpdoctor.gate.evidence.conditions import Conditions, conditions
from dpdoctor.records import Launch, Sample
from tests.builders import launched_runs
from tests.builders.launched_runs import SECOND, host


def test_nothing_sampled_is_unknown() -> None:
    assert conditions([launched_runs.launch(10)]) == Conditions(pressure=None, throttled=None, sm_clock_mhz=None)


def test_what_grew_while_it_was_measured() -> None:
    samples = [
        host(0.5, pressure_cpu_s=0.0, num_throttled=0.0),
        host(1, pressure_cpu_s=5.0, num_throttled=100.0),
        host(3, pressure_cpu_s=5.5, num_throttled=104.0),
        host(9, pressure_cpu_s=9.0, num_throttled=900.0),
        Sample(at_ns=2 * SECOND, source="gpu0", values={"sm_clock_mhz": 1980.0}),
        Sample(at_ns=2 * SECOND, source="gpu1", values={"sm_clock_mhz": 1000.0}),
    ]
    found = conditions([launched_runs.launch(10, samples=samples)])
    assert found.pressure == pytest.approx(0.25)
    assert found.throttled == 4
    assert found.sm_clock_mhz == 1490


def test_one_reading_of_what_only_grows_says_nothing() -> None:
    assert conditions([launched_runs.launch(10, samples=[host(1, pressure_cpu_s=5.0)])]).pressure is None


def test_of_several_launches_the_median_pressure_and_all_that_was_throttled() -> None:
    def launch(waited_s: float, throttled: float) -> Launch:
        samples = [
            host(1, pressure_cpu_s=0, num_throttled=0),
            host(2, pressure_cpu_s=waited_s, num_throttled=throttled),
        ]
        return launched_runs.launch(10, samples=samples)

    found = conditions([launch(0.1, 1), launch(0.2, 0), launch(0.9, 2)])
    assert (found.pressure, found.throttled) == (pytest.approx(0.2), 3)
