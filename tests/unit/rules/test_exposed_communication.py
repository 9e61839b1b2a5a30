"""exposed_communication: trace and ablation, whether they agree, and what a more specific rule takes over."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import TRACE_MODE, AblationSummary, Figure, Finding
from dpdoctor.analysis.base.summary import Batch
from dpdoctor.records import (
    NOW_AND_THEN,
    PARAMETERS_EQUAL,
    TENSOR_PARALLEL,
    Check,
    Collective,
    Conversion,
    Counters,
    Strategy,
    WrappedModule,
)
from dpdoctor.rules import CannotTell, wording
from dpdoctor.rules.diagnose import ask
from dpdoctor.rules.exposed_communication import RULE
from dpdoctor.rules.rule import Said
from tests.builders.cases import (
    OWN,
    STEP_S,
    Case,
    ablation,
    by_hand,
    calling,
    figure,
    in_way,
    phases,
    ranks,
    skipped,
    unknown,
    waiting,
)
from tests.builders.cases import case as untraced
from tests.builders.documents import needs_real_traces
from tests.builders.records import ranks_alone
from tests.builders.traced_cases import STEPS, case, digest, real_cases
from tests.builders.traced_runs import size

MODEL = WrappedModule(name="Net", line="train.py:9", num_parameters=1_000, trainable_bytes=4_000)


def pair(exposed: int = 30, *, gpu: bool = True) -> tuple:
    """Return two ranks, of which the second waits 10 ms more than the first; half is hidden: no_overlap is silent."""
    hidden = {"hidden": exposed + 10, "gpu": gpu}
    return digest(0, exposed=exposed, **hidden), digest(1, exposed=exposed + 10, compute=70, **hidden)


FIRES = {
    "trace alone": case("ddp", *pair()),
    "ablation alone": untraced("ddp", world_size=2, ablations={"no_comm": ablation(0.3)}),
    "trace and ablation": case("ddp", *pair(), ablations={"no_comm": ablation(0.28)}),
    "refuted": case("ddp", *pair(), ablations={"no_comm": ablation(0.01, 0.02)}),
    **real_cases(a100x8="a100x8_rank3.json.gz", gloo="gloo_world300_rank34.json.gz"),
}
SILENT = {
    "little": case("ddp", *pair(2)),
    "little, and the ablation says so": case("ddp", *pair(2), ablations={"no_comm": ablation(0.02)}),
    "an ablation that gains nothing": untraced("ddp", world_size=2, ablations={"no_comm": ablation(0.03, 0.05)}),
    "one device": case("single", digest(world_size=1)),
    "failed": case("ddp", *pair(), status="failed"),
    **real_cases(resnet50="resnet50_num_workers_0.json.gz"),
}


def said(of: Case) -> Said:
    """Return what the rule says beside what the others find."""
    return ask(of)["exposed_communication"]


def finding(of: Case) -> Finding:
    found = said(of)
    assert isinstance(found, Finding)
    return found


def test_where_they_agree_the_more_exact_is_the_cost_and_both_are_shown() -> None:
    # Steps that are all alike: the trace is exact.
    found = finding(FIRES["trace and ablation"])
    assert found.status == "confirmed"
    assert found.cost.value == pytest.approx(30 / 110)
    assert any("33%" not in text and "no_comm" in text and "28%" in text for text in found.evidence)
    assert any(text.startswith("in the trace") for text in found.evidence)
    assert "trace and ablation agree" in found.evidence


def beside_one_device(mode: str = "ddp", **fields: Any) -> Case:
    """Return a mode whose traced steps, which a profiler slows, only communicate in 40 of 120 ms; one device takes 90
    ms of STEP_S to compute as many samples: 15 each for the passes, and 60 for the update.
    """
    batch = Batch(per_device=8.0, global_=None, rule="", source="")
    times = {"data_wait": 0.1 * STEP_S, "backward": 0.15 * STEP_S, "optimizer": 0.6 * STEP_S}
    alone = {"batch": batch, "phases": phases(times), **fields.pop("single", {})}
    compared = {"batch": batch, "speedup": figure(1.5, 0.1, "x"), **fields}
    return case(mode, *pair(40, gpu=False), single=alone, **compared)


def cost(of: Case) -> Figure:
    """Return what would go with the communication; that it was cut is told."""
    assert of.exposure is not None
    is_told = any("one device computes as many samples" in text for text in finding(of).evidence)
    assert is_told is (of.exposure.bound is not None)
    return of.exposure.removable


def test_it_is_no_more_than_a_step_takes_beyond_computing_on_one_device() -> None:
    found = cost(beside_one_device())
    assert found.value == pytest.approx(0.1)
    # What the bound itself is not sure of.
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.095
    assert 0.105 < found.high < 1 / 3


ZERO = Conversion(strategies=(*in_way("ddp").strategies, Strategy(name="zero")))
DIFFER = Check(name=PARAMETERS_EQUAL, ok=None, text="parameters differ between ranks")


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        ("fsdp", {}),
        ("native", {"native": OWN, "conversion": in_way("fsdp1")}),
        ("native", {"native": OWN, "conversion": ZERO}),
        ("native", {"native": OWN, "conversion": by_hand(in_backward=True)}),
    ],
)
def test_the_update_of_one_device_is_no_bound_where_a_rank_may_update_a_part(mode: str, fields: dict) -> None:
    """Both passes take 30 ms of STEP_S: all of the trace's third may go."""
    assert cost(beside_one_device(mode, **fields)).value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        ("ddp", {"batch": Batch(per_device=16.0, global_=None, rule="", source="")}),
        ("ddp", {"single": {"batch": Batch(per_device=None, global_=None, rule="", source="")}}),
        ("ddp", {"speedup": unknown("x", "other processes used 1.0 of 2 cores")}),
        ("native", {"native": OWN, "conversion": in_way(TENSOR_PARALLEL)}),
        ("native", {"native": OWN, "conversion": Conversion(proof=(DIFFER,))}),
        # One device was slower than a rank.
        ("ddp", {"single": {"phases": phases({"forward": STEP_S, "optimizer": STEP_S})}}),
    ],
)
def test_what_is_not_compared_with_one_device_is_not_cut(mode: str, fields: dict) -> None:
    alone = {"phases": phases({"data_wait": 0.1 * STEP_S}), **fields.pop("single", {})}
    assert cost(beside_one_device(mode, single=alone, **fields)).value == pytest.approx(1 / 3)


