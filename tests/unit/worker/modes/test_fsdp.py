from __future__ import annotations

import functools
import pickle
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.distributed.fsdp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from dpdoctor.records import Collective, Counters
from dpdoctor.worker.base.mode import ConversionError, Evidence, Passes, WrapOptions
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.modes import _hooks, fsdp
from dpdoctor.worker.modes._shards import Shards
from dpdoctor.worker.modes.fsdp import FSDP

BLOCK_BYTES, ROOT_BYTES = (8 * 8 + 8) * 4, (2 * 8 + 2) * 4


def options(**fields: Any) -> WrapOptions:
    """Return how to wrap; without `warn`, a warning fails the test."""
    return WrapOptions(**{"has_unused": False, "fsdp_wrap": None, "optimizers": (), "warn": pytest.fail} | fields)


class Tasks(nn.Module):
    """Has a block for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)


class Metric(nn.Module):
    """Is copied and pickled with all that it has, as metrics of torchmetrics are."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def test_a_part_without_parameters_has_nothing_to_gather_and_is_pickled_as_it_is() -> None:
    model = Tasks()
    model.metric = Metric()
    shards = object.__new__(Shards)
    shards._parts = []
    shards._route(model, model)
    assert shards._parts == [model.blocks, *model.blocks, model.head]
    assert isinstance(pickle.loads(pickle.dumps(model.metric)), Metric)


@pytest.mark.parametrize(
    ("ran", "blocks_gathered", "ok"),
    [((0, 1, 2), 3, True), ((0, 1, 2), 2, False), ((1,), 1, True), ((1,), 0, False), ((), 0, True), ((1,), 3, True)],
)
def test_only_blocks_that_ran_in_the_step_must_have_been_gathered(
    monkeypatch: pytest.MonkeyPatch, ran: tuple[int, ...], blocks_gathered: int, ok: bool | None
) -> None:
    monkeypatch.setattr(fsdp, "_world_size", lambda: 2)
    model, mode = Tasks(), FSDP()
    mode._units[id(model)] = fsdp._units(model, list(model.blocks))
    accumulated = Counter(id(p) for place in ran for p in model.blocks[place].parameters())
    accumulated.update(map(id, model.head.parameters()))
    num_bytes = ROOT_BYTES + 2 * blocks_gathered * BLOCK_BYTES
    evidence = Evidence(
        checksums=(1, 2),
        moved=True,
        unwrapped=(),
        forwards={id(model): 1},
        gradient_bytes=0,
        accumulated=accumulated,
        counters=Counters(operators=1, collectives={"all_gather": Collective(count=1, num_bytes=num_bytes)}, inputs=()),
    )
    (check,) = (check for check in mode.checks(evidence) if check.name == "parameters gathered")
    assert check.ok is ok


def test_parameters_that_were_let_go_of_are_why_a_gradient_penalty_fails_and_a_unit_that_is_gone_past() -> None:
    def explained(passes: Passes) -> str | None:
        mode = FSDP()
        mode.passes = passes
        with pytest.raises(RuntimeError) as raised:
            raise RuntimeError("The tensor has a non-zero number of elements, but its data is not allocated yet.\n  If")
        return mode.explain(raised.value, "train.py:9")

    assert "that at train.py:9 needs them and does not come there" in (explained(Passes()) or "")
    assert "train.py:5 asks for gradients of gradients" in (explained(Passes(with_graph="train.py:5")) or "")
    assert explained(Passes(repeated="train.py:8")) is None


@pytest.mark.usefixtures("ranks")
def test_a_move_that_changes_nothing_leaves_shards_alone_which_a_profiler_holds(patches: Patches) -> None:
    mode, model, other = FSDP(), nn.Linear(2, 2), nn.Linear(2, 2)
    mode.prepare(patches)
    call = mode.convert(model, options())
    with torch.profiler.profile(record_shapes=True):
        call(torch.ones(1, 2)).sum().backward()
        assert model.to("cpu").float() is model
    mode.convert(other, options())  # of what the profiler held it may keep hold
    assert other.double().weight.dtype is torch.float64


