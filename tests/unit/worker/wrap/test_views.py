"""What rows tell by their values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dpdoctor.worker.wrap import views

torch.manual_seed(7)
IMAGES = torch.rand(32, 3, 12, 12)
ROWS = torch.randn(24, 5)
TOKENS = torch.randint(0, 1000, (16, 20))


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + 0.1 * torch.randn_like(x)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.cat([noisy(ROWS), noisy(ROWS)]),
        torch.cat([ROWS, noisy(ROWS)]).bfloat16(),
        torch.cat([IMAGES, IMAGES.flip(-1)]),
        torch.cat([IMAGES.roll(3, -2), noisy(IMAGES), IMAGES]),
        torch.cat([TOKENS, torch.where(torch.rand(16, 20) < 0.2, 0, TOKENS)]),
    ],
)
def test_views_of_samples_one_after_the_other_are_found(tensor: torch.Tensor) -> None:
    assert views.times(tensor) == 0


@pytest.mark.parametrize("sample", [ROWS, IMAGES, TOKENS, ROWS.bool()])
def test_rows_that_are_there_again_are_counted(sample: torch.Tensor) -> None:
    expected = 1 if sample.dtype == torch.bool else 3
    assert views.times(torch.cat([sample] * 3)) == expected, "rows that many others are like tell nothing"


@pytest.mark.parametrize("num_rows", [16, 64, 65, 100])
@pytest.mark.parametrize("number", [2, 4, 6, 10, 16])
def test_all_copies_of_rows_are_counted(num_rows: int, number: int) -> None:
    rows = torch.randn(num_rows, 20)
    assert views.times(rows.repeat(number, 1)) == number
    assert views.times(torch.cat([rows, noisy(rows)]).repeat(number, 1)) == 0


GRIDS = [torch.cartesian_prod(torch.rand(several).sort().values, torch.linspace(0, 1, 50)) for several in (2, 8)]


@pytest.mark.parametrize("grid", [*GRIDS, torch.cat([GRIDS[0], torch.zeros(100, 1)], 1)])
def test_coordinates_of_a_grid_are_no_views(grid: torch.Tensor) -> None:
    assert views.times(grid) == 1
    assert views.times(grid.repeat(3, 1)) == 3
    assert views.times(grid + 0.001 * torch.randn_like(grid)) == 0, "rows that differ as if noise were added"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(96, 3),
        torch.randn(48, 3, 12, 12),
        torch.randint(0, 1000, (48, 20)),
        torch.linspace(-1, 1, 96).unsqueeze(1),
        torch.cartesian_prod(torch.arange(32.0), torch.arange(32.0)),
        torch.eye(48),
        torch.zeros(48, 3),
        torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]).repeat(25, 1),
        torch.arange(160.0).unfold(0, 64, 1),
        torch.cat([ROWS[:4], ROWS[:4]]),
        torch.randn(48),
        torch.randn(48, 0),
        torch.randn(0, 48),
        torch.randn(24, 5).to_sparse(),
        torch.full((24, 5), torch.nan),
    ],
)
def test_other_rows_are_no_views(tensor: torch.Tensor) -> None:
    assert views.times(tensor) == 1


@pytest.mark.parametrize("change", [noisy, lambda x: x.flip(1)])
def test_rows_resemble_those_in_their_place_alone(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    some, others = views.some_rows(ROWS), views.some_rows(change(ROWS))
    assert some is not None
    assert others is not None
    assert views.are_alike(some, others)
    assert not views.are_alike(some, others.roll(1, 0))
    assert not views.are_alike(some, others[:-1])


def test_few_elements_of_large_tensors_are_looked_at() -> None:
    rows = views.some_rows(torch.zeros(10_000, 10_000))
    assert rows is not None
    assert rows.numel() <= 4 * views.MOST_ROWS * views.MOST_ELEMENTS
