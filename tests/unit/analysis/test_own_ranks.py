from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis import ModeSummary, analyse
from dpdoctor.report.words import clauses
from tests.builders import specs
from tests.builders.records import launch, rank, step, window


def native(several: int, alone: int, *, num_ranks: int = 2, ranks_alone: int = 1, threads: int = 1) -> ModeSummary:
    """Return mode native, ranks with so many samples a step each in 100 ms, beside one rank in 80 ms."""
    found = {}
    for name, size, drawn, ms in (("single", ranks_alone, alone, 80), ("native", num_ranks, several, 100)):
        mode = dataclasses.replace(specs.mode_spec(name), launcher=("torchrun",))
        device = f"CPU, {threads if name == 'single' else 1} threads"
        steps = [step(ms, samples_drawn=drawn) for _ in range(4)]
        ranks = [rank(steps, [window(4 * ms)], index=i, world_size=size, device=device) for i in range(size)]
        found[mode] = [launch(*ranks, mode=name, world_size=size)]
    return analyse(specs.run(found)).summary.modes["native"]


@pytest.mark.parametrize(
    ("several", "rule", "words"),
    [(32, "per-device", "Weak scaling"), (16, "global", "Strong scaling"), (20, "own", "own affair")],
)
def test_how_a_script_shares_out_its_batch_is_seen_beside_one_rank(several: int, rule: str, words: str) -> None:
    mode = native(several, 32)
    assert mode.batch.rule == rule
    assert words in clauses.scaling_words(mode)
    assert mode.speedup.value == pytest.approx(2 * several / 32 * 80 / 100)
    assert mode.scaling_efficiency.value == pytest.approx(several / 32 * 80 / 100)


@pytest.mark.parametrize(("several", "ideal_s"), [(32, 0.08), (16, 0.04), (20, None)])
def test_an_ideal_step_is_known_where_a_rank_takes_a_batch_of_the_script_or_its_part(several, ideal_s) -> None:
    mode = native(several, 32)
    assert (mode.waterfall and mode.waterfall.ideal.value) == (ideal_s and pytest.approx(ideal_s))
    assert ("neither the batch of one alone" in mode.waterfall_reason) is (ideal_s is None)


def test_ranks_are_held_against_one_that_computes_on_the_same() -> None:
    mode = native(32, 32, threads=2)
    assert mode.speedup.value is None
    assert mode.speedup.reason == (
        "one of several ranks computed on CPU, 1 threads, one alone on CPU, 2 threads; set OMP_NUM_THREADS"
    )


def test_a_script_that_starts_as_many_ranks_as_ever_is_no_baseline() -> None:
    assert native(32, 32, ranks_alone=2).speedup.reason == (
        "`single` was to be one rank, but the script started 2 ranks"
    )


def test_a_launcher_that_makes_one_rank_of_a_script_is_named() -> None:
    assert native(32, 32, num_ranks=1).speedup.reason == "`torchrun` made the script one rank"
