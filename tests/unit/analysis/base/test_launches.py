"""Which steps and windows of a launch count, and what windows measure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.base.launches import TRACED_LATER, LaunchFacts
from dpdoctor.records import PHASES, Rank, StepRecord
from tests.builders.records import ahead, even_rank, launch, rank, step, window
from tests.builders.traced_cases import digest


def drawn(record: StepRecord) -> int:
    return record.samples_drawn


def test_the_slowest_rank_decides() -> None:
    (found,) = launch(even_rank(100, world_size=2), even_rank(200, index=1, world_size=2)).windows()
    assert found.step() == pytest.approx((0.8, 4))
    assert found.throughput(drawn) == pytest.approx((2 * 4 * 32, 0.8))
    assert found.throughput_all_steps(drawn) == pytest.approx((2 * 4 * 32, 0.8))


def test_epoch_edges_are_left_out_of_the_steady_figures_only() -> None:
    steps = [step(100), step(100), step(300, epoch_edge=True), step(100)]
    (found,) = launch(rank(steps, [window(600)])).windows()
    assert found.step() == pytest.approx((0.3, 3))
    assert found.throughput(drawn) == pytest.approx((3 * 32, 0.3))
    assert found.throughput_all_steps(drawn) == pytest.approx((4 * 32, 0.6))


def test_whether_edges_are_usual_is_one_answer_for_all_ranks() -> None:
    # Of one rank's own steps most are edges, of both ranks' together fewer than half.
    mostly = [step(100, epoch_edge=place < 3) for place in range(4)]
    seldom = [step(100, epoch_edge=place == 3) for place in range(4)]
    ranks = [rank(mostly, [window(400)], world_size=2), rank(seldom, [window(400)], index=1, world_size=2)]
    (found,) = launch(*ranks).windows()
    assert [len(of_rank.steady) for of_rank in found.ranks] == [1, 3]


def test_a_step_in_which_one_rank_evaluates_is_an_edge_of_those_that_wait_for_it() -> None:
    def of_rank(index: int, *, evaluates: bool) -> Rank:
        steps = [
            step(300 if number == 3 else 100, step=number, epoch_edge=evaluates and number == 3)
            for number in range(1, 5)
        ]
        return rank(steps, [window(600)], index=index, world_size=2)

    found = launch(of_rank(0, evaluates=True), of_rank(1, evaluates=False))
    (measured,) = found.windows()
    assert measured.step() == (pytest.approx(0.3), 3)
    assert measured.throughput(drawn) == pytest.approx((2 * 3 * 32, 0.3))
    assert [[one.step for one in of.steps if one.epoch_edge] for of in found.ranks] == [[3], [3]]

    every = launch(
        *(
            rank([step(100, step=n, epoch_edge=not i) for n in (1, 2)], [window(200)], index=i, world_size=2)
            for i in (0, 1)
        )
    )
    assert [len(of.steady) for of in every.windows()[0].ranks] == [2, 2], "one rank logs by itself in each step"


def test_device_work_after_the_last_host_step_counts() -> None:
    # The host was done after 400 ms; the device, and so the window, after 500 ms.
    (found,) = launch(rank([step(100)] * 4, [window(500)])).windows()
    assert found.step() == pytest.approx((0.5, 4))
    assert found.throughput(drawn) == pytest.approx((4 * 32, 0.5))


def test_phases_are_of_the_steady_steps() -> None:
    steps = [
        step(100, phases_ms={"data_wait": 60, "forward": 40}),
        step(100, phases_ms={"data_wait": 20, "forward": 50, "other": 30}),
        step(900, phases_ms={"data_wait": 900}, epoch_edge=True),
    ]
    (found,) = launch(rank(steps, [window(1100)])).windows()
    expected = {**dict.fromkeys(PHASES, 0.0), "data_wait": 0.08, "forward": 0.09, "other": 0.03}
    for name, seconds in expected.items():
        assert found.phase(name) == pytest.approx((seconds, 2))
    assert found.step() == pytest.approx((sum(expected.values()), 2))


def test_steps_that_are_not_counted_are_not_there() -> None:
    steps = [step(5000, counted=False), *[step(100)] * 4]
    (found,) = launch(rank(steps, [window(400)])).windows()
    assert found.step() == pytest.approx((0.4, 4))
    assert len(found.ranks[0].counted) == 4


@pytest.mark.parametrize(
    "fields", [{"complete": False}, {"kind": "warmup"}, {"kind": "proof"}, {"kind": "trace"}, {"ablation": "no_comm"}]
)
def test_only_complete_measured_windows_of_the_full_ablation_are_read(fields: dict[str, object]) -> None:
    steps = [step(100), step(100, window=2)]
    found = launch(rank(steps, [window(100), window(100, window=2, **fields)])).windows()
    assert [w.ranks[0].window.window for w in found] == [1]


def test_windows_of_another_kind_can_be_asked_for() -> None:
    steps = [step(100), step(130, window=2)]
    (found,) = launch(rank(steps, [window(100), window(130, window=2, kind="trace")])).windows(kind="trace")
    assert found.step() == pytest.approx((0.13, 1))


def test_a_window_of_epoch_edges_alone_says_nothing_steady() -> None:
    edge, others = step(100, epoch_edge=True), [step(100, window=2) for _ in range(3)]
    windows = launch(rank([edge, *others], [window(100), window(300, window=2)])).windows()
    assert [w.ranks[0].window.window for w in windows] == [2]


def test_where_most_steps_are_edges_they_are_the_steady_state() -> None:
    edges = [step(100, epoch_edge=True) for _ in range(3)]
    (found,) = launch(rank([*edges, step(50)], [window(350)])).windows()
    assert found.ranks[0].steady == found.ranks[0].counted
    assert found.step() == pytest.approx((0.35, 4))


def test_a_step_in_which_another_optimizer_took_many_is_steady_in_no_case() -> None:
    edges = [step(100, epoch_edge=True) for _ in range(3)]
    turned = step(1600, epoch_edge=True, samples_drawn=512, interrupted=True)
    (found,) = launch(rank([*edges, turned, step(50)], [window(1950)])).windows()
    assert found.step() == pytest.approx((0.35, 4))
    assert found.throughput(drawn) == pytest.approx((4 * 32, 0.35))
    assert found.throughput_all_steps(drawn) == pytest.approx((4 * 32 + 512, 1.95))


def test_edges_are_not_steady_where_nothing_counts_samples_as_in_a_bare_launch() -> None:
    epoch = [step(100, samples_drawn=0, samples_entered=0, epoch_edge=edge) for edge in (True, False, False, False)]
    assert not launch(rank(4 * epoch, [window(1600)])).edges_are_steady


@pytest.mark.parametrize(
    ("of_edge", "others", "are_steady"),
    [
        (32, (32, 32, 4), True),  # the last batch of an epoch of four is a small one
        (32, (4,), True),  # half of two
        (32, (32,) * 19 + (4,), False),  # it weighs little in a longer one
        (640, (32, 32, 32), False),  # other models trained in it
        (0, (32, 32, 4), False),  # it was not counted right
    ],
)
def test_edges_are_steady_where_the_other_steps_hold_less(
    of_edge: int, others: tuple[int, ...], are_steady: bool
) -> None:
    epoch = [step(100, samples_drawn=of_edge, samples_entered=0, epoch_edge=True)]
    epoch += [step(100, samples_drawn=number) for number in others]
    found = launch(rank(4 * epoch, [window(400 * len(epoch))]))
    assert found.edges_are_steady is are_steady
    ((samples, _),) = [each.throughput(drawn) for each in found.windows()]
    assert samples == 4 * (sum(others) + are_steady * of_edge)


def test_a_window_counts_when_every_rank_has_it() -> None:
    ranks = (
        even_rank(100, num_windows=3, world_size=2),
        even_rank(100, num_windows=2, index=1, world_size=2),
    )
    assert [w.ranks[0].window.window for w in launch(*ranks).windows()] == [1, 2]


def test_without_one_of_the_ranks_nothing_is_known_of_all() -> None:
    assert launch(even_rank(100, world_size=2)).windows() == ()
    assert launch().windows() == ()


class TestOnAGpu:
    """What an edge takes the device is not what it takes the host, which runs ahead."""

    def test_windows_with_an_edge_are_left_out_of_the_steady_figures(self) -> None:
        # By the host's clock 198 ms would be left of the second one for nine steps, and 178 ms of the third.
        found = launch(ahead((200, None), (200, 2), (480, 302)))
        assert [window.step() for window in found.windows()] == [(pytest.approx(0.2), 10)]
        assert not found.edges_are_steady
        every = found.windows(with_edges=True)
        assert [window.throughput_all_steps(drawn) for window in every] == [
            (320, pytest.approx(seconds)) for seconds in (0.2, 0.2, 0.48)
        ]

    def test_where_every_window_has_one_all_steps_are_steady(self) -> None:
        found = launch(ahead((200, 2), (480, 302)))
        assert [window.step() for window in found.windows()] == [(pytest.approx(0.2), 10), (pytest.approx(0.48), 10)]
        assert found.edges_are_steady
        assert found.is_taken_whole

    @pytest.mark.parametrize(("full", "without"), [((200.0, None), []), ((200.0, 2.0), [(pytest.approx(0.1), 10)])])
    def test_windows_of_an_ablation_are_read_like_the_full_ones(self, full: tuple, without: list) -> None:
        both = ahead(full, (100, 2))
        windows = (both.windows[0], replace(both.windows[1], ablation="no_comm"))
        found = launch(replace(both, windows=windows))
        assert [window.step() for window in found.windows("no_comm")] == without

    def test_an_edge_of_one_rank_is_one_of_all(self) -> None:
        ranks = ahead((200, None), (200, None), world_size=2), ahead((200, None), (200, 2), index=1, world_size=2)
        assert [w.ranks[0].window.window for w in launch(*ranks).windows()] == [1]


def exchanging(*windows: Sequence[int], complete: Sequence[bool] = (True,) * 4, warmup: int = 0) -> LaunchFacts:
    """Return a launch of two ranks of whose windows' steps each exchanges so many collectives; the first are of
    warm-up.
    """

    def of(index: int) -> Rank:
        made = list(enumerate(windows, 1))
        steps = [step(100, window=number, collectives=count) for number, counts in made for count in counts]
        measured = [
            window(
                100 * len(counts),
                window=number,
                first_step=10 * number,
                complete=complete[min(number, len(complete)) - 1],
                kind="warmup" if number <= warmup else "measure",
            )
            for number, counts in made
        ]
        return rank(steps, measured, index=index, world_size=2)

    return launch(of(0), of(1), mode="native")


@pytest.mark.parametrize(
    ("windows", "kept", "at"),
    [
        pytest.param([(2,) * 4, (2,) * 4, (0, 0, 0, 1), (0, 1, 0, 0)], [3, 4], 30, id="post-local SGD"),
        pytest.param([(2,) * 4, (2,) * 4, (2, 2, 6, 6), (6,) * 4, (6,) * 4], [4, 5], 40, id="in the midst of a window"),
        pytest.param([(0, 1), (0, 1), (3, 3), (3, 3)], [3, 4], 30, id="local SGD first"),
        pytest.param([(2,) * 4, (2,) * 4, (2,) * 4, (6,) * 4], [1, 2, 3, 4], None, id="too late to tell"),
        pytest.param([(0,), (0,), (0,), (8,)], [1, 2, 3, 4], None, id="now and then, in windows of a step"),
        pytest.param([(2,) * 4] * 4, [1, 2, 3, 4], None, id="nowhere"),
        pytest.param([(2,) * 4, (6,) * 4], [1, 2], None, id="too few to tell"),
        pytest.param([(0, 1), (1, 0), (0, 1), (0, 1)], [1, 2, 3, 4], None, id="every second step"),
        pytest.param([(0,) * 4, (0, 0, 0, 8), (0,) * 4, (0,) * 4], [1, 2, 3, 4], None, id="now and then"),
        pytest.param([(1, 2, 3, 4), (2, 1, 5, 2), (4, 4, 2, 7)], [1, 2, 3], None, id="in no rhythm"),
        pytest.param([(2,) * 4, (6,) * 4, (2,) * 4, (6,) * 4], [1, 2, 3, 4], None, id="in turn"),
    ],
)
def test_figures_are_of_one_kind_of_exchange(windows: list[Sequence[int]], kept: list[int], at: int | None) -> None:
    found = exchanging(*windows)
    assert [one.ranks[0].window.window for one in found.windows()] == kept
    assert (found.turn.step if found.turn else None) == at


@pytest.mark.parametrize(
    ("complete", "kept", "is_past"),
    [((True, True, False, False), [1, 2], False), ((False, False, True, False), [3], True), ((False,) * 4, [], False)],
)
def test_windows_that_are_not_complete_tell_of_a_turn_too(
    complete: Sequence[bool], kept: list[int], is_past: bool
) -> None:
    found = exchanging((2,) * 4, (2,) * 4, (0,) * 4, (0,) * 4, complete=complete)
    assert [one.ranks[0].window.window for one in found.windows()] == kept
    assert found.turn is not None
    assert found.turn.is_past == is_past


@pytest.mark.parametrize(
    ("windows", "warmup", "kept", "is_told"),
    [
        ([(2,) * 4, (2,) * 4, (0,) * 4, (0,) * 4], 2, [3, 4], False),
        ([(2,) * 4, (2,) * 4, (2, 2, 0, 0), (0,) * 4, (0,) * 4], 2, [4, 5], True),
        ([(2,) * 4, (2,) * 4, (0,) * 4, (0,) * 4], 3, [4], False),
    ],
)
def test_what_warm_up_was_past_is_no_turn(
    windows: list[Sequence[int]], warmup: int, kept: list[int], *, is_told: bool
) -> None:
    found = exchanging(*windows, warmup=warmup)
    assert [one.ranks[0].window.window for one in found.windows()] == kept
    assert (found.turn is not None) == is_told


def test_steps_in_which_exchanges_are_set_up_are_no_turn() -> None:
    counts = [(4, 4, 4), (2, 2), (2, 2), (0, 0), (0, 0)]
    steps = [
        step(100, step=number, window=place, collectives=count)
        for number, (place, count) in enumerate(((place, n) for place, of in enumerate(counts, 1) for n in of), 1)
    ]
    windows = [window(100 * len(of), window=place) for place, of in enumerate(counts, 1)]
    found = launch(rank(steps, [replace(windows[0], kind="warmup"), *windows[1:]]), mode="native").turn
    assert found is not None
    assert (found.before, found.after) == (2.0, 0.0)


def test_a_turn_tells_what_a_rank_exchanges_before_and_after() -> None:
    found = exchanging((2,) * 4, (2,) * 4, (2, 2, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0)).turn
    assert found is not None
    assert (found.before, found.after, found.is_past) == (2.0, 0.25, True)


@pytest.mark.parametrize(("complete", "is_of_others"), [((True,) * 4, False), ((True, True, False, False), True)])
def test_a_trace_of_steps_that_exchange_otherwise_tells_no_communication(
    complete: Sequence[bool], *, is_of_others: bool
) -> None:
    found = exchanging((2,) * 4, (2,) * 4, (0,) * 4, (0,) * 4, complete=complete)
    traced = [
        replace(one, windows=(*one.windows, window(100, window=5, kind="trace")), digest=digest())
        for one in found.ranks
    ]
    reason = LaunchFacts.of(replace(found, ranks=tuple(traced))).traces.why_unknown or ""
    assert reason.endswith(TRACED_LATER) == is_of_others
