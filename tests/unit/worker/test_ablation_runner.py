from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, AdamW, Optimizer

from dpdoctor.records import AblationRecord
from dpdoctor.worker.ablation_runner import NO_WINDOW, AblationRunner, Snapshot, chosen, snapshot_bytes
from dpdoctor.worker.ablations._base import Ablation, AblationContext, Fault, Precision
from dpdoctor.worker.ablations._wire import APART
from dpdoctor.worker.base.agreement import Alone, gather_texts
from dpdoctor.worker.base.director import FULL
from dpdoctor.worker.base.mode import Mode
from dpdoctor.worker.modes.ddp import MODE as DDP
from dpdoctor.worker.modes.single import MODE as SINGLE
from dpdoctor.worker.timing.exchanges import Issued
from tests.builders.models import Net, backward, sgd
from tests.builders.rig import Rig


class Example(Ablation):
    """Doubles every weight while it is on, and ends as it is told to."""

    summary = "for tests"

    def __init__(
        self, *, unfit: str | None = None, fault: Fault | None = None, apart: bool = False, priority: int = 0
    ) -> None:
        self.reason, self.fault, self.sets_apart, self.priority = unfit, fault, apart, priority

    def applies(self, mode: Mode) -> bool:
        return mode is SINGLE

    def unfit(self, context: AblationContext) -> str | None:  # noqa: ARG002
        return self.reason

    def begin(self, context: AblationContext) -> None:
        with torch.no_grad():
            for parameter in context.wrapping.parameters():
                parameter.mul_(2)

    def end(self, context: AblationContext) -> Fault | None:  # noqa: ARG002
        return self.fault


class TwoRanks(Alone):
    """This rank is rank `index`, and what the other one says is queued in `others`."""

    def __init__(self, index: int, others: Sequence[list[int]]) -> None:
        self.index, self.others = index, list(others)

    def gather(self, numbers: list[int]) -> list[list[int]]:
        other = self.others.pop(0)
        other += [0] * (len(numbers) - len(other))
        mine = numbers + [0] * (len(other) - len(numbers))
        return [mine, other] if self.index == 0 else [other, mine]


def text(words: str) -> list[list[int]]:
    """Return what the other rank gathers to say this."""
    return [[len(words)], list(words.encode())]


@pytest.fixture
def trained(rig: Rig) -> Rig:
    """A rank that has wrapped a model."""
    net = Net()
    rig.net = net  # type: ignore[attr-defined] - the optimizer holds its parameters, and must not be alone in that
    optimizer = sgd(net)
    backward(net)
    optimizer.step()
    return rig


class Told:
    """A wire over which was exchanged, window by window, what a test says."""

    has_reducer, least = True, 100.0

    def __init__(self, *windows: Issued, warmup: Issued | None = None) -> None:
        self.exchanges, self._windows, self._warmup = self, list(windows), warmup or Issued()

    def settle(self, agreement: Alone, counters: object) -> None:
        """Learn nothing."""

    def warmup(self) -> Issued:
        return self._warmup

    def window(self) -> Issued:
        return self._windows.pop(0)


def exchanged(per_step: int) -> Issued:
    return Issued(steps=10, collectives=10 * per_step)


def runner(
    rig: Rig,
    ablations: dict[str, Ablation],
    agreement: Alone | None = None,
    *,
    available_bytes: int = 10**9,
    wire: Told | None = None,
    raised: dict[str, str] | None = None,
) -> AblationRunner:
    context = AblationContext(
        wire=wire,
        mode=SINGLE,
        world_size=1,
        wrapping=rig.wrapping,
        watch=rig.watch,
        tally=rig.tally,
        replay=rig.loaders.replay,
        companion=rig.loaders.companion,
        precision=Precision(),
        optimizers=rig.optimizers,
        optimizer_share=lambda: None,
        hooks=rig.hooks(),
    )
    return AblationRunner(
        ablations,
        context,
        agreement or Alone(),
        time_budget_s=60,
        raised=raised,
        available_bytes=lambda: available_bytes,
    )


def weights(rig: Rig) -> list[float]:
    return [value for parameter in rig.wrapping.parameters() for value in parameter.flatten().tolist()]


@pytest.mark.parametrize("apart", [True, False])
def test_only_an_ablation_that_sets_ranks_apart_has_its_training_put_back(trained: Rig, apart: bool) -> None:
    found = runner(trained, {"ablation": Example(apart=apart)})
    found.settle()
    before = weights(trained)
    found.enter("ablation")
    assert found.ablation == "ablation"
    assert weights(trained) == [2 * value for value in before]
    assert found.leave()
    assert found.ablation == FULL
    assert (weights(trained) == before) is apart
    assert found.records() == (AblationRecord(name="ablation"),)


