from __future__ import annotations

from collections.abc import Sequence

import pytest

from dpdoctor.analysis import AblationSummary, Figure
from dpdoctor.analysis.base.ablation import NO_PAIRS, ablations, imbalance, jitter_phases, jitter_wait
from dpdoctor.analysis.base.launches import FULL, LaunchFacts
from dpdoctor.analysis.rank_imbalance import slowest_rank
from dpdoctor.records import AblationRecord, Launch, Rank
from tests.builders import records
from tests.builders.records import launch, rank, step, window

# What happened in a round: (ablation, milliseconds of each step of its window).
Round = Sequence[tuple[str, float]]


def ablated(rounds: Sequence[Round], *, index: int = 0, world_size: int = 1, **fields: object) -> Rank:
    """Return a rank with a window of four steps for each entry of each round; more fields by keyword."""
    entries = [(number, ablation, ms) for number, found in enumerate(rounds, 1) for ablation, ms in found]
    steps = [step(ms, window=place) for place, (_, _, ms) in enumerate(entries) for _ in range(4)]
    windows = [
        window(4 * ms, window=place, round=number, ablation=ablation)
        for place, (number, ablation, ms) in enumerate(entries)
    ]
    return rank(steps, windows, index=index, world_size=world_size, **fields)


def one(launched: Launch, *others: Launch, ablation: str = "no_comm") -> AblationSummary:
    return ablations([launched, *others])[ablation]


class TestGain:
    def test_it_is_the_mean_of_the_differences_within_each_round(self) -> None:
        # Gains of 20 and 30 ms though the machine became twice as slow: mean 25, standard deviation 7.0711,
        # t(0.975, 1) = 12.7062, half width 63.531.
        rounds = [[(FULL, 100), ("no_comm", 80)], [("no_comm", 170), (FULL, 200)]]
        found = one(launch(ablated(rounds)))
        assert (found.gain.value, found.gain.low, found.gain.high) == pytest.approx((0.025, -0.038531, 0.088531))
        assert (found.gain.n, found.gain.unit, found.gain.scope) == (2, "s", "run")
        assert found.step.value == pytest.approx(0.125)

    def test_its_share_is_of_the_full_windows_of_the_same_rounds(self) -> None:
        rounds = [[(FULL, 100), ("no_comm", 80)], [("no_comm", 160), (FULL, 200)]]
        share = one(launch(ablated(rounds))).share
        # The same share in both rounds: no spread, though the gains differ by a factor of two.
        assert (share.value, share.low, share.high) == pytest.approx((0.2, 0.2, 0.2))
        assert share.unit == "ratio"

    def test_its_share_may_be_a_loss_though_every_round_gained(self) -> None:
        found = one(launch(ablated([[(FULL, 200), ("no_comm", ms)] for ms in (190, 198, 170)])))
        assert found.gain.low is not None
        assert (found.share.value, found.share.low) == pytest.approx((0.07, found.gain.low / 0.2))
        assert found.gain.low < 0

    def test_a_rank_that_is_slower_in_every_round_may_be_faster(self) -> None:
        ranks = [
            ablated([[(FULL, 200), ("no_comm", ms)] for ms in of_rounds], index=index, world_size=2)
            for index, of_rounds in enumerate([(100, 100, 100), (110, 102, 130)])
        ]
        slowest = slowest_rank([LaunchFacts.of(launch(*ranks))], "no_comm", on_gpu=False)
        assert slowest is not None
        assert slowest.excess.value == pytest.approx(0.07)
        assert slowest.excess.low is not None
        assert slowest.excess.low < 0

    def test_an_ablation_that_slows_has_a_negative_gain(self) -> None:
        assert one(launch(ablated([[(FULL, 100), ("no_comm", 110)]]))).gain.value == pytest.approx(-0.01)

    def test_one_round_has_no_interval(self) -> None:
        gain = one(launch(ablated([[(FULL, 100), ("no_comm", 80)]]))).gain
        assert (gain.value, gain.low, gain.n) == (pytest.approx(0.02), None, 1)

    def test_the_slowest_rank_decides_with_and_without(self) -> None:
        # Without communication rank 1 is the slower one.
        ranks = (
            ablated([[(FULL, 100), ("no_comm", 60)]], world_size=2),
            ablated([[(FULL, 100), ("no_comm", 90)]], index=1, world_size=2),
        )
        assert one(launch(*ranks)).gain.value == pytest.approx(0.01)


