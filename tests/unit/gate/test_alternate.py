from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpdoctor.gate.alternate import Alternated, Decide, Measured, alternate, order
from dpdoctor.gate.calibration import calibrate
from dpdoctor.gate.model import Refusal, SideName

FAILED = Refusal(field="ddp: mode", base="not concerned", head="it raised", remedy="mend it")
SECONDS = {"base": 0.010, "head": 0.011}


@dataclass(frozen=True)
class Count:
    """A verdict that knows how many pairs it is of."""

    pairs: int
    final: bool


class Launcher:
    """Notes who is launched, and gives what a test says of the n-th launch of a side."""

    def __init__(self, special: Mapping[tuple[str, int], Measured] | None = None) -> None:
        self.launched: list[str] = []
        self._special = dict(special or {})

    def __call__(self, side: SideName, number: int) -> Measured:
        self.launched.append(f"{side[0]}{number}")
        return self._special.get((side, number), Measured(seconds={"ddp": SECONDS[side]}))


def after(last: int) -> Decide[Count]:
    """Return a judge that is sure after so many pairs."""

    def decide(log_ratios: Mapping[str, Sequence[float]], before: Mapping[str, Count]) -> dict[str, Count]:
        assert before == {} or set(before) == set(log_ratios)
        return {mode: Count(pairs=len(found), final=len(found) >= last) for mode, found in log_ratios.items()}

    return decide


def run(
    launcher: Launcher, last: int = 3, most: int = 20, modes: Iterable[str] = ("ddp",), *, same_code: bool = False
) -> Alternated[Count]:
    return alternate(launcher, after(last), modes=tuple(modes), most_pairs=most, same_code=same_code)


def test_sides_alternate_so_that_each_follows_itself_and_the_other_as_often() -> None:
    launcher = Launcher()
    done = run(launcher, last=3)
    assert launcher.launched == ["h0", "b0", "b1", "h1", "h2", "b2", "b3", "h3"]
    assert [pair.order for pair in done.pairs["ddp"]] == ["AB", "BA", "AB"]
    assert [order(number) for number in range(4)] == ["BA", "AB", "BA", "AB"]


def test_a_drift_that_grows_evenly_cancels_out() -> None:
    class Drifting(Launcher):
        def __call__(self, side: SideName, number: int) -> Measured:
            super().__call__(side, number)
            return Measured(seconds={"ddp": math.exp(0.01 * len(self.launched))})

    done = run(Drifting(), last=4)
    ratios = [math.log(pair.head_s / pair.base_s) for pair in done.pairs["ddp"] if pair.head_s and pair.base_s]
    assert sum(ratios) == pytest.approx(0, abs=1e-12)
    assert max(ratios) == pytest.approx(0.01)


def test_it_stops_as_soon_as_all_modes_are_sure_and_counts_no_discarded_pair() -> None:
    launcher = Launcher({(side, 0): Measured(seconds={"ddp": 9.0}) for side in ("base", "head")})
    done = run(launcher, last=2)
    assert done.verdicts == {"ddp": Count(pairs=2, final=True)}
    assert {(pair.base_s, pair.head_s, pair.replaced) for pair in done.pairs["ddp"]} == {(0.010, 0.011, None)}
    assert not done.interrupted
    assert done.refusals == ()


def test_a_judge_that_is_sure_without_pairs_launches_nothing() -> None:
    launcher = Launcher()
    done = run(launcher, last=0)
    assert (launcher.launched, done.pairs) == ([], {"ddp": ()})


def test_a_disturbed_launch_is_replaced_with_its_partner_and_kept_with_the_reason() -> None:
    launcher = Launcher({("base", 2): Measured(seconds={"ddp": 0.5}, disturbed="cores were taken")})
    done = run(launcher, last=3)
    assert done.verdicts["ddp"].pairs == 3
    assert [pair.replaced for pair in done.pairs["ddp"]] == [None, "base: cores were taken", None, None]
    assert (done.pairs["ddp"][1].base_s, done.pairs["ddp"][1].head_s) == (0.5, 0.011)


def test_either_side_is_launched_before_anything_counts() -> None:
    launcher = Launcher({("head", 0): Measured(disturbed="cores were taken")})
    run(launcher, last=1)
    assert launcher.launched == ["h0", "b0", "b1", "h1"]


def test_the_partner_of_what_is_to_be_replaced_is_not_launched() -> None:
    launcher = Launcher({("base", 1): Measured(seconds={"ddp": 0.5}, disturbed="cores were taken")})
    done = run(launcher, last=1)
    assert launcher.launched == ["h0", "b0", "b1", "h2", "b2"]
    assert done.pairs["ddp"][0].head_s is None


