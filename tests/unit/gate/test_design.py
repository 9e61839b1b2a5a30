from __future__ import annotations

import pytest

from dpdoctor.gate.design import ALPHA, QUICK, Look, Plan, holm_alpha, sequence


def looks(plan: Plan) -> list[tuple[int, float]]:
    return [(look.pairs, look.alpha) for look in plan.looks]


def test_the_usual_plan_and_the_quick_one():
    assert looks(sequence()) == [(7, 0.01), (12, 0.015), (20, 0.025)]
    assert sequence().most_run_cv is None
    assert (looks(QUICK), QUICK.most_run_cv) == ([(5, 0.05)], 0.01)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (7, [(7, 0.05)]),
        (8, [(7, 0.01), (8, 0.04)]),
        (12, [(7, 0.01), (12, 0.04)]),
        (13, [(7, 0.01), (12, 0.015), (13, 0.025)]),
        (46, [(7, 0.01), (12, 0.015), (46, 0.025)]),
    ],
)
def test_another_number_of_pairs_spends_what_is_left_at_its_end(most, expected):
    assert looks(sequence(most)) == expected
    assert sum(look.alpha for look in sequence(most).looks) == pytest.approx(ALPHA)


def test_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match="a gate of 6 pairs cannot tell; it takes 7 at least"):
        sequence(6)
    with pytest.raises(ValueError, match="alpha is 0; it must lie above 0"):
        Look(pairs=7, alpha=0)
    with pytest.raises(ValueError, match=r"6 pairs give no bound at alpha 0\.01; it takes 7"):
        Look(pairs=6, alpha=0.01)


@pytest.mark.parametrize("pairs", [(), (12, 7), (7, 7)])
def test_a_plan_without_an_order_is_refused(pairs):
    with pytest.raises(ValueError, match="each after more pairs"):
        Plan(looks=tuple(Look(pairs=n, alpha=0.01) for n in pairs))


def test_a_plan_that_spends_too_much_is_refused():
    with pytest.raises(ValueError, match=r"the looks spend 0\.06; together they may spend 0\.05"):
        Plan(looks=(Look(pairs=7, alpha=0.03), Look(pairs=9, alpha=0.03)))


def test_looks_are_due_after_their_pairs_and_at_no_other_time():
    plan = sequence()
    assert [n for n in range(30) if plan.is_due(n)] == [7, 12, 20]
    assert [plan.look_for(n).pairs for n in (0, 6, 7, 8, 12, 13, 20, 21)] == [7, 7, 7, 12, 12, 20, 20, 20]
    assert plan.last.pairs == 20


def test_holm_gives_the_share_of_a_failed_mode_to_the_others():
    assert [holm_alpha(0.03, 3, failed) for failed in range(3)] == pytest.approx([0.01, 0.015, 0.03])
