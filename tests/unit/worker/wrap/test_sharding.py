from __future__ import annotations

import functools
import gc
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpdoctor.worker.wrap.sharding import Parameters, named_blocks, repeated_blocks, replacements, repoint


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
    assert repeated_blocks(root) == blocks


def test_the_outermost_of_nested_blocks_are_taken() -> None:
    bundles = [Bundle(), Bundle()]
    assert repeated_blocks(nn.Sequential(*bundles)) == bundles
    alone = Bundle()
    assert repeated_blocks(nn.Sequential(alone)) == list(alone.inner)


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
    assert repeated_blocks(root) == []


def test_a_block_used_twice_is_one_block() -> None:
    block, other = Block(), Block()
    assert repeated_blocks(nn.Sequential(block, other, nn.Sequential(block))) == [block, other]


def test_a_block_that_shares_a_parameter_with_the_rest_stays_outside() -> None:
    blocks = [Block() for _ in range(3)]
    head = nn.Linear(400, 400)
    head.weight = blocks[1].mix.weight
    root = nn.Sequential(*blocks, head)
    assert repeated_blocks(root) == [blocks[0], blocks[2]]
    assert named_blocks(root, ["Block"]) == [blocks[2], blocks[0]]


def test_a_module_that_two_blocks_hold_lies_in_neither() -> None:
    bundles = [Bundle(), Bundle()]
    bundles[0].embedding = bundles[1].embedding = nn.Embedding(9, 400)
    inner = [*bundles[0].inner, *bundles[1].inner]
    root = nn.Sequential(*bundles)
    assert repeated_blocks(root) == inner
    assert named_blocks(root, ["Bundle"]) == []


def test_a_block_that_shares_only_within_itself_is_kept() -> None:
    block, other = Block(), Block()
    block.norm.bias = block.norm.weight
    assert repeated_blocks(nn.Sequential(block, other)) == [block, other]


def test_named_blocks_come_inner_ones_first() -> None:
    bundle = Bundle()
    root = nn.Sequential(bundle)
    assert named_blocks(root, ["Bundle", "Block"]) == [bundle.inner[1], bundle.inner[0], bundle]


def test_a_class_that_the_model_does_not_hold_is_named() -> None:
    with pytest.raises(ValueError, match=r"names Bottleneck, but .* it holds Block, LayerNorm, Linear"):
        named_blocks(nn.Sequential(Block()), ["Bottleneck"])
    with pytest.raises(ValueError, match="names Linear"):
        named_blocks(nn.Linear(3, 3), ["Linear"])


def replaced(module: nn.Module) -> Parameters:
    """Give a linear layer a new weight, twice as large, and return what changed."""
    before = dict(module.named_parameters(remove_duplicate=False))
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(2 * part.weight.detach())
    return replacements(before, module)


def doubled(value: torch.Tensor, like: nn.Parameter) -> torch.Tensor:
    assert like.shape == value.shape
    return 2 * value