def test_a_class_that_nothing_can_be_derived_from_in_its_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fully_shard(*_: object, **__: object) -> None:
        raise TypeError("__class__ assignment: 'FSDPTasks' object layout differs from 'Tasks'")

    monkeypatch.setattr(torch.distributed.fsdp, "fully_shard", fully_shard)
    with pytest.raises(ConversionError, match="Python refuses for one of Tasks"):
        fsdp._shard(Tasks(), None)  # type: ignore[arg-type]


def test_parameters_of_several_types_in_a_unit_are_why_fsdp_cannot_train_it() -> None:
    error = AssertionError(f"FSDP expects uniform original parameter dtype but got {{{torch.float32}}}")
    told = FSDP().explain(error, "train.py:3") or ""
    assert "train.py:3 calls a model that mixes them" in told
    assert "needs them whole" not in told


def test_what_the_scripts_own_class_has_not_is_no_matter_of_fsdp() -> None:
    def explained(text: str) -> str | None:
        with pytest.raises(AttributeError) as raised:
            raise AttributeError(text)
        return FSDP().explain(raised.value, "train.py:9")

    assert explained("'FSDPNet' object has no attribute 'module'") is None
    assert explained("'DTensor' object has no attribute 'module'") is not None


def test_where_a_library_needs_parameters_whole_its_line_is_told_beside_the_scripts() -> None:
    held: dict[str, Any] = {}
    raises = "def fit():\n    raise RuntimeError('mixed torch.Tensor and DTensor')"
    exec(compile(raises, "/x/site-packages/rl/fit.py", "exec"), held)
    with pytest.raises(RuntimeError) as raised:
        held["fit"]()
    assert "which needs them whole at /x/site-packages/rl/fit.py:2 (" in (FSDP().explain(raised.value, "a.py:3") or "")
    assert "which needs them whole (" in (FSDP().explain(raised.value, "/x/site-packages/rl/fit.py:2") or "")


class OwnNames(nn.Linear):
    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:  # type: ignore[override]
        return super().named_parameters(prefix, recurse)


class OwnParameters(nn.Linear):
    def parameters(self) -> Any:  # type: ignore[override]
        return super().parameters()


@pytest.mark.usefixtures("ranks")
def test_methods_that_a_script_overrides_are_not_asked_but_by_torch(patches: Patches) -> None:
    mode = FSDP()
    mode.prepare(patches)
    with pytest.raises(ConversionError, match=r"calls named_parameters\(remove_duplicate=False\) .* let it take \*\*"):
        mode.convert(OwnNames(2, 2), options())
    model = nn.Sequential(OwnParameters(2, 2), nn.ReLU())
    with torch.no_grad():
        mode.convert(model, options(fsdp_wrap=("OwnParameters",)))(torch.ones(1, 2))
        mode.without_gradients(model, model.forward)(torch.ones(1, 2))


class Clips:
    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-1, 1)


def clips(gradient: torch.Tensor, limit: float = 1) -> torch.Tensor:
    return gradient.clamp(-limit, limit)


CLIPS = f"clips at {__file__}:{clips.__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("hook", "name"),
    [
        (clips, CLIPS),
        (functools.partial(clips, limit=2), CLIPS),
        (Clips(), f"Clips at {__file__}:{Clips.__call__.__code__.co_firstlineno}"),
        (torch.zeros_like, torch.zeros_like.__qualname__),
    ],
)
def test_a_hook_on_a_parameter_is_refused_by_name_also_while_it_is_frozen(hook: Callable[..., Any], name: str) -> None:
    model = nn.Linear(2, 2)
    handle = model.bias.register_hook(hook)
    said = re.escape(f"of the parameter bias, and {name}, which the script registered on it (register_hook)")
    for is_trained in (True, False):
        model.bias.requires_grad_(is_trained)
        with pytest.raises(ConversionError, match=said):
            fsdp._refuse_hooks(model, pytest.fail)
    handle.remove()
    fsdp._refuse_hooks(model, pytest.fail)


