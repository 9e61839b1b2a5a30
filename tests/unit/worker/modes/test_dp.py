from __future__ import annotations

import copy
import gc
import io
import os
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.records import Check, Counters
from dpdoctor.spec import DEVICE_IDS_VARIABLE
from dpdoctor.worker.base.mode import ConversionError, Evidence, WrapOptions
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.modes._replicas import Call, Parallel
from dpdoctor.worker.modes.dp import DP, refuse_elsewhere
from tests.builders.cpu_parallel import CpuDP, CpuParallel, use_threads
from tests.builders.models import Net, X, sgd
from tests.builders.rig import Rig


@pytest.fixture
def mode(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> DP:
    use_threads(monkeypatch)
    os.environ.pop(DEVICE_IDS_VARIABLE, None)
    made = CpuDP()
    made.prepare(patches)
    return made


@pytest.fixture
def rig(patches: Patches, mode: DP) -> Rig:
    return Rig(patches, mode)


def parallel_of(mode: DP, module: nn.Module, said: list[str] | None = None) -> Parallel:
    """Return what stands for the module's call; `said` gets the warnings."""
    heard = [] if said is None else said
    parallel = mode.convert(module, WrapOptions(has_unused=False, fsdp_wrap=None, optimizers=(), warn=heard.append))
    assert isinstance(parallel, Parallel)
    return parallel


def judged(mode: DP, *modules: nn.Module, forwards: int = 1) -> list[Check]:
    """Return the mode's own checks after a step with so many forwards of each module."""
    evidence = Evidence(
        checksums=(1,),
        moved=True,
        unwrapped=(),
        forwards={id(module): forwards for module in modules},
        gradient_bytes=0,
        accumulated={},
        counters=Counters(operators=0, collectives={}, inputs=()),
    )
    wrapped, *own = mode.checks(evidence)
    assert wrapped.name == "modules"
    return own


def numbers(text: str) -> list[int]:
    """Return the numbers in a check's text: of replicas, of GPUs and of training forwards."""
    return [int(number) for number in re.findall(r"\d+", text)]


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


def test_replicas_train_the_scripts_own_module(rig: Rig, mode: DP) -> None:
    model, alone = Net(), Net()
    alone.load_state_dict(model.state_dict())
    held = sgd(model)
    model(X).pow(2).mean().backward()
    alone.forward(X).pow(2).mean().backward()
    assert gradients(model)
    for found, expected in zip(gradients(model), gradients(alone), strict=True):
        torch.testing.assert_close(found, expected)
    held.step()
    assert rig.wrapping.modules == [model]
    (check,) = judged(mode, model)
    assert (check.ok, numbers(check.text)) == (True, [2, 2, 1])


def test_replicas_still_run_when_nobody_looks_for_modules_any_more(rig: Rig, mode: DP) -> None:
    model = Net()
    held = sgd(model)
    for _ in range(3):
        model(X).mean().backward()
        held.step()
        rig.wrapping.settle()
    assert [step.counted.samples_entered for step in rig.steps] == [4, 4, 4]
    (check,) = judged(mode, model, forwards=2)
    assert (check.ok, numbers(check.text)) == (True, [2, 2, 2])
    assert "training forwards" in check.text


def test_each_replica_runs_once_on_its_part(mode: DP) -> None:
    sizes: list[int] = []

    class Counts(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().forward(x)

    parallel = parallel_of(mode, Counts())
    for rows in (4, 5, 1):
        parallel(torch.ones(rows, 3))
    assert sorted(sizes) == [1, 2, 2, 2, 3]
    assert list(parallel.calls) == [Call(made=2, entered=2), Call(made=2, entered=2), Call(made=1, entered=1)]


@pytest.mark.parametrize(
    ("device_ids", "rows", "text"),
    [
        ([0, 0], 4, "2 replicas on one GPU ran in 1 training forward of a step"),
        ([0, 0, 1], 3, "3 replicas on 2 GPUs ran in 1 training forward of a step"),
        ([0, 1], 1, "1 part of a batch too small for 2 replicas on 2 GPUs ran"),
        ([0, 1, 2, 3], 5, "3 parts of a batch too small for 4 replicas on 4 GPUs ran"),
    ],
)
def test_the_proof_says_how_many_replicas_ran(mode: DP, device_ids: list[int], rows: int, text: str) -> None:
    model = CpuParallel(Net(), device_ids)
    parallel_of(mode, model)(torch.ones(rows, 3))
    (check,) = judged(mode, model)
    assert (check.name, check.ok, check.text) == ("replicas", True, text)


def test_a_mode_whose_replicas_never_ran_is_not_proved(mode: DP) -> None:
    model = Net()
    parallel_of(mode, model)
    (check,) = judged(mode, model)
    assert check.ok is False
    assert "past it" in check.text


def test_a_replica_that_was_made_but_did_not_run_is_named(mode: DP, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    parallel = parallel_of(mode, model)
    monkeypatch.setattr(CpuParallel, "parallel_apply", lambda *_: [torch.ones(2, 1)] * 2)
    parallel(X)
    (check,) = judged(mode, model)
    assert check.ok is False
    assert "0 of 2 replicas ran" in check.text


def test_only_the_forwards_of_the_profiled_step_are_judged(mode: DP) -> None:
    model, other = Net(), Net()
    parallel = parallel_of(mode, model)
    parallel_of(mode, other)
    parallel(torch.ones(1, 3))
    parallel(X)
    (check,) = judged(mode, model)
    assert (check.ok, numbers(check.text)) == (True, [2, 2, 1])
    assert judged(mode) == []


def test_one_device_makes_no_replicas_and_the_proof_says_so(mode: DP) -> None:
    model = CpuParallel(Net(), [0])
    parallel_of(mode, model)(X)
    (check,) = judged(mode, model)
    assert check.ok is None
    assert "--dp-devices 0,0" in check.text


def test_without_a_gpu_torch_calls_the_plain_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model, mode = Net(), DP()
    assert mode.convert(model, WrapOptions(has_unused=False, fsdp_wrap=None, optimizers=())) == model._call_impl
    assert judged(mode, model) == []


def test_gpus_that_torch_cannot_use_are_no_plain_module(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    os.environ[DEVICE_IDS_VARIABLE] = "0,1"
    mode = DP()
    mode.prepare(patches)
    with pytest.raises(ConversionError, match="torch finds none"):
        mode.convert(Net(), WrapOptions(has_unused=False, fsdp_wrap=None, optimizers=()))


def test_a_data_parallel_of_the_scripts_own_keeps_its_devices(patches: Patches, mode: DP) -> None:
    Rig(patches, mode)
    model = CpuParallel(Net(), [0, 1, 2])
    held = sgd(model)
    model(torch.ones(6, 3)).mean().backward()
    held.step()
    (check,) = judged(mode, model)
    assert (check.ok, numbers(check.text)) == (True, [3, 3, 1])


def test_the_devices_that_were_chosen_reach_torch_and_are_kept_from_the_script(
    patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_threads(monkeypatch)
    os.environ[DEVICE_IDS_VARIABLE] = "0,0,1"
    mode, model = CpuDP(), Net()
    mode.prepare(patches)
    assert DEVICE_IDS_VARIABLE not in os.environ
    assert parallel_of(mode, model).wrapper.device_ids == [0, 0, 1]


def test_undone_torch_replicates_as_before(patches: Patches) -> None:
    before = nn.DataParallel.replicate
    DP().prepare(patches)
    assert nn.DataParallel.replicate is not before
    patches.undo()
    assert nn.DataParallel.replicate is before


@pytest.mark.usefixtures("rig")
def test_an_wrapped_model_keeps_its_class_and_can_be_copied_and_saved() -> None:
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    assert type(model) is Net
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert "_compiled_call_impl" not in vars(twin)
        with torch.no_grad():
            assert torch.equal(twin(X), model(X))


def test_replicas_do_not_wait_for_the_garbage_collector(mode: DP) -> None:
    born: list[weakref.ref[nn.Module]] = []

    class Seen(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            born.append(weakref.ref(self))
            return super().forward(x)

    parallel = parallel_of(mode, Seen())
    gc.disable()
    try:
        for _ in range(2):
            parallel(X)
        assert len(born) == 4
        assert [reference() for reference in born] == [None] * 4
    finally:
        gc.enable()


class ReturnsLoss(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x).pow(2).mean()


@pytest.mark.parametrize(
    "use",
    [
        lambda loss: loss.backward(),
        lambda loss: loss.item(),
        lambda loss: float(loss.detach()),
        bool,
        lambda loss: f"{loss:.3f}",
    ],
    ids=["backward", "item", "float", "bool", "format"],
)
def test_a_scalar_loss_that_became_a_vector_is_named_with_the_line_of_the_forward(
    mode: DP, use: Callable[[torch.Tensor], object]
) -> None:
    loss = parallel_of(mode, ReturnsLoss())(X)
    assert loss.shape == (2,)
    with pytest.raises((RuntimeError, TypeError, ValueError)) as raised:
        use(loss)
    reason = mode.explain(raised.value, "train.py:9")
    line = ReturnsLoss.forward.__code__.co_firstlineno
    assert reason is not None
    assert "scalar loss" in reason
    assert all(fact in reason for fact in (f"{__file__}:{line}", "train.py:9", ".mean()"))


def test_a_script_that_averages_the_losses_of_all_devices_is_let_through(mode: DP) -> None:
    model, said = ReturnsLoss(), list[str]()
    parallel_of(mode, model, said)(X).mean().backward()
    (check,) = judged(mode, model)
    assert check.ok
    (remark,) = said
    assert "scalar" in remark
    assert "sum" in remark


@pytest.mark.parametrize("wrap", [lambda y: (y, y.mean()), lambda y: {"y": y, "loss": [y.mean()]}])
def test_scalars_are_found_in_nested_outputs(mode: DP, wrap: Callable[[torch.Tensor], Any]) -> None:
    class Nested(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return wrap(super().forward(x))

    parallel = parallel_of(mode, Nested())
    with pytest.raises(AttributeError, match="dim"):  # this file's gather is for tensors
        parallel(X)
    assert parallel.returns_scalar


class Remembers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("kept", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(1))
        self.first.note = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kept += 1
        self.mean = self.mean * 0.9
        self.first.note = "here"
        return super().forward(x)


def test_what_forward_sets_on_a_replica_is_named_because_it_is_lost(mode: DP) -> None:
    model, said = Remembers(), list[str]()
    parallel = parallel_of(mode, model, said)
    for _ in range(2):
        parallel(X)
    assert (model.calls, float(model.kept)) == (0, 2.0)
    assert len(said) == 1, "once is enough"
    assert re.findall(r"\w+\.\w+", said[0]) == ["Remembers.calls", "Remembers.mean", "Linear.note"]
    assert "lost" in said[0]


def test_batch_norm_is_remarked_while_it_trains(mode: DP) -> None:
    model, said = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), list[str]()
    parallel_of(mode, model, said)(X)
    assert [remark.split()[0] for remark in said] == ["BatchNorm"]
    parallel_of(mode, model.eval(), said)(X)
    assert len(said) == 1


@pytest.fixture
def bfloat16() -> Iterator[None]:
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    yield
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", before)


@pytest.mark.usefixtures("bfloat16")
def test_autocast_to_bfloat16_is_not_that_of_the_replicas(mode: DP) -> None:
    said: list[str] = []
    parallel_of(mode, Net(), said)(X)
    assert [re.findall(r"\bb?float16", remark) for remark in said] == [["bfloat16", "float16"]]
    torch.set_autocast_dtype("cuda", torch.float16)
    parallel_of(mode, Net(), said)(X)
    assert len(said) == 1


def raised_by(call: Callable[..., object], *args: Any) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever torch makes of it
        call(*args)
    return raised.value


def test_a_replica_that_asks_for_its_parameters_is_told_why_it_has_none(mode: DP) -> None:
    class Asks(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.to(next(self.parameters()).device))

    reason = mode.explain(raised_by(parallel_of(mode, Asks()), X), "train.py:9")
    assert reason is not None
    assert all(fact in reason for fact in ("train.py:9", "StopIteration", "parameters()", "from an input"))


def test_a_tensor_left_behind_on_the_first_device_is_explained(mode: DP) -> None:
    message = "Expected all tensors to be on the same device, but found two, cuda:0 and cuda:1!"

    class LeavesBehind(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert len(x)
            raise RuntimeError(f"{message}\nmore")

    reason = mode.explain(raised_by(parallel_of(mode, LeavesBehind()), X), "train.py:9")
    assert reason is not None
    assert f"RuntimeError: {message}" in reason
    assert "train.py:9" in reason
    assert "register_buffer" in reason


def test_outputs_that_cannot_be_joined_are_named(mode: DP) -> None:
    error = raised_by(nn.parallel.scatter_gather.gather, [3, 4], 0)
    reason = mode.explain(error, "train.py:9")
    assert reason is not None
    assert all(fact in reason for fact in ("split", "join", "train.py:9", str(error)))


def test_the_scripts_own_errors_are_its_own(mode: DP) -> None:
    parallel_of(mode, Net())(X)
    assert mode.explain(raised_by(torch.ones(2).item), "train.py:9") is None
    assert mode.explain(raised_by(int, "x"), "train.py:9") is None


@pytest.mark.parametrize("as_buffer", [False, True])
def test_a_module_that_lies_elsewhere_is_refused_with_the_name_of_what_does(as_buffer: bool) -> None:
    model = Net()
    refuse_elsewhere(model, torch.device("cpu"))
    elsewhere = torch.empty(1, device="meta")
    if as_buffer:
        model.second.register_buffer("mask", elsewhere)
    else:
        model.second.bias = nn.Parameter(elsewhere)
    name = "second.mask" if as_buffer else "second.bias"
    with pytest.raises(ConversionError, match=rf"\bcpu\b.*\b{name} is on meta\b"):
        refuse_elsewhere(model, torch.device("cpu"))


def test_a_forward_that_calls_its_own_module_again_is_one_of_its_replica(mode: DP) -> None:
    class Twice(Net):
        def forward(self, x: torch.Tensor, *, again: bool = True) -> torch.Tensor:
            once = super().forward(x)
            return once + self(x, again=False) if again else once

    model = Twice()
    parallel = parallel_of(mode, model)
    for _ in range(2):
        parallel(X)
    (check,) = judged(mode, model, forwards=2)
    assert (check.ok, numbers(check.text)) == (True, [2, 2, 2])