class TestLeftOut:
    def test_rounds_without_a_partner(self) -> None:
        rounds = [[(FULL, 100), ("no_comm", 80)], [("no_comm", 10)], [(FULL, 500)]]
        gain = one(launch(ablated(rounds))).gain
        assert (gain.value, gain.n) == (pytest.approx(0.02), 1)

    def test_windows_that_are_not_complete_on_every_rank(self) -> None:
        whole = ablated([[(FULL, 100), ("no_comm", 80)], [(FULL, 100), ("no_comm", 70)]], world_size=2)
        steps = whole.steps
        cut = [
            window(400, window=w.window, round=w.round, ablation=w.ablation, complete=w.window != 3)
            for w in whole.windows
        ]
        gain = one(launch(whole, rank(steps, cut, index=1, world_size=2))).gain
        assert gain.n == 1

    def test_epoch_edges_as_in_the_full_windows(self) -> None:
        # In every full step an iterator is built anew; the ablation that replays batches builds none.
        def steps(number: int, ms: float, edge: bool) -> list[object]:
            return [step(ms, window=number, epoch_edge=edge) for _ in range(4)]

        windows = [window(400, window=0, ablation=FULL), window(160, window=1, ablation="cached_batches")]
        found = launch(rank([*steps(0, 100, True), *steps(1, 40, False)], windows))
        assert one(found, ablation="cached_batches").gain.value == pytest.approx(0.06)


class TestUnknown:
    def test_a_skipped_ablation_gives_its_reason(self) -> None:
        skipped = AblationRecord(name="cached_batches", skipped="the dataset is iterable and keeps its place")
        found = one(launch(rank([step()], [window(100)], ablations=(skipped,))), ablation="cached_batches")
        for figure in (found.gain, found.share, found.step):
            assert (figure.value, figure.reason) == (None, skipped.skipped)

    def test_an_ablation_that_one_rank_did_not_run_to_its_end_is_unknown(self) -> None:
        rounds = [[(FULL, 100), ("no_comm", 80)]]
        failed = AblationRecord(name="no_comm", skipped="too little memory for a copy of the parameters")
        found = launch(ablated(rounds, world_size=2), ablated(rounds, index=1, world_size=2, ablations=(failed,)))
        assert one(found).gain.reason == failed.skipped

    def test_its_windows_prove_nothing_about_any_rank_either(self) -> None:
        failed = AblationRecord(name="no_comm", skipped="a momentum of its own")
        for skipped in ((), (failed,)):
            ranks = [
                ablated([[(FULL, 100), ("no_comm", ms)]] * 3, index=index, world_size=2, ablations=skipped)
                for index, ms in enumerate((60, 90))
            ]
            facts = LaunchFacts.of(launch(*ranks))
            slowest = slowest_rank([facts], "no_comm", on_gpu=False)
            assert (slowest is None) == bool(skipped)
            assert (jitter_wait([facts], "no_comm").value is None) == bool(skipped)

    def test_an_ablation_without_a_pair(self) -> None:
        ran = (AblationRecord(name="no_comm"),)
        assert one(launch(ablated([[(FULL, 100)]], ablations=ran))).gain.reason == NO_PAIRS

    def test_what_a_failed_launch_measured_is_no_result(self) -> None:
        failed = launch(ablated([[(FULL, 100), ("no_comm", 80)]]), status="failed", reason="CUDA out of memory")
        assert one(failed).gain.reason == "CUDA out of memory"

    def test_without_ablations_there_are_none(self) -> None:
        assert ablations([launch(rank([step()], [window(100)]))]) == {}
        assert ablations([]) == {}


def test_ablations_are_listed_as_the_ranks_name_them() -> None:
    ran = (AblationRecord(name="no_comm"), AblationRecord(name="amp", skipped="no GPU"))
    rounds = [[(FULL, 100), ("no_comm", 80)]]
    assert [*ablations([launch(ablated(rounds, ablations=ran))])] == ["no_comm", "amp"]


