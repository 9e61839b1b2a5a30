from __future__ import annotations

import pytest
from torch import nn

from dpdoctor.worker.wrap import shard_units


class Block(nn.Module):
    """A layer of more than LEAST_PARAMETERS parameters, with a small part of its own."""

    def __init__(self, width: int = 400) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(width, width), nn.LayerNorm(width)


class Bundle(nn.Module):
    """Blocks within a block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([Block(), Block()])


def test_repeated_blocks_are_found_in_order_wherever_they_hang() -> None:
    blocks = [Block() for _ in range(3)]
    root = nn.Sequential(nn.Embedding(9, 400), nn.ModuleList(blocks[:2]), nn.ModuleDict({"last": blocks[2]}))
    assert shard_units.repeated_blocks(root) == blocks


def test_the_outermost_of_nested_blocks_are_taken() -> None:
    bundles = [Bundle(), Bundle()]
    assert shard_units.repeated_blocks(nn.Sequential(*bundles)) == bundles
    alone = Bundle()
    assert shard_units.repeated_blocks(nn.Sequential(alone)) == list(alone.inner)


@pytest.mark.parametrize(
    "root",
    [
        nn.Sequential(Block(), nn.Linear(400, 400)),
        nn.Sequential(Block(30), Block(30)),
        nn.Sequential(nn.Linear(400, 400), nn.Linear(400, 400)),
        nn.Sequential(nn.Sequential(nn.Linear(400, 400)), nn.Sequential(nn.Linear(400, 400))),
        nn.Linear(3, 3),
    ],
    ids=["once", "small", "without children", "containers", "alone"],
)
def test_what_is_no_block(root: nn.Module) -> None:
    assert shard_units.repeated_blocks(root) == []


def test_a_block_used_twice_is_one_block() -> None:
    block, other = Block(), Block()
    assert shard_units.repeated_blocks(nn.Sequential(block, other, nn.Sequential(block))) == [block, other]


def test_a_block_that_shares_a_parameter_with_the_rest_stays_outside() -> None:
    blocks = [Block() for _ in range(3)]
    head = nn.Linear(400, 400)
    head.weight = blocks[1].mix.weight
    root = nn.Sequential(*blocks, head)
    assert shard_units.repeated_blocks(root) == [blocks[0], blocks[2]]
    assert shard_units.named_blocks(root, ["Block"]) == [blocks[2], blocks[0]]


def test_a_module_that_two_blocks_hold_lies_in_neither() -> None:
    bundles = [Bundle(), Bundle()]
    bundles[0].embedding = bundles[1].embedding = nn.Embedding(9, 400)
    inner = [*bundles[0].inner, *bundles[1].inner]
    root = nn.Sequential(*bundles)
    assert shard_units.repeated_blocks(root) == inner
    assert shard_units.named_blocks(root, ["Bundle"]) == []


def test_a_block_that_shares_only_within_itself_is_kept() -> None:
    block, other = Block(), Block()
    block.norm.bias = block.norm.weight
    assert shard_units.repeated_blocks(nn.Sequential(block, other)) == [block, other]


def test_named_blocks_come_inner_ones_first() -> None:
    bundle = Bundle()
    root = nn.Sequential(bundle)
    assert shard_units.named_blocks(root, ["Bundle", "Block"]) == [bundle.inner[1], bundle.inner[0], bundle]


def test_a_class_that_the_model_does_not_hold_is_named() -> None:
    with pytest.raises(ValueError, match=r"names Bottleneck, but .* it holds Block, LayerNorm, Linear"):
        shard_units.named_blocks(nn.Sequential(Block()), ["Bottleneck"])
    with pytest.raises(ValueError, match="names Linear"):
        shard_units.named_blocks(nn.Linear(3, 3), ["Linear"])
