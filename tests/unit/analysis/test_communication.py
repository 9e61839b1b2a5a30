from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis.communication import exposed_share, on_shared_cores, removable_share
from dpdoctor.analysis.trace_budget import NO_STEPS, NO_TRACE
from dpdoctor.digest import Budget, Digest
from dpdoctor.records import Adoption, Launch
from tests.unit.builders import MS
from tests.unit.records import launch, rank
from tests.unit.report import traced_runs


def ranks(*budgets: Budget) -> list[Digest]:
    """Return the traces of ranks whose steps are all like this."""
    made = traced_runs.late_rank(len(budgets), 1)
    return [
        dataclasses.replace(digest, devices=(traced_runs.device(of=of),))
        for digest, of in zip(made, budgets, strict=True)
    ]


# Rank 1 comes last: what it communicates is transfer; rank 0 waits for it as well.
WAITS, LAST = traced_runs.budget(40, 60, comm=90), traced_runs.budget(90, 10, comm=25)


class TestExposedShare:
    def test_it_is_that_of_the_rank_which_waits_least(self) -> None:
        assert exposed_share(ranks(WAITS, LAST)).value == pytest.approx(0.1)

    def test_shares_are_of_total_time(self) -> None:
        steps = traced_runs.device().steps
        longer = dataclasses.replace(steps[0], budget=traced_runs.budget(300))
        device = dataclasses.replace(traced_runs.device(), steps=(steps[0], longer))
        digest = dataclasses.replace(traced_runs.late_rank(1, 0)[0], devices=(device,))
        found = exposed_share([digest])
        assert (found.value, found.n) == (pytest.approx(31 * MS / (400 * MS)), 2)

    def test_without_steps_it_is_unknown(self) -> None:
        digest = dataclasses.replace(traced_runs.late_rank(1, 0)[0], devices=(traced_runs.device(steps=0),))
        assert exposed_share([digest]).reason == NO_STEPS
        assert exposed_share([]).reason == NO_TRACE


class TestRemovableShare:
    def test_with_cores_of_its_own_what_is_hidden_costs_nothing(self) -> None:
        assert removable_share(ranks(WAITS, LAST), on_shared_cores=False).value == pytest.approx(0.1)

    def test_on_shared_cores_all_communication_of_that_rank_counts(self) -> None:
        assert removable_share(ranks(WAITS, LAST), on_shared_cores=True).value == pytest.approx(0.25)

    def test_copying_for_it_takes_those_cores_too(self) -> None:
        found = ranks(WAITS, LAST)
        (device,) = found[1].devices
        steps = tuple(dataclasses.replace(step, handling_ns=5 * MS) for step in device.steps)
        copying = [found[0], dataclasses.replace(found[1], devices=(dataclasses.replace(device, steps=steps),))]
        assert removable_share(copying, on_shared_cores=True).value == pytest.approx(0.3)
        assert removable_share(copying, on_shared_cores=False).value == pytest.approx(0.1)


class TestOnSharedCores:
    @staticmethod
    def threads(*numbers: int, hosts: str = "aa", device: str = "cpu") -> Launch:
        """Return two ranks with so many threads each, on these hosts."""
        return launch(
            *(
                rank([], [], index=index, host=host, device=device, adoption=Adoption(num_threads=number))
                for index, (number, host) in enumerate(zip(numbers, hosts, strict=True))
            )
        )

    def test_as_many_threads_as_cores_leave_none(self) -> None:
        assert on_shared_cores(self.threads(2, 2), 4)
        assert not on_shared_cores(self.threads(2, 1), 4)

    def test_more_threads_than_cores_make_calls_wait(self) -> None:
        assert not on_shared_cores(self.threads(3, 2), 4)

    def test_each_machine_has_its_own(self) -> None:
        assert not on_shared_cores(self.threads(2, 2, hosts="ab"), 4)

    def test_beside_a_gpu_cores_do_not_compute(self) -> None:
        assert not on_shared_cores(self.threads(2, 2, device="cuda:0"), 4)