def test_what_was_trained_is_put_back_also_where_the_end_of_an_ablation_raises(
    trained: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ablation = Example(apart=True)
    monkeypatch.setattr(ablation, "end", lambda _: 1 / 0)
    found = runner(trained, {"ablation": ablation})
    found.settle()
    before = weights(trained)
    found.enter("ablation")
    with pytest.raises(ZeroDivisionError):
        found.abandon()
    assert weights(trained) == before


def test_nothing_happens_around_full_windows(trained: Rig) -> None:
    found = runner(trained, {"ablation": Example()})
    before = weights(trained)
    found.enter(FULL)
    assert found.leave()
    assert weights(trained) == before
    assert found.records() == (AblationRecord(name="ablation", skipped=NO_WINDOW),)


def test_a_reason_on_any_rank_skips_the_ablation_on_all(trained: Rig) -> None:
    ablations: dict[str, Ablation] = {"one": Example(), "other": Example(unfit="it is no use here")}
    found = runner(trained, ablations, TwoRanks(0, text('{"one": "not on rank 1"}')))
    found.settle()
    assert found.unfit == ("one", "other")
    assert not found.is_running
    assert found.records() == (
        AblationRecord(name="one", skipped="not on rank 1"),
        AblationRecord(name="other", skipped="it is no use here"),
    )


def test_a_window_that_fails_on_one_rank_counts_on_none(trained: Rig) -> None:
    found = runner(trained, {"ablation": Example()}, TwoRanks(1, [[1, 0], *text("an epoch began")]))
    found.enter("ablation")
    assert not found.leave()
    assert found.unfit == ()
    assert found.records() == (AblationRecord(name="ablation", skipped="an epoch began"),)


def test_one_good_window_is_enough_and_a_final_fault_ends_the_ablation(trained: Rig) -> None:
    ablation = Example()
    found = runner(trained, {"ablation": ablation})
    for fault, counts, skipped in (
        (Fault(reason="bad luck", final=False), False, "bad luck"),
        (None, True, None),
        (Fault(reason="bad luck", final=False), False, None),
        (Fault(reason="never", final=True), False, "never"),
    ):
        ablation.fault = fault
        found.enter("ablation")
        assert found.leave() is counts
        assert found.records() == (AblationRecord(name="ablation", skipped=skipped),)
    assert found.unfit == ("ablation",)


def test_an_ablation_needs_memory_for_what_it_puts_back(trained: Rig) -> None:
    found = runner(trained, {"apart": Example(apart=True), "other": Example()}, available_bytes=100)
    found.settle()
    (record, other) = found.records()
    assert record.skipped is not None
    assert all(fact in record.skipped for fact in ("host memory", "needed by 1 rank", "100 B available"))
    assert other.skipped == NO_WINDOW


def test_an_ablation_with_which_a_launch_failed_is_not_run_and_says_so(trained: Rig) -> None:
    ablations: dict[str, Ablation] = {"one": Example(unfit="no use"), "other": Example()}
    found = runner(trained, ablations, raised={"one": "single failed with it", "of another mode": "failed"})
    assert found.unfit == ("one",)
    found.settle()
    assert found.is_running
    assert found.records() == (
        AblationRecord(name="one", skipped="single failed with it"),
        AblationRecord(name="other", skipped=NO_WINDOW),
    )


@pytest.mark.parametrize("windows", [(), [exchanged(5)] * 4])
def test_ablations_are_suspect_until_a_full_window_has_ended_well(trained: Rig, windows: Sequence[Issued]) -> None:
    ablations: dict[str, Ablation] = {"one": Example(), "other": Example()}
    found = runner(trained, ablations, wire=Told(*windows) if windows else None)
    found.settle()
    assert found.leave()
    seen = [found.since_full]
    for name in ("one", "other"):
        found.enter(name)
        seen.append(found.since_full)
        found.leave()
    found.enter(FULL)
    seen.append(found.since_full)
    assert found.leave()
    assert seen == [(), ("one",), ("one", "other"), ("one", "other")]
    assert found.since_full == ()


def test_rank_0_says_what_there_is_no_time_for(trained: Rig) -> None:
    found = runner(trained, {"one": Example(), "other": Example()}, TwoRanks(1, [[0, 1]]))
    found.drop(())
    assert found.unfit == ("other",)
    assert "--time-budget" in (found.records()[1].skipped or "")


def test_an_ablation_after_which_ranks_exchange_otherwise_is_withdrawn_and_full_windows_are_none(trained: Rig) -> None:
    wire = Told(exchanged(5), exchanged(5), exchanged(0), exchanged(0))
    found = runner(trained, {"ablation": Example(), "never on": Example()}, wire=wire)
    found.settle()
    assert found.leave()  # a full window
    found.enter("ablation")
    assert found.leave()
    found.enter(FULL)
    assert not found.leave()
    found.enter(FULL)
    assert not found.leave(), "what does not come off spoils all that follows"
    assert found.unfit == ("ablation",)
    assert "instead of 5" in (found.records()[0].skipped or "")


def test_a_script_that_goes_over_to_another_exchange_is_no_fault_of_ablations(trained: Rig) -> None:
    wire = Told(exchanged(3), *[exchanged(1)] * 4, warmup=exchanged(5))
    found = runner(trained, {"ablation": Example()}, wire=wire)
    found.settle()
    assert not found.leave(), "it holds both"
    counts = []
    for name in ("ablation", FULL, "ablation", FULL):
        found.enter(name)
        counts.append(found.leave())
    assert counts[1:] == [True] * 3
    assert not found.unfit


def test_a_window_that_exchanges_otherwise_ends_its_ablation(trained: Rig) -> None:
    found = runner(trained, {"ablation": Example()}, wire=Told(exchanged(5), exchanged(1)))
    found.settle()
    assert found.leave()
    found.enter("ablation")
    assert not found.leave()
    assert found.unfit == ("ablation",)


def test_windows_that_measure_nothing_prove_nothing(trained: Rig) -> None:
    found = runner(trained, {"ablation": Example()}, wire=Told(exchanged(1), exchanged(5), exchanged(5)))
    found.settle()
    assert [found.leave(measured=measured) for measured in (False, True, True)] == [True] * 3


class Parting(Alone):
    """Another rank that holds the same parameters until it does not, and else says what this one does."""

    def __init__(self, *equal: bool) -> None:
        self._equal = list(equal)

    def gather(self, numbers: list[int]) -> list[list[int]]:
        is_fingerprint = len(numbers) == 1 and numbers[0] > 100
        return [numbers, [numbers[0] + (not self._equal.pop(0))] if is_fingerprint else numbers]


@pytest.mark.parametrize(("equal", "withdrawn"), [((True, True), ()), ((True, False), ("ablation",)), ((False,), ())])
def test_ranks_that_were_equal_and_part_after_an_ablation_withdraw_it(
    trained: Rig, equal: tuple[bool, ...], withdrawn: tuple[str, ...]
) -> None:
    wire = Told(*[exchanged(5)] * 3)
    found = runner(trained, {"ablation": Example(apart=True)}, Parting(*equal), wire=wire)
    found.settle()
    assert found.leave()
    found.enter("ablation")
    assert found.leave()
    found.enter(FULL)
    assert found.leave(), "a full window's time is one, whatever the weights"
    assert found.unfit == withdrawn
    assert found.records()[0].skipped == (APART if withdrawn else None)


def test_an_ablation_is_given_up_with_what_was_trained_put_back(trained: Rig) -> None:
    found = runner(trained, {"ablation": Example(apart=True)})
    found.settle()
    before = weights(trained)
    found.enter("ablation")
    found.abandon()
    assert (weights(trained), found.ablation) == (before, FULL)
    assert found.abandon() is None


def test_ablations_are_chosen_by_mode_and_put_in_order() -> None:
    ablations: dict[str, Ablation] = {name: Example(priority=p) for name, p in (("a", 3), ("b", 1))}
    assert list(chosen(ablations, SINGLE)) == ["b", "a"]
    assert chosen(ablations, DDP) == {}


@pytest.mark.parametrize("said", ["", "short", "länger als der andere"])
def test_texts_are_gathered(said: str) -> None:
    assert gather_texts(Alone(), said) == [said]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def train(module: nn.Module, optimizer: Optimizer, *, seed: int, steps: int = 3) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 3, generator=generator)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = module(x).pow(2).mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())  # type: ignore[attr-defined]
    return losses


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: AdamW(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_nothing_had_been_between(name: str) -> None:
    module, twin = model(), model()
    optimizer, other = OPTIMIZERS[name](module.parameters()), OPTIMIZERS[name](twin.parameters())
    assert train(module, optimizer, seed=1) == train(twin, other, seed=1)
    snapshot = Snapshot([module], [optimizer], [])
    train(module, optimizer, seed=2, steps=5)
    snapshot.restore()
    assert train(module, optimizer, seed=3) == train(twin, other, seed=3)
    assert all(map(torch.equal, module.state_dict().values(), twin.state_dict().values()))


def test_tensors_stay_the_same_objects() -> None:
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    train(module, optimizer, seed=0)
    tensors = [*module.parameters(), *module.buffers(), *(p.grad for p in module.parameters())]
    momenta = [optimizer.state[p]["momentum_buffer"] for p in module.parameters()]
    snapshot = Snapshot([module], [optimizer], [])
    module[1].running_mean = torch.ones(4)  # a buffer that is replaced, not changed
    snapshot.restore()
    found = [*module.parameters(), *module.buffers(), *(p.grad for p in module.parameters())]
    assert all(a is b for a, b in zip(tensors, found, strict=True))
    assert all(optimizer.state[p]["momentum_buffer"] is m for p, m in zip(module.parameters(), momenta, strict=True))


@pytest.mark.parametrize("had", [True, False])
def test_gradients_come_back_because_a_script_may_update_by_hand(had: bool) -> None:
    module = nn.Linear(2, 1, bias=False)
    if had:
        module.weight.grad = torch.ones(1, 2)
    snapshot = Snapshot([module], [], [])
    module(torch.full((1, 2), 5.0)).sum().backward()
    snapshot.restore()
    found = module.weight.grad
    assert (None if found is None else found.tolist()) == ([[1.0, 1.0]] if had else None)


def test_a_state_that_is_new_since_is_dropped() -> None:
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    snapshot = Snapshot([module], [optimizer], [])
    train(module, optimizer, seed=0)
    snapshot.restore()
    assert not optimizer.state


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
def test_an_optimizer_that_is_built_meanwhile_is_as_new_again(kind: type[Optimizer]) -> None:
    module, twin = model(), model()
    snapshot = Snapshot([module], [SGD(module.parameters(), lr=0.1)], [])
    optimizer, other = kind(module.parameters()), kind(twin.parameters())
    train(module, optimizer, seed=2, steps=5)
    snapshot.restore()
    assert train(module, optimizer, seed=3) == train(twin, other, seed=3)


def test_learning_rates_are_the_schedulers() -> None:
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    snapshot = Snapshot([module], [optimizer], [])
    optimizer.param_groups[0]["lr"] = 0.05
    snapshot.restore()
    assert optimizer.param_groups[0]["lr"] == 0.05


class Finding(Optimizer):
    """Finds a step size by itself, which it keeps in its groups."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0, "d": 1e-6, "estimates": [torch.zeros(1)], "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # noqa: ARG002
        for group in self.param_groups:
            group["d"] *= 2
            group["estimates"][0].add_(1)
            for parameter in group["params"]:
                parameter.sub_(group["d"])


def test_what_an_optimizer_finds_comes_back_and_what_a_scheduler_set_stays() -> None:
    module = model()
    optimizer = Finding(module.parameters())
    (group,) = optimizer.param_groups
    (estimate,) = group["estimates"]
    snapshot = Snapshot([module], [optimizer], [])
    optimizer.step()
    group["lr"] = group["weight_decay"] = 0.5
    snapshot.restore()
    assert (group["d"], group["lr"], group["weight_decay"]) == (1e-6, 0.5, 0.5)
    assert group["estimates"][0] is estimate
    assert estimate.item() == 0
    assert group["params"] == list(module.parameters())


def test_a_scaler_gets_its_scale_back_and_forgets_an_overflow() -> None:
    module = nn.Linear(2, 1)
    optimizer = SGD(module.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=1000)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(module(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(optimizer)

    step(1.0)
    scaler.update()
    before = copy.deepcopy(scaler.state_dict())
    snapshot = Snapshot([module], [optimizer], [scaler])
    step(float("inf"))
    scaler.update()
    assert scaler.get_scale() < 8.0
    step(float("inf"))
    snapshot.restore()
    scaler.update()
    assert scaler.get_scale() == before["scale"]


def test_the_memory_is_that_of_parameters_gradients_buffers_and_states() -> None:
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    train(module, optimizer, seed=0)
    parameters = sum(p.nbytes for p in module.parameters())
    assert snapshot_bytes([module], [optimizer]) == 3 * parameters + sum(b.nbytes for b in module.buffers())


def test_other_operators_are_called_while_an_ablation_is_on_that_says_so(trained: Rig) -> None:
    others, same = Example(), Example()
    others.calls_others = True
    of = runner(trained, {"others": others, "same": same})
    found = [of.calls_others]
    for name in ("others", FULL, "same"):
        of.enter(name)
        found.append(of.calls_others)
        of.leave()
    assert found == [False, True, False, False]
