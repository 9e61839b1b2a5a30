"""Rules on a real GPU: each finds the fault that was planted for it, and says nothing where there is none."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

SLOW = "../../gpu/scripts/slow.py"
SHORT = ("--modes", "single", "--time-budget", "6", "--rounds", "3", "--ablations", "none")
FAULTS = ("h2d_exposed", "host_sync", "launch_bound", "memory_pressure")


@pytest.fixture
def found(profile):
    def run(why: str) -> dict[str, dict]:
        done = profile(SLOW, *SHORT, args=[why])
        assert done.exit_code == 0, done.output
        return {finding["rule"]: finding for finding in done.summary["findings"]}

    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(found, fault):
    assert fault in found(fault)


def test_where_there_is_none_nothing_is_said(found):
    assert set(found("plain")).isdisjoint(FAULTS)


def test_values_that_are_asked_for_have_their_line(found):
    (line,) = (text for text in found("host_sync")["host_sync"]["evidence"] if "calls item" in text)
    assert "slow.py:38 calls item 16 times in a step" in line