def test_where_they_disagree_the_ablation_is_the_cost() -> None:
    found = finding(case("ddp", *pair(), ablations={"no_comm": ablation(0.45)}))
    assert (found.status, found.cost.value) == ("confirmed", pytest.approx(0.45))


def test_the_trace_alone_is_of_the_rank_that_waits_least() -> None:
    found = finding(FIRES["trace alone"])
    assert found.status == "inferred"
    assert found.cost.value == pytest.approx(30 / 110)


@pytest.mark.parametrize(("share", "word"), [(0.5, "gains more"), (0.1, "gains less")])
def test_a_disagreement_is_said(share: float, word: str) -> None:
    found = finding(case("ddp", *pair(), ablations={"no_comm": ablation(share)}))
    assert any("disagree" in text and word in text for text in found.evidence)


def test_what_the_ablation_refutes_is_not_recommended() -> None:
    found = finding(FIRES["refuted"])
    assert (found.status, found.remedy, found.speedup) == ("refuted", None, None)


def with_others(share: float, gained: AblationSummary, *, device: str = "cpu") -> Case:
    """Return a step of which calls of collectives take a share, also without those of gradients."""
    of = [waiting(rank, share) for rank in ranks(2, device_type=device)]
    without = [
        tuple(replace(window, ablation="no_comm") if window.window == 2 else window for window in rank.windows)
        for rank in of
    ]
    of = [replace(rank, windows=windows) for rank, windows in zip(of, without, strict=True)]
    own = {"native": OWN, "conversion": by_hand(of_gradients=False), "ablations": {"no_comm": gained}}
    return untraced("native", of=of, **own)


