"""small_collectives: many calls whose time is latency."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import TRACE_MODE, Finding
from dpdoctor.digest import Bucket, ShardUnit, SmallCalls
from dpdoctor.records import (
    HAND_WRITTEN,
    PARAMETERS_EQUAL,
    POINT_TO_POINT,
    TENSOR_PARALLEL,
    Check,
    Collective,
    Conversion,
    Counters,
    Strategy,
    WrappedModule,
)
from dpdoctor.rules import CannotTell
from dpdoctor.rules.small_collectives import RULE
from tests.builders import cases
from tests.builders.cases import Case, ablation
from tests.builders.cases import case as untraced
from tests.builders.specs import MS
from tests.builders.traced_cases import Call, case, digest, real_cases

SMALL: Call = ("all_reduce", 4_000, 0.5, 0.5)
LARGE: Call = ("all_reduce", 20_000_000, 20, 20)
MEDIUM: Call = ("all_reduce", 1_000_000, 0.5, 0.5)
FIT = SmallCalls(
    operation="all_reduce",
    group="0",
    latency_ns=400_000,
    bandwidth_gb_s=10.0,
    limit_bytes=2_000_000,
    count=400,
    small_count=400,
    small_total_ns=200 * MS,
    small_exposed_ns=200 * MS,
)
BUCKETS = tuple(
    Bucket(order=order, num_bytes=4_000, ready_ns=0, end_ns=MS, exposed_ns=MS // 2, tail_ns=0) for order in range(40)
)
SHARDS = tuple(
    ShardUnit(
        name=f"layers.{index}",
        all_gathers=2.0,
        reduce_scatters=1.0,
        gathered_bytes=8_000.0,
        scattered_bytes=4_000.0,
        exposed_ns=1e6,
        prefetched=0.5,
    )
    for index in range(10)
)


def pair(calls: list[Call], **fields: object) -> list:
    """Return two ranks of these calls, whose exposed time is that of the calls."""
    return [digest(rank, exposed=20, calls=calls, **fields) for rank in range(2)]


ROOT = (replace(SHARDS[0], name="root", all_gathers=1.0),)
# Of one unit, with the norm of its gradients.
OF_UNIT: list[Call] = [("all_gather", 4_000, 8, 8), ("reduce_scatter", 4_000, 8, 8), ("all_reduce", 8, 4, 4)]
MODEL = WrappedModule(name="Net", line="train.py:9", num_parameters=1_000, trainable_bytes=4_000)
BY_HAND = {"native": cases.OWN, "conversion": cases.by_hand()}
PASSED_ON: list[Call] = [("send", 4_000, 0.5, 0.5), ("recv", 4_000, 0.5, 0.5)] * 20


def passing_on(received: int = 20, **others: object) -> dict[str, object]:
    """Return a script that sends 20 gradients in a step, and receives so many."""
    ways = [
        Strategy(
            name=HAND_WRITTEN,
            facts=f"{calls} calls of {operation} in a step, 80.0 kB",
            line="train.py:40",
            calls=calls,
            of_gradients=True,
        )
        for operation, calls in (("send", 20), ("recv", received))
    ]
    conversion = Conversion(strategies=(*ways, *(Strategy(name=str(name)) for name in others.values())), num_threads=1)
    return {"native": cases.OWN, "conversion": conversion, "ablations": {"no_comm": ablation(0.2)}}


FIRES = {
    "a ring by hand": case("native", *pair(PASSED_ON), **passing_on()),
    "by hand": case("native", *pair([SMALL] * 40), ablations={"no_comm": ablation(0.2)}, **BY_HAND),
    "by hand, and the experiment agrees": case(
        "native", *pair([SMALL] * 40), ablations={"no_comm": ablation(0.2), "coalesced": ablation(0.3)}, **BY_HAND
    ),
    "of the script itself": case(TRACE_MODE, *pair([SMALL] * 40)),
    "DDP's buckets": case(TRACE_MODE, *pair([SMALL] * 40, buckets=BUCKETS), ablations={"no_comm": ablation(0.2)}),
    "FSDP's units": case("fsdp", *pair([("all_gather", 4_000, 0.7, 0.7)] * 30, shard_units=SHARDS)),
    "by the fitted limit": case(TRACE_MODE, *pair([MEDIUM] * 40, small_calls=(FIT,))),
}
DIFFER = (Check(name=PARAMETERS_EQUAL, ok=None, text="parameters differ between ranks"),)


def split(*, in_backward: bool) -> Case:
    """Return ranks of unlike parameters that exchange in forward passes, or while backward passes go on."""
    way = cases.by_hand(in_backward=in_backward, of_gradients=in_backward)
    exchanged = pair([("all_to_all", 4_000, 0.5, 0.5)] * 40)
    return case("native", *exchanged, native=cases.OWN, conversion=replace(way, proof=DIFFER))


SILENT = {
    "tokens that go to their experts": split(in_backward=False),
    "gradients of such tokens": split(in_backward=True),
    "stages of a pipeline": case("native", *pair(PASSED_ON), **passing_on(stages=POINT_TO_POINT)),
    "gradients that are sent and not passed on": case("native", *pair(PASSED_ON), **passing_on(received=1)),
    "FSDP's one unit, and the norm of its gradients": case("fsdp", *pair(OF_UNIT, shard_units=ROOT)),
    "FSDP's one unit for each of four models": case(
        "fsdp", *pair([SMALL] * 8, shard_units=ROOT), conversion=Conversion(modules=(MODEL,) * 4, num_threads=1)
    ),
    "a script's own fully_shard of the whole model": case(
        "native", *pair(OF_UNIT, shard_units=ROOT), native=cases.OWN, conversion=cases.in_way("fsdp2"), ablations={}
    ),
    "one call": case(TRACE_MODE, *pair([("all_reduce", 4_000, 20, 20)])),
    "one call, and on a rank of four another": case(
        "fsdp",
        *(
            digest(rank, world_size=4, exposed=80, calls=[("all_reduce", 4_000, 80, 80)] * (1 + (rank == 0)))
            for rank in range(4)
        ),
    ),
    "large calls": case(TRACE_MODE, *pair([LARGE])),
    "hidden": case(TRACE_MODE, *pair([("all_reduce", 4_000, 0.5, 0)] * 40)),
    "broadcasts have a rule of their own": case(TRACE_MODE, *pair([("broadcast", 400, 0.5, 0.5)] * 40)),
    "a size that no call is bound by": case(TRACE_MODE, *pair([MEDIUM] * 40)),
    "buckets of the default size": case(
        "ddp", *pair([SMALL] * 40, buckets=BUCKETS), ablations={"no_comm": ablation(0.2)}
    ),
    "DDP's one bucket, reduced in four micro-batches": case(
        "ddp", *pair([("all_reduce", 4_000, 5, 5)] * 4, buckets=BUCKETS[:1])
    ),
    "refuted": case(TRACE_MODE, *pair([SMALL] * 40, buckets=BUCKETS), ablations={"no_comm": ablation(0.0, 0.02)}),
    "by hand, and one call gains nothing": case(
        "native", *pair([SMALL] * 40), ablations={"no_comm": ablation(0.2), "coalesced": ablation(0.0, 0.02)}, **BY_HAND
    ),
    "by hand, and one call takes longer": case(
        "native",
        *pair([SMALL] * 40),
        ablations={"no_comm": ablation(0.2), "coalesced": ablation(-0.1, 0.02)},
        **BY_HAND,
    ),
    "activations of ranks that split a model, each of which needs the one before": case(
        "native", *pair([SMALL] * 40), native=cases.OWN, conversion=cases.in_way(TENSOR_PARALLEL), ablations={}
    ),
    **real_cases(v100="v100x2_ddp_rank1.json.gz", a100="a100x2_ddp_rank0_collective_args.json.gz"),
}


def finding(of: Case) -> Finding:
    found = RULE.check(of)
    assert isinstance(found, Finding)
    return found


def test_the_cost_is_what_one_call_would_save() -> None:
    found = finding(FIRES["of the script itself"])
    assert found.cost.value == pytest.approx(0.2 * 39 / 40)
    assert found.status == "inferred"
    assert "40 small collectives" in found.title


def test_the_remedy_is_for_who_makes_the_calls() -> None:
    assert finding(FIRES["of the script itself"]).code is None
    assert "bucket_cap_mb" in (finding(FIRES["DDP's buckets"]).code or "")
    assert "fully_shard" in (finding(FIRES["FSDP's units"]).code or "")


def test_an_ablation_that_gains_as_much_confirms_it() -> None:
    assert finding(FIRES["DDP's buckets"]).status == "confirmed"


def test_the_ablation_says_nothing_of_the_script_s_own_calls() -> None:
    found = finding(case(TRACE_MODE, *pair([SMALL] * 40), ablations={"no_comm": ablation(0.0, 0.02)}))
    assert found.status == "inferred"
    assert found.cost.value == pytest.approx(0.195)


def test_gradients_that_are_scattered_by_hand_are_not_told_to_be_reduced_whole() -> None:
    by_hand = cases.by_hand()
    ways = tuple(replace(way, facts="40 calls of reduce_scatter in a step, 160 kB") for way in by_hand.strategies)
    calls: list[Call] = [("reduce_scatter", 4_000, 0.5, 0.5)] * 40
    of = case("native", *pair(calls), native=cases.OWN, conversion=replace(by_hand, strategies=ways))
    assert (finding(of).code, finding(of).line) == (None, "train.py:40")


@pytest.mark.parametrize("received", [20, 10])
def test_a_ring_of_many_sends_is_told_to_send_one_tensor(received: int) -> None:
    # The rank that begins a ring receives once where it sends twice, if the sum goes round after the first round.
    found = finding(case("native", *pair(PASSED_ON), **passing_on(received)))
    assert found.title.startswith("40 small exchanges in each step")
    assert found.remedy.startswith("put what the script itself exchanges into one tensor")
    assert (found.status, found.line) == ("confirmed", "train.py:40")


@pytest.mark.parametrize(("operation", "is_told"), [("broadcast", True), ("all_reduce", False)])
def test_parameters_that_owners_broadcast_by_hand_are_put_together(operation: str, *, is_told: bool) -> None:
    way = cases.by_hand(of_gradients=False)
    ways = tuple(replace(one, facts=f"40 calls of {operation} in a step, 160 kB") for one in way.strategies)
    calls: list[Call] = [("broadcast", 4_000, 0.5, 0.5)] * 40
    found = RULE.check(case("native", *pair(calls), native=cases.OWN, conversion=replace(way, strategies=ways)))
    assert (found is not None) == is_told
    if isinstance(found, Finding):
        assert (found.line, found.code) == ("train.py:40", None)


def test_it_cannot_tell_without_a_trace() -> None:
    assert isinstance(RULE.check(untraced("fsdp", world_size=2)), CannotTell)


def test_what_a_script_exchanges_by_itself_goes_with_the_ablation_and_is_put_into_one_tensor() -> None:
    found = RULE.check(FIRES["by hand"])
    assert isinstance(found, Finding)
    assert (found.status, found.line) == ("confirmed", "train.py:40")
    assert "torch.cat" in (found.code or "")


def test_the_gain_of_one_call_is_measured_where_the_ablation_makes_it() -> None:
    found = finding(FIRES["by hand, and the experiment agrees"])
    assert (found.status, found.cost.value, found.speedup_basis) == ("confirmed", 0.3, "measured")
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1 / 0.7)
    assert "with all of them in one call (ablation coalesced)" in " ".join(found.evidence)
    assert "no_comm" not in " ".join(found.evidence)


def test_a_gain_that_is_not_known_well_enough_leaves_what_the_trace_says() -> None:
    unsure = {"no_comm": ablation(0.2), "coalesced": ablation(0.1, 0.2)}
    found = finding(case("native", *pair([SMALL] * 40), ablations=unsure, **BY_HAND))
    assert (found.status, found.speedup_basis) == ("inferred", "at most")
    assert found.cost.value == pytest.approx(0.195)
    assert any("not measurably shorter" in words for words in found.evidence)


@pytest.mark.parametrize("times", [1, 40])
def test_what_a_wrapper_reduces_in_each_micro_batch_is_not_the_script_s(times: int) -> None:
    reduced = {"all_reduce": Collective(count=40, num_bytes=4_000 * times)}
    counters = Counters(operators=1, inputs=(), collectives=reduced)
    conversion = replace(cases.in_way("ddp"), modules=(MODEL,))
    fields = {"native": cases.OWN, "conversion": conversion, "counters": counters, "ablations": {}}
    found = finding(case("native", *pair([SMALL] * 40, buckets=BUCKETS[:1]), **fields))
    assert ("script itself" in (found.remedy or "")) == (times == 1)


def test_a_model_in_blocks_would_still_gather_and_scatter_once() -> None:
    assert finding(FIRES["FSDP's units"]).cost.value == pytest.approx(0.2 * 28 / 30)


def test_a_step_that_holds_a_rollout_is_not_told_as_each() -> None:
    calls = digest(calls=[("all_reduce", 4_000, 2, 2)] * 44).calls
    # All of the first step, and four of each other one.
    kept = [row for row, step in enumerate(calls.step) if step == 0 or row % 44 < 4]
    columns = ("operation", "group", "seq", "num_bytes", "begin_ns", "end_ns", "exposed_ns", "step", "segment_cause")
    rows = {column: tuple(getattr(calls, column)[row] for row in kept) for column in columns}
    ranks = [replace(rank, calls=replace(calls, **rows)) for rank in pair([])]
    found = finding(case(TRACE_MODE, *ranks))
    assert found.title.startswith("4 small collectives")
    # Four of 2 ms in a step of 100 ms, of which one would be left.
    assert found.cost.value == pytest.approx(0.08 * 3 / 4)
