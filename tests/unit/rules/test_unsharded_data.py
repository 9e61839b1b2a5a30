from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.records import PARAMETERS_EQUAL, TENSOR_PARALLEL, Check, Conversion, Strategy, WrappedModule
from dpdoctor.rules import CannotTell
from dpdoctor.rules.unsharded_data import CODE_OF_A_STREAM, RULE
from tests.builders import cases

STREAM = cases.conversion(rule="whole", num_batches=None, dataset="Stream", note="an IterableDataset is read whole")

BESIDE = replace(STREAM, loaders=(*cases.conversion().loaders, *STREAM.loaders))

# As of one whose batches come again and again, so that its workers are kept.
ENDLESS = replace(
    cases.conversion(rule="whole", num_batches=None).loaders[0],
    note="iterated without gradients: an evaluation, every rank sees all of it",
)

SAME = Conversion(
    modules=(WrappedModule(name="Net", line="train.py:9", num_parameters=1, trainable_bytes=4),), same_samples=True
)

SAME_STREAM = replace(STREAM, same_samples=True)

FIRES = {
    "a stream": cases.case("ddp", world_size=4, conversion=STREAM),
    "the same tensors": cases.case("ddp", world_size=4, conversion=SAME),
    "a stream whose tensors were the same": cases.case("ddp", world_size=4, conversion=SAME_STREAM),
}
SILENT = {
    "one device": cases.case(conversion=STREAM),
    "shared by its sampler": cases.case("ddp", world_size=2, conversion=cases.conversion()),
    "an evaluation": cases.case("ddp", world_size=2, conversion=cases.conversion(rule="whole")),
    "no loader": cases.case("ddp", world_size=2),
    "a stream beside what is trained on": cases.case("ddp", world_size=2, conversion=BESIDE, loader=cases.loader()),
    "an evaluation's loader without an end, at the same line": cases.case(
        "ddp",
        world_size=2,
        conversion=replace(BESIDE, loaders=(*cases.conversion().loaders, ENDLESS)),
        loader=cases.loader(),
    ),
    "an evaluation's loader without an end": cases.case(
        "ddp", world_size=2, conversion=replace(BESIDE, loaders=(ENDLESS,)), loader=None
    ),
}


def test_three_of_four_ranks_are_for_nothing() -> None:
    found = RULE.check(FIRES["a stream"])
    assert found.cost.value == pytest.approx(0.75)
    assert (found.share_of, found.status, found.line) == ("epoch", "inferred", "train.py:30")


def test_what_was_seen_is_confirmed_where_the_model_is_called() -> None:
    found = RULE.check(FIRES["the same tensors"])
    assert found.cost.value == pytest.approx(0.75)
    assert (found.share_of, found.status, found.severity, found.line) == (
        "epoch",
        "confirmed",
        "critical",
        "train.py:9",
    )


def test_what_samples_of_their_own_may_give_is_told_where_it_was_seen() -> None:
    seen, supposed = RULE.check(FIRES["the same tensors"]), RULE.check(FIRES["a stream"])
    assert (seen.short_remedy, seen.speedup_basis) == ("give each rank samples of its own", "at most")
    assert seen.speedup.value == pytest.approx(4)
    assert (supposed.short_remedy, supposed.speedup) == (None, None)


def test_a_stream_that_was_seen_is_divided_in_its_dataset() -> None:
    seen, supposed = RULE.check(FIRES["a stream whose tensors were the same"]), RULE.check(FIRES["a stream"])
    assert (seen.status, seen.severity, seen.line) == ("confirmed", "critical", "train.py:30")
    assert seen.code == supposed.code
    assert supposed.remedy == f"unless it already does, {seen.remedy}"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_written_as_the_code_says_each_item_is_of_one_rank_and_worker(num_workers: int) -> None:
    def taken(rank: int, worker: int) -> list[int]:
        info = SimpleNamespace(num_workers=num_workers, id=worker) if num_workers else None
        data = SimpleNamespace(get_worker_info=lambda: info)
        names: dict[str, Any] = {"torch": SimpleNamespace(utils=SimpleNamespace(data=data)), "itertools": itertools}
        *before, last = CODE_OF_A_STREAM.splitlines()
        names |= {"items": range(30), "rank": rank, "world_size": 3}
        exec("\n".join([*before, f"found = list({last})"]), names)
        return names["found"]

    parts = [taken(rank, worker) for rank in range(3) for worker in range(max(1, num_workers))]
    assert sorted(item for part in parts for item in part) == list(range(30))