@pytest.mark.parametrize("by", ["register_hook", "register_prehook"])
def test_a_hook_on_the_node_that_accumulates_a_gradient_is_refused_by_name_and_found_late(by: str) -> None:
    model = nn.Linear(2, 2)
    node = model.bias.expand_as(model.bias).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    handle = getattr(node, by)(clips)
    for is_trained in (True, False):
        model.bias.requires_grad_(is_trained)
        with pytest.raises(
            ConversionError, match=re.escape(f"{CLIPS}, which the script registered on it ({by} of its")
        ):
            fsdp._refuse_hooks(model, pytest.fail)
        assert f"{CLIPS}, registered on bias ({by} of its AccumulateGrad node), does not run" in fsdp._late_hook(model)
    handle.remove()
    fsdp._refuse_hooks(model, pytest.fail)
    assert fsdp._late_hook(model) == ""


def test_a_hook_that_fsdp_runs_is_no_late_one_and_integers_have_none() -> None:
    model = nn.Linear(2, 2)
    model.register_parameter("codes", nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False))
    fsdp._refuse_hooks(model, pytest.fail)
    model.bias.register_post_accumulate_grad_hook(lambda _: None)
    assert fsdp._late_hook(model) == ""


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_hook_of_several_parameters_is_refused_and_hooks_of_modules_and_outputs_are_none_of_a_parameter(
    mode: Literal["all", "any"],
) -> None:
    model = nn.Linear(2, 2)
    model.register_full_backward_hook(lambda *_: None)
    model(torch.ones(1, 2)).register_hook(clips)
    fsdp._refuse_hooks(model, pytest.fail)
    handle = torch.autograd.graph.register_multi_grad_hook(tuple(model.parameters()), clips, mode=mode)
    said = re.escape(f"of the parameter weight, and {CLIPS}, which the script registered on it ({_hooks.ON_TENSORS})")
    with pytest.raises(ConversionError, match=said):
        fsdp._refuse_hooks(model, pytest.fail)
    handle.remove()
    fsdp._refuse_hooks(model, pytest.fail)


def logs(gradient: torch.Tensor) -> None:
    """Look at a gradient, as a function of wandb's."""


logs.__module__ = "wandb.integration.torch.wandb_torch"


@pytest.mark.usefixtures("ranks")
def test_hooks_of_wandb_are_told_and_any_other_beside_them_is_refused_before_sharding_and_after(
    patches: Patches,
) -> None:
    model, mode, told = nn.Linear(2, 2), FSDP(), set()
    for parameter in model.parameters():
        parameter.register_hook(logs)
    fsdp._refuse_hooks(model, told.add)
    assert told == {fsdp.UNLOGGED}
    model.bias.register_hook(clips)
    with pytest.raises(ConversionError, match=re.escape(f"of the parameter bias, and {CLIPS}")):
        fsdp._refuse_hooks(model, told.add)

    told.clear()
    model, own = nn.Linear(2, 2), nn.Parameter(distribute_tensor(torch.ones(2), init_device_mesh("cpu", (1,))))
    mode.prepare(patches)
    own.register_hook(logs)
    mode.convert(model, options(warn=told.add))
    own.register_hook(clips)
    (2 * model.weight).register_hook(hook=clips)
    assert not told
    model.weight.register_hook(logs)
    assert told == {fsdp.UNLOGGED}
    with pytest.raises(ConversionError, match=re.escape(f"{CLIPS}, registered on one at {__file__}")):
        model.weight.register_hook(clips)


@pytest.mark.usefixtures("ranks")
def test_a_module_with_weights_of_another_that_was_called_is_refused_by_name(patches: Patches) -> None:
    mode = FSDP()
    mode.prepare(patches)
    encoder, decoder = nn.Sequential(nn.Embedding(8, 4)), nn.Linear(4, 8)
    decoder.weight = encoder[0].weight
    mode.convert(encoder, options())(torch.zeros(2, dtype=torch.long))
    for module in (decoder, nn.Sequential(encoder, nn.ReLU())):
        with pytest.raises(ConversionError, match="weight was sharded as one of Sequential, which the script called"):
            mode.convert(module, options())