def test_what_the_ablation_leaves_in_is_told_where_it_takes_the_time() -> None:
    found = finding(with_others(0.4, ablation(0.0, 0.02)))
    assert (found.status, found.severity, found.line) == ("inferred", "critical", "train.py:40")
    assert found.cost.value == pytest.approx(0.4)
    assert (found.remedy, found.speedup) == (None, None)
    assert said(with_others(0.04, ablation(0.0, 0.02))) is None
    assert said(with_others(0.4, ablation(0.0, 0.02), device="cuda")) is None


def test_beside_gradients_it_is_a_fact() -> None:
    found = finding(with_others(0.4, ablation(0.2)))
    assert (found.status, found.cost.value) == ("confirmed", 0.2)
    # Without the others a step is 0.8 of STEP_S, of which they take 0.4.
    assert any("leaves in take 32% of a step" in text for text in found.evidence)


def test_the_remedy_halves_the_cost() -> None:
    found = finding(FIRES["trace and ablation"])
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1 / (1 - 15 / 110))


@pytest.mark.parametrize(("mode", "is_advised"), [("ddp", True), ("fsdp", False)])
def test_accumulation_is_advised_where_it_saves_communication(mode: str, is_advised: bool) -> None:
    found = finding(case(mode, *pair(gpu=False), ablations={"no_comm": ablation(0.3)}))
    assert found.remedy is not None
    assert ("no_sync" in found.remedy) == is_advised
    assert "twice the batch" in found.remedy


def accumulating(number: int, mode: str = "ddp", library: str = "", **fields: Any) -> Finding:
    """Return what is found of so many micro-batches in a step, whose backward passes this function runs."""
    of = [
        replace(rank, steps=tuple(replace(step, micro_batches=number) for step in rank.steps))
        for rank in ranks(2, call_tree=calling(library) if library else ())
    ]
    return finding(untraced(mode, of=of, **{"ablations": {"no_comm": ablation(0.3)}, **fields}))


ONCE = {
    "native": OWN,
    "conversion": replace(in_way("ddp"), modules=(MODEL,)),
    "counters": Counters(
        operators=1,
        collectives={"all_reduce": Collective(count=1, num_bytes=MODEL.trainable_bytes)},
        inputs=(),
    ),
}


@pytest.mark.parametrize(
    "fields", [ONCE, {"native": OWN, "conversion": by_hand(in_backward=True)}], ids=["DDP", "by hand"]
)
def test_who_accumulates_already_is_not_advised_to(fields: dict) -> None:
    assert "accumulate gradients" in str(accumulating(1, "native", **fields).remedy)
    assert str(accumulating(4, "native", **fields).remedy).startswith("train on twice the batch per device:")


def test_what_is_exchanged_now_and_then_is_to_be_exchanged_less_often() -> None:
    ways = (*by_hand(of_gradients=False).strategies, Strategy(name=NOW_AND_THEN))
    found = accumulating(1, "native", native=OWN, conversion=Conversion(strategies=ways))
    assert (found.short_remedy, found.line) == ("exchange half as often", "train.py:40")
    assert "accumulate" not in str(found.remedy)


@pytest.mark.parametrize(("mode", "fields"), [("ddp", {}), ("native", {"native": OWN, "conversion": in_way("ddp")})])
def test_what_ddp_reduces_in_each_micro_batch_is_to_be_reduced_in_the_last(mode: str, fields: dict) -> None:
    found = accumulating(4, mode, **fields)
    assert found.short_remedy == "reduce gradients in the last micro-batch only"
    assert "model.no_sync()" in str(found.code)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1 / (1 - 0.3 / 2))