def test_a_loader_with_fewer_batches_than_ranks_is_to_have_more() -> None:
    of_one = replace(cases.conversion(rule="whole", num_batches=1), same_samples=True)
    found = RULE.check(cases.case("ddp", world_size=2, conversion=of_one, loader=cases.loader()))
    assert "--batch global" in found.remedy
    assert "draw the batches from a torch DataLoader" not in found.remedy
    assert (found.line, found.status) == ("train.py:30", "confirmed")
    assert "--batch global" not in RULE.check(FIRES["the same tensors"]).remedy


def test_the_script_is_not_blamed_for_what_our_seed_makes_alike() -> None:
    found = RULE.check(cases.case("ddp", world_size=2, conversion=replace(SAME, alike_by_seed=("torch", "numpy"))))
    assert (found.status, found.severity, found.speedup) == ("inferred", "warning", None)
    assert found.short_remedy == "give --seed-per-rank"
    assert "does not seed torch and numpy" in found.remedy


def test_ranks_from_which_their_rank_was_hidden_may_draw_apart() -> None:
    asks = replace(SAME_STREAM, asks_rank="data.py:7")
    found = RULE.check(cases.case("ddp", world_size=2, conversion=asks))
    assert (found.status, found.severity, found.speedup, found.code) == ("inferred", "warning", None, None)
    assert found.evidence[-1].startswith("data.py:7 asks for its rank, and dpdoctor answers as if")
    assert "--modes native" in found.remedy
    assert not any("counts each sample once" in text for text in found.evidence)


def test_a_loader_that_was_never_met_is_not_said_to_be_shared_out() -> None:
    unmet, met = (
        RULE.check(cases.case("ddp", world_size=2, conversion=SAME, loader=cases.loader(index=index)))
        for index in (-1, 0)
    )
    assert "draw the batches from a torch DataLoader" in unmet.remedy
    assert "the loader is shared out, but its dataset draws" in met.remedy


@pytest.mark.parametrize(
    ("drawn_alike", "given", "native", "told"),
    [
        (
            ("random",),
            False,
            None,
            "; where only the seed makes them the same, as in an environment, give --seed-per-rank",
        ),
        ((), False, None, "--seed-per-rank helps only where global generators"),
        ((), True, None, "--seed-per-rank does not reach what picks them"),
        ((), False, cases.OWN, None),
    ],
)
def test_an_option_is_advised_where_it_changes_something(
    drawn_alike: tuple[str, ...], given: bool, native: Any, told: str | None
) -> None:
    same = replace(SAME, drawn_alike=drawn_alike)
    mode = "native" if native else "ddp"
    facts = cases.case(mode, world_size=2, conversion=same, native=native)
    facts = replace(facts, spec=replace(facts.spec, seed_per_rank=given))
    remedy = RULE.check(facts).remedy
    assert ("--seed-per-rank" in remedy) is (told is not None)
    assert told is None or told in remedy


@pytest.mark.parametrize(
    ("ways", "equal", "is_found"),
    [
        ((), None, False),
        (("hand-written",), None, False),
        (("ddp", TENSOR_PARALLEL), None, False),
        (("hand-written",), True, True),
        (("ddp",), True, True),
        (("fsdp2",), None, True),  # shards differ
    ],
)
def test_ranks_that_may_compute_parts_of_one_model_need_the_same_samples(
    ways: tuple[str, ...], equal: bool | None, is_found: bool
) -> None:
    found = replace(
        SAME,
        strategies=tuple(Strategy(name=name) for name in ways),
        proof=(Check(name=PARAMETERS_EQUAL, ok=equal, text=""),),
    )
    said = RULE.check(cases.case("native", world_size=2, native=cases.OWN, conversion=found))
    assert isinstance(said, CannotTell) is not is_found
