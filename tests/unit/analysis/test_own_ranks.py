from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis import ModeSummary, analyse
from dpdoctor.report.words import clauses
from tests.builders import specs
from tests.builders.records import launch, rank, step, window


def native(several: int, alone: int, *, ranks_alone: int = 1, threads: int = 1) -> ModeSummary:
    """Return mode native, 2 ranks with so many samples a step each in 100 ms, beside one rank in 80 ms."""
    found = {}
    for name, size, drawn, ms in (("single", ranks_alone, alone, 80), ("native", 2, several, 100)):
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
    assert mode.waterfall_reason


def test_an_ideal_step_is_known_only_where_the_batch_is_one_of_the_script() -> None:
    assert "neither the batch of one alone" in native(20, 32).waterfall_reason
    assert "neither the batch of one alone" not in native(32, 32).waterfall_reason


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