def test_where_the_ablation_of_it_was_measured_its_own_rule_tells() -> None:
    measured = {"no_comm": ablation(0.3), "no_sync_accumulation": ablation(0.0, 0.02)}
    assert "no_sync" not in str(accumulating(4, ablations=measured).code)


def test_where_a_library_runs_the_backward_pass_it_may_do_so_itself() -> None:
    found = accumulating(4, library="accelerate.accelerator.Accelerator.backward")
    assert (found.code, found.line) == (None, None)
    assert any("Accelerator.backward runs the backward pass" in text for text in found.evidence)
    assert "no_sync" in str(accumulating(4, library="torch._tensor.Tensor.backward").code)


def exchanging(operation: str, dtype: str, mode: str = "ddp") -> Finding:
    """Return what is found where all communication is one operation on elements of one type."""
    return finding(case(mode, *(replace(d, collectives=(size(operation, dtype=dtype),)) for d in pair())))


def test_bfloat16_is_advised_where_float32_was_read() -> None:
    assert "bf16" in str(exchanging("all_reduce", "float").code)
    for dtype in ("", "bfloat16", "char"):
        found = exchanging("all_reduce", dtype)
        assert (found.code, found.short_remedy) == (None, "train on twice the batch per device")
        assert "bfloat16" not in str(found.remedy)


@pytest.mark.parametrize(("dtype", "short"), [("float", "exchange bfloat16 instead of float32"), ("char", None)])
def test_no_larger_batch_is_advised_where_all_ranks_train_on_the_same(dtype: str, short: str | None) -> None:
    digests = [replace(d, collectives=(size("all_reduce", dtype=dtype),)) for d in pair()]
    found = finding(case("ddp", *digests, conversion=Conversion(same_samples=True)))
    assert found.short_remedy == short
    assert "batch" not in f"{found.remedy} {found.evidence}"


def test_what_goes_by_the_batch_is_not_halved_by_a_larger_one() -> None:
    found = exchanging("all_to_all", "float")
    assert (found.remedy, found.speedup) == (None, None)
    assert any("all_to_all" in text for text in found.evidence)
    # Nobody knows what ranks exchange in traces that show neither DDP nor FSDP.
    assert exchanging("all_reduce", "float", TRACE_MODE).remedy is None


def test_how_to_know_names_no_option_that_was_given_and_no_ablation_that_was_skipped() -> None:
    def reason(**fields: object) -> str:
        found = said(untraced("ddp", world_size=2, **fields))
        assert isinstance(found, CannotTell)
        return found.reason

    assert "--ablations no_comm" in reason()
    assert "--trace-steps" not in reason()  # 12 were asked for
    known = reason(ablations={"no_comm": skipped()}, trace_reason="the script ended after 3 steps")
    assert "the script ended after 3 steps" in known
    assert str(skipped().share.reason) in known
    assert "--ablations" not in known


@pytest.mark.parametrize(("rounds", "said_"), [(10, "profile with more --rounds"), (3, "a longer --time-budget")])
def test_rounds_that_did_not_fit_need_time_and_no_option_of_their_number(rounds: int, said_: str) -> None:
    known = ablation(0.0, 0.02)
    share = replace(known.share, n=rounds)
    found = wording.how_to_ablation(untraced("ddp", world_size=2, ablations={"no_comm": replace(known, share=share)}))
    assert found.startswith(said_)


def test_steps_that_were_not_traced_need_time_and_no_option_of_their_number() -> None:
    few, asked = case("ddp", *pair()), untraced("ddp", world_size=2).spec.recording.trace_steps
    assert asked == STEPS + 2
    assert wording.how_to_trace(few) == f"profile with --trace-steps {2 * asked}"
    cut = [replace(d, devices=tuple(replace(of, steps=of.steps[:4]) for of in d.devices)) for d in pair()]
    assert wording.how_to_trace(case("ddp", *cut)).startswith("a longer --time-budget")


