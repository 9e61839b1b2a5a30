"""The pool of launches, the gates that are replayed over it, and live ones; what is launched is measured elsewhere."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor import rundir
from tests.benchmarks.gate_pool import live, planting, pool, replay
from tests.benchmarks.gate_pool.pool import KINDS, Launched, Origin, Pool, PoolPair

ORIGIN = Origin(
    created="2026-01-01",
    command=("samples/a.py", "--modes", "ddp"),
    dpdoctor="0.0",
    cpu=None,
    cores=2,
    system="Linux",
    python="3.11",
    torch="2.15",
    rounds=10,
    step_s=0.0123,
    sizes=dict.fromkeys(KINDS, 0.0),
)


def launched(side: str, step_s: float, *, kind: str = "same", session: int = 1, number: int = 0) -> Launched:
    # Steps of one launch resemble each other: all of them are as long as it is.
    steps = tuple(round(step_s * (1 + away) / pool.STEP_UNIT_S) for away in np.linspace(-0.02, 0.02, 100))
    return Launched(
        kind=kind,
        session=session,
        pair=number,
        side=side,
        step_s=step_s,
        windows=(round(step_s / pool.STEP_UNIT_S),),
        steps=steps,
    )


def pair(ratio: float, *, base_s: float = 0.1, is_head_first: bool = False, **fields) -> PoolPair:
    base, head = launched("base", base_s, **fields), launched("head", base_s * ratio, **fields)
    return PoolPair(first=head if is_head_first else base, second=base if is_head_first else head)


def simulated(num: int = 60) -> Pool:
    """Return a pool of launches that differ by 1%."""
    dice = np.random.default_rng(0)
    numbers = [(kind, n) for kind in KINDS for n in range(10 if kind == "calibration" else num)]
    ratios = [(1 + KINDS[kind]) * math.exp(dice.normal(0, 0.014)) for kind, _ in numbers]
    bases = 0.1 * np.exp(dice.normal(0, 0.01, size=len(numbers)))
    return Pool(
        origin=ORIGIN,
        pairs=tuple(
            pair(ratio, base_s=base_s, kind=kind, number=n, is_head_first=n % 2 == 1)
            for (kind, n), ratio, base_s in zip(numbers, ratios, bases, strict=True)
        ),
    )


class TestPool:
    def test_what_was_appended_is_read(self, tmp_path):
        path, pairs = tmp_path / "pool.jsonl", [pair(1.1), pair(0.9, is_head_first=True)]
        pool.create(path, ORIGIN)
        for one in pairs:
            pool.append(path, (one.first, one.second))
        assert pool.read(path) == Pool(origin=ORIGIN, pairs=tuple(pairs))
        with pytest.raises(FileExistsError):
            pool.create(path, ORIGIN)

    def test_sides_are_told_by_name_and_not_by_order(self):
        for is_head_first in (False, True):
            found = pair(1.1, is_head_first=is_head_first)
            assert (found.base.step_s, found.head.step_s) == (0.1, 0.1 * 1.1)
            assert found.for_gate().order == ("BA" if is_head_first else "AB")
            assert (found.for_gate().base_s, found.for_gate().head_s) == (0.1, 0.1 * 1.1)

    def test_a_block_lies_in_one_session(self):
        pairs = [pair(1.0, session=1 + (n >= 4), number=n) for n in range(7)]
        found = Pool(origin=ORIGIN, pairs=(*pairs, pair(1.0, kind="slower_5")))
        begins = [block[0].first.pair for block in found.blocks("same", 3)]
        assert begins == [0, 1, 4]
        assert found.last_session == 2


class TestRules:
    def test_one_run_is_judged_by_its_threshold(self):
        assert [replay.one_run([pair(ratio)]).outcome for ratio in (1.029, 1.031, 0.5)] == ["pass", "regressed", "pass"]

    def test_steps_of_one_launch_make_any_difference_significant(self):
        assert [replay.over_steps([pair(ratio)]).outcome for ratio in (1.0, 1.01, 0.99)] == [
            "pass",
            "regressed",
            "pass",
        ]

    def test_the_gate_stops_at_its_first_clear_look(self):
        rule = replay.rules(noise())[0]
        assert rule.gate([pair(1.1)] * 20) == replay.Replayed(outcome="regressed", pairs=7)
        unclear = [pair(ratio) for ratio in (0.99, 1.08) * 6] + [pair(1.0)] * 8
        assert rule.gate(unclear) == replay.Replayed(outcome="pass", pairs=20)

    def test_a_gate_that_cannot_judge_launches_nothing(self):
        noisy = replace(noise(), run_cv=0.2, pair_sd=0.2)
        rule = replay.rules(noisy)[0]
        assert rule.gate([pair(1.1)] * 20) == replay.Replayed(outcome="inconclusive", pairs=0)

    def test_a_turned_pair_has_the_inverse_ratio_and_the_same_order_in_time(self):
        before = pair(1.25)
        after = replay.turned(before)
        assert replay.log_ratio(after) == pytest.approx(-replay.log_ratio(before))
        assert (after.first.step_s, after.first.side) == (before.first.step_s, "head")


def test_a_fault_is_sized_by_what_it_takes_in_launches():
    # It takes 14 µs per image more than asked for, and never less than 20 µs.
    size = planting.size_for(0.00169, lambda ms: 32 * max(0.020, ms + 0.014) / 1000)
    assert size == pytest.approx(1000 * 0.00169 / 32 - 0.014, rel=1e-3)
    assert planting.size_for(0.0001, lambda ms: 32 * max(0.020, ms + 0.014) / 1000) == planting.LEAST_SIZE


def noise():
    return replay.noise_of(simulated())


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_a_line_per_rule_and_says_what_holds():
    found = simulated()
    compared = replay.rules(noise())
    lines = replay.table(found, compared)
    assert len(lines) == 2 + len(compared)
    # Blocks of 20 begin at 41 of 60 pairs, and each is two gates.
    assert cells(lines[2])[:4] == ["paired, 5%", "82", "0.0%", "100%"]
    assert all(line.endswith(": as it must be") for line in replay.targets(found, compared))
    assert any("10% slower" in line for line in replay.targets(found, compared))
    told = "\n".join(replay.machine(found, noise()))
    assert all(fact in told for fact in ("12.3 ms per step", "unknown CPU", "2 cores"))
    assert re.search(r"slower_10\b.*? by 1\d?(?:\.\d+)?%", told)


def test_too_few_pairs_are_said():
    found = simulated(6)
    compared = replay.rules(noise())
    assert cells(replay.table(found, compared)[2])[:3] == ["paired, 5%", "0", "too few pairs"]
    assert all("too few pairs" in line for line in replay.targets(found, compared))


def test_a_target_that_is_missed_is_called_so():
    found = simulated()
    same = [one for one in found.pairs if one.first.kind != "slower_10"]
    slow_in_name_only = [pair(1.0, kind="slower_10", number=n) for n in range(60)]
    broken = Pool(origin=ORIGIN, pairs=(*same, *slow_in_name_only))
    missed = [line for line in replay.targets(broken, replay.rules(noise())) if "NOT MET" in line]
    assert [re.findall(r"[\d.]+%|NOT MET", line) for line in missed] == [["10%", "0.0%", "95%", "NOT MET"]]


class TestLive:
    def test_head_is_the_samples_with_the_fault_by_default(self, tmp_path: Path) -> None:
        live.checkouts(tmp_path, {"same": 0.0, "slower_10": 0.25, "slower_5": 0.125})
        texts = {path.name: (path / "faults.py").read_text() for path in tmp_path.iterdir()}
        assert texts["base"] == texts["same"] == (live.SAMPLES / "faults.py").read_text()
        assert 'default=Fault("slow_transform", 0.25)' in texts["slower_10"]
        assert 'default=Fault("slow_transform", 0.125)' in texts["slower_5"]

    def test_what_was_gated_is_not_gated_again_and_what_is_unexpected_stands_out(self, tmp_path: Path) -> None:
        gated = live.Gated(kind="same", number=0, outcome="regressed", reason="why", pairs=7, seconds=200.0)
        rundir.append_lines(tmp_path / live.DONE, [gated])
        left = list(live.missing(tmp_path, 2))
        assert ("same", 0) not in left
        assert len(left) == 2 * len(live.KINDS) - 1
        assert ["same", "**regressed**", "7", "3.33 min", "why"] in [
            cells(line) for line in live.table((gated,)).splitlines()
        ]
