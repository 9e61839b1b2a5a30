"""How threads share cores, on paper."""

from __future__ import annotations

import pytest

from dpdoctor.analysis.loader.sharing import Cores


def test_with_a_core_for_everyone_nobody_is_slowed() -> None:
    cores = Cores(num=4.0)
    assert cores.fetch_pace(3, 1.0) == 1.0
    assert cores.compute_pace(3) == 1.0
    assert cores.receive_pace(3) == 1.0


def test_single_threads_share_evenly() -> None:
    cores = Cores(num=2.0)
    assert cores.fetch_pace(2, 1.0) == pytest.approx(2 / 3)
    assert cores.compute_pace(2) == pytest.approx(2 / 3)


def test_only_the_computing_part_of_a_fetch_is_slowed() -> None:
    # Four fetches of half a core each and a training thread on one core: what computes takes three times as long.
    cores = Cores(num=1.0, fetch=0.5)
    assert cores.fetch_pace(4, 1.0) == pytest.approx(1 / (0.5 + 0.5 * 3))


def test_a_training_process_that_waits_for_its_device_is_slowed_only_where_it_computes() -> None:
    cores = Cores(num=1.0, compute=0.25)
    assert cores.compute_pace(1) == pytest.approx(1 / (0.75 + 0.25 * 2))


def test_the_slowest_of_several_threads_counts() -> None:
    # Two threads on two cores beside one fetch: one of them has half a core, the other waits for it.
    cores = Cores(num=2.0, compute=2.0, threads=2)
    assert cores.compute_pace(0) == 1.0
    assert cores.compute_pace(1) == pytest.approx(1 / 2)
    assert cores.compute_pace(2) == pytest.approx(1 / 2)
    assert cores.compute_pace(3) == pytest.approx(1 / 3)


def test_between_what_threads_compute_together_one_is_alone() -> None:
    # Together in half of the time: beside one fetch that half takes twice as long, the other as long as before.
    cores = Cores(num=2.0, compute=1.5, threads=2)
    assert cores.compute_pace(1) == pytest.approx(1 / (0.5 + 0.5 * 2))


@pytest.mark.parametrize("fields", [{"num": 0.0}, {"num": 2.0, "threads": 0}, {"num": 2.0, "fetch": -0.1}])
def test_what_cannot_be_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="core"):
        Cores(**fields)