def test_a_remedy_of_trace_and_ablation_is_said_once() -> None:
    known = ablation(0.0, 0.02)
    short = {"no_comm": replace(known, share=replace(known.share, n=3))}
    longer = wording.how_to_either(untraced("ddp", world_size=2, ablations=short))
    assert longer == "a longer --time-budget leaves time for more rounds or a trace"
    apart = wording.how_to_either(untraced("ddp", world_size=2))
    assert apart == "profile with --ablations no_comm; or a longer --time-budget leaves time for a trace"


def test_without_a_gpu_the_cores_are_named() -> None:
    assert any("cores" in text for text in finding(case("ddp", *pair(gpu=False))).evidence)
    assert not any("cores" in text for text in finding(case("ddp", *pair())).evidence)


def broadcasting(exposed: int) -> Case:
    """Return a step of 110 ms, 30 of them exposed communication, of which broadcasts are so many."""
    calls = [("broadcast", 10_000_000, exposed, exposed)]
    counters = Counters(operators=1, collectives={"broadcast": Collective(count=1, num_bytes=10_000_000)}, inputs=())
    return case("ddp", *(digest(rank, exposed=30, calls=calls, gpu=False) for rank in range(2)), counters=counters)


def test_a_part_with_a_name_of_its_own_makes_it_a_fact_behind() -> None:
    found = finding(broadcasting(15))
    assert found.severity == "info"
    assert "the finding buffer_broadcast is 50% of it" in found.evidence


def test_a_part_that_nothing_mends_leaves_it_to_be_mended() -> None:
    of = broadcasting(15)
    part = ask(of)["buffer_broadcast"]
    assert isinstance(part, Finding)
    found = RULE.check(of, [replace(part, rule="straggler", severity="info")])
    assert isinstance(found, Finding)
    assert found.severity != "info"
    assert "the finding straggler is 50% of it" in found.evidence


def test_what_another_finding_says_is_not_said_twice() -> None:
    assert said(broadcasting(28)) is None


@pytest.mark.parametrize("ablations", [{}, {"no_comm": skipped()}])
def test_it_cannot_tell_without_trace_and_ablation(ablations: dict) -> None:
    assert isinstance(said(untraced("ddp", world_size=2, ablations=ablations)), CannotTell)


@needs_real_traces
def test_a_single_rank_of_many_says_that_waiting_is_included() -> None:
    assert any("left no trace" in text for text in finding(FIRES["a100x8"]).evidence)


def test_a_larger_batch_spreads_more_than_the_communication_so_that_its_gain_has_no_upper_end() -> None:
    # Half of 30%, of which the ablation knows 28 to 32.
    found = finding(untraced("ddp", world_size=2, ablations={"no_comm": ablation(0.3, 0.02)}))
    assert found.speedup is not None
    assert (found.speedup.value, found.speedup.low, found.speedup.high) == pytest.approx((1 / 0.85, 1 / 0.86, None))


@pytest.mark.parametrize(("late_ms", "is_told"), [(20, True), (0, False)])
def test_waiting_for_ranks_in_turns_is_no_less_with_a_larger_batch(late_ms: float, is_told: bool) -> None:
    # Without communication ranks take 60 ms in the mean, and would take 10 more if they met in each step.
    times = [60 - late_ms / 2, 60 + late_ms / 2] * 2
    of = ranks_alone(times, times[::-1])
    found = finding(untraced("ddp", world_size=2, of=of, ablations={"no_comm": ablation(0.4, 0.02)}))
    of_exchange = 0.4 - late_ms / 2 / 100
    assert found.cost.value == pytest.approx(0.4)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1 / (1 - of_exchange / 2))
    assert any("whichever rank is late takes 10% of a step" in text for text in found.evidence) == is_told
    traced = [replace(rank, digest=digest) for rank, digest in zip(of, pair(gpu=False), strict=True)]
    refuted = finding(untraced("ddp", world_size=2, of=traced, ablations={"no_comm": ablation(0.01, 0.02)}))
    assert refuted.status == "refuted"
    assert not any("whichever rank" in text for text in refuted.evidence)