def test_several_launches_count_once_each() -> None:
    # Gains of 20 and of 30 ms; the second launch has three times as many rounds.
    first, second = [[(FULL, 100), ("no_comm", 80)]], [[(FULL, 100), ("no_comm", 70)]] * 3
    gain = one(launch(ablated(first)), launch(ablated(second), number=2)).gain
    assert (gain.value, gain.n, gain.scope) == (pytest.approx(0.025), 2, "launches")


class TestImbalance:
    @staticmethod
    def of(*per_rank: Sequence[float]) -> Figure:
        rounds = [[[("no_data_no_comm", ms)] for ms in own] for own in per_rank]
        size = len(per_rank)
        ranks = [ablated(own, index=place, world_size=size) for place, own in enumerate(rounds)]
        return imbalance([launch(*ranks)], "no_data_no_comm")

    def test_it_is_the_slowest_rank_against_the_median_of_the_others(self) -> None:
        found = self.of([100, 110], [160, 170], [120, 130])
        assert (found.value, found.low, found.high) == pytest.approx((0.05, 0.05, 0.05))

    def test_ranks_that_are_slow_by_turns_are_balanced(self) -> None:
        assert self.of([100, 140], [140, 100]).value == pytest.approx(0)

    def test_one_rank_and_none_are_unknown(self) -> None:
        assert self.of([100]).reason == "there is one rank"
        assert "window of no_comm" in str(imbalance([], "no_comm").reason)


def alone(*ms: Sequence[float | dict[str, float]], rounds: int = 3) -> Launch:
    """Return ranks of which each takes so long without communication."""
    return records.launch(*records.ranks_alone(*ms, rounds=rounds))


def test_ranks_that_are_late_in_turns_lose_what_each_waits_for_the_other() -> None:
    # Steps of max(50, 70) = 70 ms throughout, where each rank takes 60 ms in the mean.
    found = jitter_wait([alone([50, 70, 50, 70], [70, 50, 70, 50])], "no_comm")
    assert (found.value, found.n) == (pytest.approx(0.1), 3)


@pytest.mark.parametrize("ms", [([60] * 4, [60] * 4), ([50] * 4, [90] * 4), ([50, 70, 50, 70], [60, 80, 60, 80])])
def test_a_rank_that_is_always_last_or_slow_steps_of_all_are_no_turns(ms: tuple[list[float], ...]) -> None:
    assert jitter_wait([alone(*ms)], "no_comm").value == pytest.approx(0)


def test_one_rank_or_no_such_window_tells_nothing() -> None:
    assert jitter_wait([alone([50, 70, 50])], "no_comm").value is None
    assert "cached_batches" in (jitter_wait([alone([50, 70], [70, 50])], "cached_batches").reason or "")


def test_what_ranks_lose_in_turns_is_told_by_phase() -> None:
    # The ranks fetch for 10 and 40 ms in turns; rank 1 computes for longer than rank 0, in every step.
    late, early = {"data_wait": 40.0, "forward": 30.0}, {"data_wait": 10.0, "forward": 30.0}
    slower = [{**phases, "forward": 35.0} for phases in (early, late)]
    found = jitter_phases([alone([late, early] * 2, slower * 2)], "no_comm")
    assert found == pytest.approx({"data_wait": 1.0} | dict.fromkeys(set(found) - {"data_wait"}, 0.0))


def test_two_phases_that_are_late_together_share_what_is_lost() -> None:
    late, early = {"data_wait": 30.0, "backward": 40.0}, {"data_wait": 20.0, "backward": 30.0}
    found = jitter_phases([alone([late, early], [early, late])], "no_comm")
    assert (found["data_wait"], found["backward"], found["forward"]) == pytest.approx((0.5, 0.5, 0.0))


def test_where_nothing_is_lost_no_phase_loses_it() -> None:
    assert jitter_phases([alone([60] * 4, [60] * 4)], "no_comm") == {}
    assert jitter_phases([alone([50, 70])], "no_comm") == {}
