"""accumulation_sync: the ablation's gain, or the trace's share of all reductions but the last."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Finding, Rank
from dpdoctor.records import TENSOR_PARALLEL, Collective, Conversion, Counters, Strategy, WrappedModule
from dpdoctor.rules import CannotTell
from dpdoctor.rules.accumulation_sync import RULE
from dpdoctor.rules.wording import NO_SYNC_CODE
from tests.builders import cases
from tests.builders.cases import Case, ablation
from tests.builders.traced_cases import digest


def accumulating(number: int, exposed: int | None = 40, gathered: int = 0) -> list[Rank]:
    """Return two ranks with so many micro-batches in a step; None: they left no trace.

    Of the exposed milliseconds so many gather parameters, and the others reduce gradients.
    """
    calls = [
        ("all_gather", 1_000, gathered, gathered),
        ("reduce_scatter", 1_000, reduced := (exposed or 0) - gathered, reduced),
    ]
    return [
        replace(
            rank,
            steps=tuple(replace(step, micro_batches=number) for step in rank.steps),
            digest=None
            if exposed is None
            else digest(rank.index, compute=100 - exposed, exposed=exposed, calls=calls, gpu=False),
        )
        for rank in cases.ranks(2)
    ]


def of(number: int, exposed: int | None = 40, name: str = "ddp", **ablations: object) -> Case:
    """Return a mode of such ranks with these ablations."""
    return cases.case(name, world_size=2, of=accumulating(number, exposed), ablations=ablations)


FIRES = {
    "trace": of(4),
    "ablation": of(4, None, no_sync_accumulation=ablation(0.3)),
    "both": of(4, no_sync_accumulation=ablation(0.28)),
    "refuted": of(4, no_sync_accumulation=ablation(0.0, 0.02)),
    "FSDP": of(4, name="fsdp"),
}
SILENT = {
    "no accumulation": of(1),
    "little communication": of(4, 4),
    "a small gain": of(4, 4, no_sync_accumulation=ablation(0.03)),
    "one device": cases.case("single", of=accumulating(4)[:1]),
}


def finding(case: Case) -> Finding:
    found = RULE.check(case)
    assert isinstance(found, Finding)
    return found


def test_the_trace_gives_all_reductions_but_the_last() -> None:
    found = finding(FIRES["trace"])
    assert (found.status, found.cost.value) == ("inferred", pytest.approx(0.4 * 3 / 4))


def test_parameters_are_gathered_all_the_same() -> None:
    found = finding(cases.case("fsdp", world_size=2, of=accumulating(4, 40, gathered=24)))
    assert found.cost.value == pytest.approx(0.16 * 3 / 4)


def test_the_ablation_is_the_cost() -> None:
    found = finding(FIRES["both"])
    assert (found.status, found.cost.value) == ("confirmed", pytest.approx(0.28))
    assert "no_sync()" in (found.code or "")
    assert "set_requires_gradient_sync" in (finding(FIRES["FSDP"]).code or "")


def test_written_as_the_line_says_ddp_reduces_once(tmp_path: Path) -> None:
    torch, dist = pytest.importorskip("torch"), pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        micros, reduced = [], []

        def reduce(buffer: object) -> object:
            reduced.append(micros[-1])
            done = torch.futures.Future()
            done.set_result(buffer)
            return done

        model.register_comm_hook(None, lambda _, bucket: reduce(bucket.buffer()))
        names = {"model": model, "x": torch.ones(2, 3), "y": torch.ones(2, 1), "criterion": torch.nn.MSELoss()}
        for micro in range(4):
            micros.append(micro)
            exec(NO_SYNC_CODE, {"contextlib": contextlib, "is_last": micro == 3, **names})
    finally:
        dist.destroy_process_group()
    assert reduced == [3]


def test_what_gains_nothing_is_not_recommended() -> None:
    found = finding(FIRES["refuted"])
    assert (found.status, found.remedy, found.severity) == ("refuted", None, "info")


@pytest.mark.parametrize(
    "function", ["accelerate.accelerator.Accelerator.backward", "transformers.trainer.Trainer.train"]
)
def test_a_library_that_runs_the_backward_pass_may_do_so_itself(function: str) -> None:
    ranks = [
        replace(rank, record=replace(rank.record, call_tree=cases.calling(function)))
        for rank in accumulating(4)
        if rank.record is not None
    ]
    found = finding(cases.case("ddp", world_size=2, of=ranks))
    assert (found.severity, found.remedy, found.code, found.line, found.speedup) == ("info", None, None, None, None)
    assert any(f"{function} runs the backward pass" in text for text in found.evidence)


def test_what_a_script_calls_beside_its_own_backward_pass_runs_none() -> None:
    for function, looks, runs in (
        ("tqdm.std.tqdm.update", 10, ""),
        ("fabric.Fabric.backward", 40, "fabric.Fabric.backward"),
    ):
        case = cases.case("ddp", of=cases.ranks(2, call_tree=cases.calling(function, looks)))
        assert case.library_backward == runs


def test_it_cannot_tell_without_trace_and_ablation() -> None:
    assert isinstance(RULE.check(of(4, None)), CannotTell)


@pytest.mark.parametrize(
    ("way", "code"),
    [("ddp", "model.no_sync()"), ("fsdp1", "model.no_sync()"), ("fsdp2", "set_requires_gradient_sync")],
)
def test_the_remedy_is_that_of_the_wrapper_that_a_script_of_its_own_has(way: str, code: str) -> None:
    fields = {"native": cases.OWN, "conversion": cases.in_way(way)}
    found = RULE.check(cases.case("native", world_size=2, of=accumulating(4), ablations={}, **fields))
    assert isinstance(found, Finding)
    assert code in (found.code or "")
    assert "no_sync" not in (found.code or "") or way != "fsdp2"


@pytest.mark.parametrize(
    ("times", "hook", "needless", "told"),
    [
        (8, "", 7 / 8, "each one reduces its gradients"),
        (2, "", 1 / 2, "reduces gradients 2.00 times"),
        (4, "bf16_compress_hook", 7 / 8, "each one reduces its gradients"),  # half the bytes
    ],
)
def test_of_a_script_that_reduces_in_some_micro_batches_those_count(
    times: int, hook: str, needless: float, told: str
) -> None:
    model = WrappedModule(name="Net", line="train.py:9", num_parameters=2_000, trainable_bytes=8_000)
    reduced = {"all_reduce": Collective(count=times, num_bytes=8_000 * times)}
    fields = {
        "native": cases.OWN,
        "conversion": Conversion(modules=(model,), strategies=(Strategy(name="ddp", hook=hook),)),
        "counters": Counters(operators=1, collectives=reduced, inputs=()),
    }
    found = finding(cases.case("native", world_size=2, of=accumulating(8), **fields))
    assert found.cost.value == pytest.approx(0.4 * needless)
    assert told in found.evidence[0]


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("way", ["ddp", "fsdp1", "fsdp2"])
def test_a_script_that_reduces_once_is_told_nothing(way: str, times: int) -> None:
    model = WrappedModule(name="Net", line="train.py:9", num_parameters=2_000, trainable_bytes=8_000)
    reduced = {"reduce_scatter": Collective(count=times, num_bytes=8_000 * times)}
    fields = {
        "native": cases.OWN,
        "conversion": replace(cases.in_way(way), modules=(model,)),
        "counters": Counters(operators=1, inputs=(), collectives=reduced),
    }
    found = RULE.check(cases.case("native", world_size=2, of=accumulating(4), ablations={}, **fields))
    assert (found is None) == (times == 1)


@pytest.mark.parametrize("ways", [(TENSOR_PARALLEL,), ("ddp", TENSOR_PARALLEL)])
def test_what_ranks_that_split_a_model_reduce_may_be_activations(ways: tuple[str, ...]) -> None:
    model = WrappedModule(name="Net", line="train.py:9", num_parameters=2_000, trainable_bytes=8_000)
    conversion = Conversion(modules=(model,), strategies=tuple(Strategy(name=name) for name in ways), num_threads=1)
    counters = Counters(operators=1, inputs=(), collectives={"all_reduce": Collective(count=30, num_bytes=32_000)})
    fields = {"native": cases.OWN, "conversion": conversion, "counters": counters, "ablations": {}}
    assert RULE.check(cases.case("native", world_size=2, of=accumulating(4), **fields)) is None


def test_a_step_that_trains_one_of_two_models_reduces_no_less_often() -> None:
    models = [
        WrappedModule(name=name, line="train.py:9", num_parameters=size // 4, trainable_bytes=size)
        for name, size in (("Generator", 8_000), ("Discriminator", 4_000))
    ]
    counters = Counters(operators=1, inputs=(), collectives={"all_reduce": Collective(count=2, num_bytes=2 * 4_000)})
    conversion = Conversion(modules=tuple(models), num_threads=1)
    case = cases.case("ddp", world_size=2, of=accumulating(2), conversion=conversion, counters=counters)
    assert finding(case).cost.value == pytest.approx(0.4 / 2)


def test_what_a_script_exchanges_by_itself_has_no_wrapper_to_tell() -> None:
    fields = {"native": cases.OWN, "conversion": cases.by_hand()}
    found = RULE.check(cases.case("native", world_size=2, of=accumulating(4), ablations={}, **fields))
    assert isinstance(found, Finding)
    assert (found.line, "no_sync" in (found.code or "")) == ("train.py:40", False)
