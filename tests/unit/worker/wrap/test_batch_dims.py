from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.worker.timing.batches import Rows
from dpdoctor.worker.wrap.batch_dims import MOST_ELEMENTS, MOST_ROWS, BatchDims, are_alike, some_rows, times_held

BATCH, TIME, WIDTH, HEADS = 5, 7, 12, 3


class Model(nn.Module):
    """Runs a function of its parts on what it is called with."""

    def __init__(self, run: Callable[[Model, torch.Tensor], Any]) -> None:
        super().__init__()
        self.run = run
        self.embed = nn.Embedding(11, WIDTH)
        self.lstm, self.gru = nn.LSTM(WIDTH, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)
        self.batch_first = nn.TransformerEncoderLayer(WIDTH, HEADS, 8, batch_first=True)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.conv = nn.Conv1d(WIDTH, 4, 3)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.Parameter(torch.ones(BATCH, WIDTH, 2))

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return self.query(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def rows(
    run: Callable[[Model, torch.Tensor], Any], x: torch.Tensor, *beside: torch.Tensor, is_compiled: bool = False
) -> Rows | None:
    """Return what a model's forward on `x`, with tensors beside it, tells of it."""
    dims, model = BatchDims(), Model(run)
    if is_compiled:
        dims.something_is_compiled()
    given = dims.given(model, x, (x, *beside))
    with given.looking():
        output = model(x)
    given.returned(output)
    again = dims.given(model, x)
    assert not dims.is_new(again)
    assert again.rows() == given.rows()
    return given.rows()


TOKENS, BY_TIME = torch.ones(BATCH, TIME, dtype=torch.long), torch.ones(TIME, BATCH, dtype=torch.long)
FIRST, SECOND = Rows(BATCH, 0, is_told=True), Rows(BATCH, 1, is_told=True)


def looped(model: Model, x: torch.Tensor) -> torch.Tensor:
    state = None
    for tokens in x:
        state = model.cell(model.embed(tokens), state)
    assert state is not None
    return state[0].sum()


def by_hand(model: Model, x: torch.Tensor) -> torch.Tensor:
    q = model.query(model.embed(x))
    return q @ q.transpose(-2, -1)


def packed(model: Model, x: torch.Tensor) -> Any:
    lengths = torch.arange(TIME, TIME - BATCH, -1)
    return model.gru(nn.utils.rnn.pack_padded_sequence(model.embed(x), lengths, batch_first=True))[1].sum()


@pytest.mark.parametrize(
    ("run", "x", "expected"),
    [
        (lambda m, x: m.lstm(m.embed(x)), BY_TIME, SECOND),
        (lambda m, x: m.lstm(m.embed(x).transpose(0, 1))[0].sum(), TOKENS, FIRST),
        (lambda m, x: m.gru(m.embed(x))[0], TOKENS, FIRST),
        (packed, TOKENS, FIRST),
        (looped, BY_TIME, SECOND),
        (lambda m, x: m.attention(*[m.embed(x)] * 3)[0], BY_TIME, SECOND),
        (lambda m, x: m.batch_first(m.embed(x)), TOKENS, FIRST),
        (lambda m, x: m.conv(m.embed(x).transpose(1, 2)).sum(), TOKENS, FIRST),
        (by_hand, TOKENS, FIRST),
        (lambda m, x: nn.functional.scaled_dot_product_attention(*[m.heads(m.embed(x))] * 3).sum(), TOKENS, FIRST),
        (lambda m, x: torch.einsum("bhtd,bhsd->bhts", *[m.heads(m.embed(x))] * 2).sum(), TOKENS, FIRST),
        (lambda m, x: m.lstm(x)[0], torch.ones(TIME, BATCH, WIDTH), SECOND),
        (lambda _, x: x.flatten(1).sum(), torch.ones(BATCH, TIME, WIDTH), FIRST),
        (lambda _, x: x.view(BATCH, -1).sum(), torch.ones(BATCH, TIME, WIDTH), FIRST),
        (lambda m, x: {"logits": m.embed(x).mean(1)}, TOKENS, FIRST),
        (lambda m, x: (m.embed(x).mean(0), None), BY_TIME, SECOND),
        (lambda m, x: m.lstm(torch.ones(TIME, BATCH, WIDTH), (x, x))[0], torch.ones(1, BATCH, WIDTH), SECOND),
        (lambda m, x: m.embed(x).sum(1), torch.ones(BATCH, dtype=torch.long), FIRST),
        (lambda m, x: m.gru(m.embed(x))[0].squeeze(), torch.ones(1, TIME, dtype=torch.long), Rows(1, 0, is_told=True)),
    ],
)
def test_layers_and_outputs_tell_which_dimension_is_the_batch(
    run: Callable[[Model, torch.Tensor], Any], x: torch.Tensor, expected: Rows
) -> None:
    assert rows(run, x) == expected


@pytest.mark.parametrize(
    ("run", "x"),
    [
        (lambda m, x: m.embed(x), TOKENS),
        (lambda m, x: m.query(m.embed(x)).sum(), TOKENS),
        (lambda m, x: m.query(x), torch.ones(BATCH, TIME, WIDTH)),
        # Attention with time first on (batch, time), and a classifier of what it returns: one of them is wrong.
        (lambda m, x: m.attention(*[m.embed(x)] * 3)[0].mean(1), TOKENS),
        (lambda m, x: m.query(x), torch.ones(WIDTH)),
        (lambda m, x: m.lstm(m.embed(x).unsqueeze(1))[0].sum(), torch.ones(TIME, dtype=torch.long)),
        (lambda m, x: torch.bmm(x, m.experts).sum(), torch.ones(BATCH, TIME, WIDTH)),
        (lambda m, x: m.query.weight[:BATCH] * x, torch.ones(1)),
    ],
)
def test_where_nothing_tells_or_both_do_it_is_not_known(run: Callable[[Model, torch.Tensor], Any], x: Any) -> None:
    assert rows(run, x) is None


@pytest.mark.parametrize("x", [torch.ones(BATCH, WIDTH), torch.ones(BATCH, 3, 4, 4)])
def test_rows_of_features_and_images_are_samples_by_custom(x: torch.Tensor) -> None:
    assert rows(lambda _, x: x.sum(), x) == Rows(BATCH)


def test_rows_of_features_that_layers_take_for_time_are_not_counted() -> None:
    def run(model: Model, x: torch.Tensor) -> torch.Tensor:
        return model.lstm(x.unsqueeze(-1).expand(-1, -1, WIDTH))[0].sum()

    assert rows(run, torch.ones(TIME, BATCH)) is None
    assert rows(run, torch.ones(TIME, 1)) == Rows(TIME)


NODES, PARTS = 20, Rows(0, is_told=True)


@pytest.mark.parametrize(
    ("x", "beside"),
    [
        (torch.ones(NODES, WIDTH), [0, 4, 20]),
        (torch.ones(NODES, WIDTH), [4, 20]),
        (torch.ones(NODES, WIDTH), [4, 16]),
        (torch.ones(NODES, WIDTH), [0] * 4 + [1] * 7 + [2] * 9),
        (torch.ones(NODES, dtype=torch.long), [*range(4), *range(16)]),
        (torch.ones(1, NODES, dtype=torch.long), [[*range(4), *range(16)]]),
        (torch.ones(1, NODES, dtype=torch.long), [0, 4, 20]),
        (torch.ones(1, NODES, dtype=torch.long), [[0] * 4 + [1] * 7 + [2] * 9]),
        (torch.ones(1, NODES, dtype=torch.long), [0] * 4 + [1] * 16),
    ],
)
def test_numbers_beside_rows_tell_that_several_are_a_sample(x: torch.Tensor, beside: list[Any]) -> None:
    assert rows(lambda m, x: m.query(x.new_ones(NODES, WIDTH).float()).sum(), x, torch.tensor(beside)) == PARTS


@pytest.mark.parametrize(
    ("x", "beside"),
    [
        (torch.ones(NODES, WIDTH), torch.tensor([3, 0, 1, 2, 0] * 4)),  # classes
        (torch.ones(NODES, WIDTH), torch.arange(NODES)),
        (torch.ones(NODES, WIDTH), torch.arange(NODES + 1)),
        (torch.ones(NODES, WIDTH), torch.zeros(NODES, dtype=torch.long)),
        (torch.ones(NODES, WIDTH), torch.tensor([20])),
        (torch.ones(NODES, WIDTH), torch.tensor([0.0, 4.0, 20.0])),
        (torch.ones(NODES, WIDTH), torch.ones(2, 5, dtype=torch.long)),
        (torch.ones(NODES, WIDTH), torch.ones(2, 3, dtype=torch.long, device="meta")),
        (torch.ones(NODES, WIDTH), torch.ones(3, dtype=torch.long, device="meta")),
        (torch.ones(NODES, WIDTH), torch.ones(NODES, NODES, dtype=torch.long).to_sparse()),
    ],
)
def test_other_numbers_beside_rows_do_not(x: torch.Tensor, beside: torch.Tensor) -> None:
    assert rows(lambda m, x: m.query(x).sum(), x, beside) == Rows(NODES)


def test_a_mask_or_segments_of_one_text_are_no_parts() -> None:
    text, beside = torch.ones(1, NODES, dtype=torch.long), torch.tensor([[0] * 4 + [1] * 16])
    assert rows(lambda m, x: m.gru(m.embed(x))[0], text, beside) == Rows(1, 0, is_told=True)


@pytest.mark.parametrize(
    ("run", "x", "expected"),
    [
        (lambda m, x: m.query(x)[:3], torch.ones(NODES, WIDTH), PARTS),
        (
            lambda m, x: nn.functional.batch_norm(m.query(x), None, None, training=True)[:3],
            torch.ones(NODES, WIDTH),
            PARTS,
        ),
        (lambda m, x: m.query(x).sum(0, keepdim=True), torch.ones(NODES, WIDTH), PARTS),
        (lambda m, x: (m.query(x).sum(), m.query(x)[:3]), torch.ones(NODES, WIDTH), Rows(NODES)),
        (lambda m, x: (m.query(x).sum(), m.query(x)[:3].detach()), torch.ones(NODES, WIDTH), Rows(NODES)),
        (lambda m, x: m.query(x).repeat(2, 1), torch.ones(NODES, WIDTH), Rows(NODES)),
        (lambda m, _: m.query.weight, torch.ones(0, WIDTH), Rows(0)),
    ],
)
def test_a_model_that_returns_other_rows_is_called_with_parts_of_samples(
    run: Callable[[Model, torch.Tensor], Any], x: torch.Tensor, expected: Rows
) -> None:
    assert rows(run, x) == expected


def test_micro_batches_in_one_buffer_are_told_apart() -> None:
    dims, model, buffer = BatchDims(), Model(lambda _, x: x.sum()), torch.empty(NODES, WIDTH)
    for values in torch.randn(2, NODES, WIDTH):
        given = dims.given(model, buffer.copy_(values))
        with given.looking():
            given.returned(model(buffer))
        assert given.rows() == Rows(NODES)


def test_two_dimensions_of_one_size_need_no_word() -> None:
    assert rows(lambda m, x: m.embed(x), torch.ones(TIME, TIME, dtype=torch.long)) == Rows(TIME)


def test_of_nested_tensors_the_rows_count() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    assert rows(lambda _, x: x.to_padded_tensor(0.0).sum(), nested) == Rows(2, 0, is_told=True)


def test_what_is_compiled_tells_by_its_output_alone() -> None:
    assert rows(lambda m, x: m.lstm(m.embed(x))[0], BY_TIME, is_compiled=True) is None
    assert rows(lambda m, x: m.embed(x).mean(0), BY_TIME, is_compiled=True) == SECOND


def test_each_kind_of_tensor_is_looked_at_once() -> None:
    dims, model = BatchDims(), Model(lambda _, x: x)
    given = dims.given(model, TOKENS)
    with given.looking():
        pass
    given.returned(TOKENS)
    assert not dims.is_new(dims.given(model, BY_TIME))
    assert dims.is_new(dims.given(model, TOKENS.float()))
    assert dims.is_new(dims.given(Model(lambda _, x: x), TOKENS))


def test_of_dimensions_that_are_alike_nothing_is_remembered_for_others() -> None:
    dims, model = BatchDims(), Model(lambda m, x: m.lstm(m.embed(x)))
    found = []
    for time in (BATCH, TIME):
        tokens = torch.ones(time, BATCH, dtype=torch.long)
        given = dims.given(model, tokens)
        with given.looking():
            given.returned(model(tokens))
        found.append(given.rows())
    assert [rows.number for rows in found if rows is not None] == [BATCH, BATCH]


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
    assert times_held(tensor) == 0


@pytest.mark.parametrize("sample", [ROWS, IMAGES, TOKENS, ROWS.bool()])
def test_rows_that_are_there_again_are_counted(sample: torch.Tensor) -> None:
    expected = 1 if sample.dtype == torch.bool else 3
    assert times_held(torch.cat([sample] * 3)) == expected, "rows that many others are like tell nothing"


@pytest.mark.parametrize("num_rows", [16, 64, 65, 100])
@pytest.mark.parametrize("number", [2, 4, 6, 10, 16])
def test_all_copies_of_rows_are_counted(num_rows: int, number: int) -> None:
    rows = torch.randn(num_rows, 20)
    assert times_held(rows.repeat(number, 1)) == number
    assert times_held(torch.cat([rows, noisy(rows)]).repeat(number, 1)) == 0


GRIDS = [torch.cartesian_prod(torch.rand(several).sort().values, torch.linspace(0, 1, 50)) for several in (2, 8)]


@pytest.mark.parametrize("grid", [*GRIDS, torch.cat([GRIDS[0], torch.zeros(100, 1)], 1)])
def test_coordinates_of_a_grid_are_no_views(grid: torch.Tensor) -> None:
    assert times_held(grid) == 1
    assert times_held(grid.repeat(3, 1)) == 3
    assert times_held(grid + 0.001 * torch.randn_like(grid)) == 0, "rows that differ as if noise were added"


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
    assert times_held(tensor) == 1


@pytest.mark.parametrize("change", [noisy, lambda x: x.flip(1)])
def test_rows_resemble_those_in_their_place_alone(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    some, others = some_rows(ROWS), some_rows(change(ROWS))
    assert some is not None
    assert others is not None
    assert are_alike(some, others)
    assert not are_alike(some, others.roll(1, 0))
    assert not are_alike(some, others[:-1])


def test_few_elements_of_large_tensors_are_looked_at() -> None:
    rows = some_rows(torch.zeros(10_000, 10_000))
    assert rows is not None
    assert rows.numel() <= 4 * MOST_ROWS * MOST_ELEMENTS