def test_more_than_a_fifth_is_not_replaced() -> None:
    disturbed = {("base", number): Measured(disturbed=f"for reason {number % 2}") for number in range(1, 9)}
    launcher = Launcher(disturbed)
    done = run(launcher, last=10, most=10)
    (refusal,) = done.refusals
    assert refusal.field == "disturbed launches"
    assert (refusal.base, refusal.head) == ("3", "0")
    assert "3 pairs of 3" in refusal.remedy
    assert "; ".join(f"base: for reason {number}" for number in (1, 0)) in refusal.remedy
    assert "the code of base may be why" in refusal.remedy
    assert len(done.pairs["ddp"]) == 3
    assert done.verdicts["ddp"].pairs == 0


def test_a_calibration_blames_no_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher({("base", number): Measured(disturbed="cores were taken") for number in range(1, 9)})
    monkeypatch.setattr("dpdoctor.gate.calibration.Launches", lambda *_, **__: launcher)
    checkout: Any = SimpleNamespace(modes=("ddp",))
    progress: Any = None
    (refusal,) = calibrate(tmp_path, checkout, pairs=10, progress=progress).launched.refusals
    assert "may be why" not in refusal.remedy


# What chance does to one side, launches that were disturbed on both, and sides that are the same code.
@pytest.mark.parametrize(
    ("disturbed", "same_code"),
    [
        ([("base", 2), ("base", 4), ("base", 5)], False),
        ([(side, 2 * n + place) for n in range(4) for place, side in enumerate(("base", "head"), 1)], False),
        ([("base", number) for number in range(1, 9)], True),
    ],
)
def test_no_side_is_blamed_for_what_its_code_did_not_do(disturbed: list[tuple[str, int]], same_code: bool) -> None:
    launcher = Launcher(dict.fromkeys(disturbed, Measured(seconds={"ddp": 0.5}, disturbed="cores were taken")))
    (refusal,) = run(launcher, last=10, most=10, same_code=same_code).refusals
    assert "may be why" not in refusal.remedy
    assert "--warmup (the same for calibration" in refusal.remedy


@pytest.mark.parametrize(("number", "launched"), [(0, ["h0"]), (1, ["h0", "b0", "b1", "h1"])])
def test_what_can_never_be_compared_ends_it_at_once(number: int, launched: list[str]) -> None:
    launcher = Launcher({("head", number): Measured(refusals=(FAILED,))})
    done = run(launcher)
    assert done.refusals == (FAILED,)
    assert launcher.launched == launched
    assert not done.verdicts["ddp"].final


def test_ctrl_c_keeps_what_was_launched() -> None:
    launcher = Launcher({("head", 3): Measured(interrupted=True)})
    done = run(launcher, last=9)
    assert done.interrupted
    assert done.verdicts["ddp"] == Count(pairs=2, final=False)
    assert [pair.replaced for pair in done.pairs["ddp"]][:2] == [None, None]
    assert launcher.launched[-1] == "h3"


def test_ctrl_c_during_the_discarded_pair() -> None:
    done = run(Launcher({("head", 0): Measured(interrupted=True)}))
    assert done.interrupted
    assert done.pairs == {"ddp": ()}


def test_several_modes_come_from_the_same_launches() -> None:
    class Both(Launcher):
        def __call__(self, side: SideName, number: int) -> Measured:
            super().__call__(side, number)
            return Measured(seconds={"ddp": SECONDS[side], "fsdp": 2 * SECONDS[side]})

    done = run(Both(), last=2, modes=("ddp", "fsdp"))
    assert {mode: pairs[0].base_s for mode, pairs in done.pairs.items()} == {"ddp": 0.010, "fsdp": 0.020}


def test_a_judge_that_never_makes_up_its_mind_is_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="after 4 pairs `decide` must have come to a decision"):
        run(Launcher(), last=5, most=4)


def test_what_reports_show_of_a_launch_is_in_its_pair() -> None:
    shown = {(side, 1): Measured(seconds={"ddp": 0.010}, shown={"ddp": SECONDS[side]}) for side in ("base", "head")}
    (pair,) = run(Launcher(shown), last=1).pairs["ddp"]
    assert (pair.base_shown_s, pair.head_shown_s) == (0.010, 0.011)
    assert pair.shown_log_ratio == pytest.approx(math.log(1.1))