def unheard(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def module() -> nn.Linear:
    return nn.Linear(3, 2)


def test_only_what_changed_is_replaced(module: nn.Linear) -> None:
    old = module.weight
    changed = replaced(module)
    assert list(changed) == [id(old)]
    assert changed[id(old)] == (old, module.weight)
    assert replacements(dict(module.named_parameters()), module) == {}


def test_what_the_script_noted_on_a_parameter_is_on_the_new_one(module: nn.Linear) -> None:
    module.weight.decays = False
    repoint(replaced(module), [], doubled, unheard)
    assert module.weight.decays is False


def test_optimizers_train_the_new_parameters_with_their_old_state(module: nn.Linear) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    momentum, bias_state = optimizer.state[module.weight]["momentum_buffer"].clone(), optimizer.state[module.bias]
    repoint(replaced(module), [optimizer], doubled, unheard)
    assert optimizer.param_groups[0]["params"][0] is module.weight
    assert optimizer.param_groups[0]["params"][1] is module.bias
    assert set(optimizer.state) == {module.weight, module.bias}
    assert torch.equal(optimizer.state[module.weight]["momentum_buffer"], 2 * momentum)
    assert optimizer.state[module.bias] is bias_state
    before = module.weight.detach().clone()
    module(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(module.weight, before)


def test_a_step_whose_closure_replaces_parameters_goes_on_with_the_state_that_it_holds(module: nn.Linear) -> None:
    optimizer = torch.optim.LBFGS(module.parameters())
    held = optimizer.state[module.weight]
    repoint(replaced(module), [optimizer], doubled, unheard)
    held["n_iter"] = 1
    assert optimizer.state[module.weight] == {"n_iter": 1}


def test_state_that_has_another_shape_is_kept_as_it_is(module: nn.Linear) -> None:
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    repoint(replaced(module), [optimizer], doubled, unheard)
    assert optimizer.state[module.weight]["step"] == 1


def test_lists_dicts_and_objects_that_hold_a_parameter_hold_the_new_one(module: nn.Linear) -> None:
    old = module.weight
    held, named, thing = [module.bias, old, old], {"w": old, "b": module.bias}, SimpleNamespace(weight=old)
    repoint(replaced(module), [], doubled, unheard)
    assert held[1] is held[2] is named["w"] is thing.weight is module.weight
    assert held[0] is named["b"] is module.bias


def test_sets_keys_queues_and_closures_that_hold_a_parameter_hold_the_new_one(module: nn.Linear) -> None:
    old = module.weight
    held, names, queue = {old, module.bias}, {old: "w", module.bias: "b"}, deque([old])

    def close() -> torch.Tensor:
        return old

    repoint(replaced(module), [], doubled, unheard)
    assert old is close() is queue[0] is module.weight
    assert held == {module.weight, module.bias}
    assert list(names.items()) == [(module.weight, "w"), (module.bias, "b")]


def test_tuples_of_parameters_are_made_anew_wherever_they_are_held(module: nn.Linear) -> None:
    thing, named = SimpleNamespace(held=(module.weight, 1)), list(module.named_parameters())
    held, nested, fixed = (module.weight, module.bias), {"a": [(0, (module.weight,))]}, frozenset([module.weight])
    before, is_same = held, held is thing
    repoint(replaced(module), [], doubled, unheard)
    assert held is before
    assert (is_same, held[0], held[1]) == (False, module.weight, module.bias)
    assert thing.held == (module.weight, 1)
    assert nested["a"][0][1][0] is module.weight
    assert fixed == {module.weight}
    assert named == [("weight", module.weight), ("bias", module.bias)]


def test_the_local_variables_of_functions_that_run_hold_the_new_parameter(module: nn.Linear) -> None:
    def train(weight: torch.Tensor) -> torch.Tensor:
        repoint(replaced(module), [], doubled, unheard)
        return weight

    assert train(module.weight) is module.weight


def test_partial_functions_that_hold_a_parameter_hold_the_new_one(module: nn.Linear) -> None:
    norms = functools.partial(dict, [("weight", module.weight)], bias=module.bias)
    vars(norms)["note"] = module.weight
    repoint(replaced(module), [], doubled, unheard)
    assert norms() == {"weight": module.weight, "bias": module.bias}
    assert vars(norms)["note"] is module.weight


@dataclass(frozen=True, slots=True)
class Pair:
    first: nn.Parameter
    second: nn.Parameter


class Named(Pair):
    __slots__ = ("empty", "third")


def test_objects_with_slots_that_hold_a_parameter_hold_the_new_one(module: nn.Linear) -> None:
    pair = Named(module.weight, module.bias)
    object.__setattr__(pair, "third", module.weight)
    repoint(replaced(module), [], doubled, unheard)
    assert pair.first is pair.third is module.weight
    assert pair.second is module.bias


def test_what_holds_a_parameter_out_of_reach_is_named(module: nn.Linear) -> None:
    told: list[str] = []
    held = iter((module.weight,))
    repoint(replaced(module), [], doubled, told.append)
    assert next(held) is not module.weight
    assert [text for text in told if "tuple_iterator" in text] == told != []


def test_shared_parameters_are_still_shared(module: nn.Linear) -> None:
    twin = nn.Linear(3, 2)
    twin.weight = module.weight
    held = [module.weight]
    before = dict(nn.ModuleList([module, twin]).named_parameters(remove_duplicate=False))
    module.weight = twin.weight = nn.Parameter(torch.zeros(2, 3))
    repoint(replacements(before, nn.ModuleList([module, twin])), [], doubled, unheard)
    assert held[0] is module.weight is twin.weight


def test_nothing_to_replace_touches_nothing(module: nn.Linear) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = list(optimizer.param_groups[0]["params"])
    repoint({}, [optimizer], doubled, unheard)
    assert all(a is b for a, b in zip(before, module.parameters(), strict=True))
    gc.collect()
