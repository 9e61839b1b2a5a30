"""A fault that is planted in a sample is what dpdoctor names first."""

from __future__ import annotations

import math

import pytest

from tests.benchmarks.planted.catalogue import ENTRIES, Entry
from tests.benchmarks.planted.launching import profile
from tests.benchmarks.planted.plan import PlannedRun
from tests.benchmarks.planted.scoring import score
from tests.benchmarks.planted.verdicts import read

pytestmark = pytest.mark.measured

PLANTED = {name: entry for name, entry in ENTRIES.items() if not entry.healthy and not entry.third_party}
HEALTHY = [name for name, entry in ENTRIES.items() if entry.healthy]


def usual(entry: Entry) -> float:
    """Return a size in the middle of an entry's range."""
    least, most = entry.sizes
    size = math.sqrt(least * most)
    return round(size) if entry.whole else size


def check_first(name, tmp_path):
    entry, folder = ENTRIES[name], tmp_path / "run"
    assert profile(entry, usual(entry), folder, {}) is None
    named = read(folder, None).modes[entry.mode].named
    assert named
    assert named[0].rule in entry.rules


def test_a_costly_transform_is_named_first(tmp_path):
    check_first("slow_transform", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANTED.keys() - {"slow_transform"}))
def test_the_planted_fault_is_named_first(name, tmp_path):
    check_first(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_named_in_a_healthy_sample(name, tmp_path):
    assert profile(ENTRIES[name], None, tmp_path / "run", {}) is None
    verdict = read(tmp_path / "run", None)
    found = score(PlannedRun(folder="run", entry=name, size=None), ENTRIES[name], verdict)
    assert found.said == "no warning"
