from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis.loader.crowding import Crowding, crowding
from dpdoctor.analysis.loader.sharing import Cores
from dpdoctor.loading import FetchBeside
from dpdoctor.records import Launch
from tests.unit import records
from tests.unit.builders import MS

TWO_CORES = Cores(num=2.0)


def tried(alone_ms: float, beside_ms: float, fetch_ms: float | None, arms: tuple[str, ...] = ()) -> Launch:
    """Return three rounds in which batches are replayed, with nothing beside and with a process that fetches."""
    steps, windows = [], []
    for number in range(6):
        arm, ms = ("beside_fetching", beside_ms) if number % 2 else ("cached_batches", alone_ms)
        steps += [records.step(ms, step=4 * number + place, window=number) for place in range(4)]
        windows.append(records.window(4 * ms, window=number, arm=arm, round=number // 2))
    kept = [window for window in windows if not arms or window.arm in arms]
    beside = () if fetch_ms is None else (FetchBeside(loader=0, n=9, fetch_ns=round(fetch_ms * MS)),)
    return records.launch(records.rank(steps, kept, beside=beside))


def test_each_is_slowed_by_as_much_as_was_tried() -> None:
    found = crowding(tried(40, 50, 12), 0, 0.010, TWO_CORES)
    assert (found.fetch, found.compute) == (pytest.approx(1.2), pytest.approx(1.25))


def test_what_too_few_cores_explain_is_left_out() -> None:
    # One core for both: each takes twice as long, and a quarter more.
    found = crowding(tried(40, 100, 25), 0, 0.010, Cores(num=1.0))
    assert (found.fetch, found.compute) == (pytest.approx(1.25), pytest.approx(1.25))


def test_nobody_is_faster_beside_another() -> None:
    assert crowding(tried(40, 38, 9), 0, 0.010, TWO_CORES) == Crowding()


@pytest.mark.parametrize(
    ("launch", "number"),
    [
        (tried(40, 50, None), 0),
        (tried(40, 50, 12), 1),
        (tried(40, 50, 12, arms=("cached_batches",)), 0),
        (tried(40, 50, 12, arms=("beside_fetching",)), 0),
    ],
)
def test_without_a_trial_nothing_is_known(launch: Launch, number: int) -> None:
    assert crowding(launch, number, 0.010, TWO_CORES) == Crowding()


def test_a_failed_launch_tried_nothing() -> None:
    launch = tried(40, 50, 12)
    failed = dataclasses.replace(launch, record=dataclasses.replace(launch.record, status="failed"))
    assert crowding(failed, 0, 0.010, TWO_CORES).compute == pytest.approx(1.25)
