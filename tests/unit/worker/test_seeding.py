from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.seeding import Seeding, seed_all


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(1)), float(np.random.random()), random.random()


@pytest.fixture
def seeding() -> Iterator[Seeding]:
    found, patches = Seeding(1), Patches()
    found.watch(patches)
    yield found
    patches.undo()


@pytest.mark.parametrize("seed", [0, 7, 2**40])
def test_seeds_make_all_random_numbers_repeat(seed: int) -> None:
    seed_all(seed)
    first = drawn()
    assert drawn() != first
    seed_all(seed)
    assert drawn() == first


def test_what_a_script_seeds_is_its_own(seeding: Seeding) -> None:
    assert seeding.unseeded == ("torch", "numpy", "random")
    torch.manual_seed(3)
    random.seed(3)
    assert seeding.unseeded == ("numpy",)
    assert torch.initial_seed() == 3


def test_what_dpdoctor_and_torch_seed_is_not_the_scripts(seeding: Seeding) -> None:
    seed_all(5)
    exec("import random; random.seed(1)", {"__name__": "dpdoctor.worker.data.loaders"})
    exec("import torch; torch.manual_seed(1)", {"__name__": "torch.utils.data"})
    assert len(seeding.unseeded) == 3


def test_states_tell_what_was_drawn_of_what_the_script_seeds(seeding: Seeding) -> None:
    assert seeding.states() == {}
    for sow in (torch.manual_seed, np.random.seed, random.seed):
        sow(3)
    before = seeding.states()
    assert set(before) == {"torch", "numpy", "random"}
    assert seeding.states() == before
    np.random.random()
    random.random()
    assert [name for name, state in seeding.states().items() if state != before[name]] == ["numpy", "random"]
    np.random.seed(3)
    assert seeding.states()["numpy"] == before["numpy"]


def test_only_what_is_named_is_drawn_apart(seeding: Seeding) -> None:
    seed_all(5)
    alike = drawn()
    seed_all(5)
    seeding.draw_apart(("random",))
    mine = drawn()
    assert mine[:2] == alike[:2]
    assert mine[2] != alike[2]
    assert seeding.is_apart


def test_the_largest_seed_is_followed_by_the_first(seeding: Seeding) -> None:
    torch.manual_seed(-1)
    seeding.draw_apart()
    mine = drawn()
    seed_all(0)
    assert mine == drawn()


def test_what_was_drawn_and_nobody_seeded_is_known(seeding: Seeding) -> None:
    np.random.seed(3)
    assert seeding.used() == ()
    random.random()
    np.random.random()
    assert seeding.used() == ("random",)
