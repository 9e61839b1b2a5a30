from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor.analysis import HostSync, ModeSummary
from dpdoctor.gate import counters, exact
from dpdoctor.gate.exact import compare
from dpdoctor.gate.model import Difference
from dpdoctor.gate.sides import Checkout
from dpdoctor.launch.progress import Silence
from dpdoctor.records import Collective, InputTensor
from dpdoctor.report.gate import ci
from tests.builders import launched_runs
from tests.builders.counted_modes import COUNTERS, PEAK, mode, other

ITEM = COUNTERS.syncs[0]
BASE = mode()


def inputs(dtype: str = "float32", rows: int = 32) -> tuple[InputTensor, ...]:
    width = {"float64": 8, "float32": 4, "bfloat16": 2}[dtype]
    return (InputTensor(dtype=dtype, shape=(rows, 3), num_bytes=rows * 3 * width),)


def differing(head: ModeSummary) -> dict[str, Difference]:
    return {item.name: item for item in compare(BASE, head, None).differences}


def test_of_a_run_and_itself_nothing_differs_and_it_says_what_would_have_been_seen() -> None:
    found = compare(BASE, mode(), mode())
    assert (found.outcome, found.compared, found.differences, found.left_out) == ("pass", 10, (), ())
    assert re.findall(r"\d+ counters|peak memory|[\d.]+%", found.reason) == ["10 counters", "peak memory", "10%"]


@pytest.mark.parametrize(
    ("name", "fields", "base", "head"),
    [
        ("all_reduce.count", {"collectives": {"all_reduce": Collective(count=3, num_bytes=1000)}}, 2, 3),
        ("all_reduce.bytes", {"collectives": {"all_reduce": Collective(count=2, num_bytes=2000)}}, 1000, 2000),
        (
            "broadcast.count",
            {"collectives": {**COUNTERS.collectives, "broadcast": Collective(count=1, num_bytes=0)}},
            0,
            1,
        ),
        ("syncs.item", {"syncs": (ITEM, replace(ITEM, line="/head/a.py:9", code="loss.item()"))}, 1, 2),
        ("syncs.tolist", {"syncs": (ITEM, replace(ITEM, call="tolist"))}, 0, 1),
        ("operators", {"operators": 701}, 700, 701),
        ("allocations", {"allocations": 51}, 50, 51),
        ("micro_batches", {"micro_batches": 2}, 1, 2),
        ("inputs.bytes", {"inputs": inputs(rows=64)}, 384, 768),
        ("inputs.bytes", {"inputs": inputs("float64")}, 384, 768),
    ],
)
def test_what_grew_is_a_regression(name: str, fields: dict[str, object], base: int, head: int) -> None:
    grown = mode(other(**fields))
    found = compare(BASE, grown, mode())
    assert found.outcome == "regressed"
    item = differing(grown)[name]
    assert (item.base, item.head, item.change) == (base, head, "more")
    back = compare(grown, BASE, None)
    assert back.outcome in ("pass", "inconclusive")
    assert {item.change for item in back.differences} <= {"less", "other"}


def test_the_reason_has_the_cause_before_what_it_entails() -> None:
    head = mode(other(operators=760, collectives={"all_reduce": Collective(count=3, num_bytes=1004)}, allocations=51))
    found = compare(BASE, head, None)
    first = found.differences[:3]
    assert [item.name for item in first] == ["all_reduce.count", "all_reduce.bytes", "allocations"]
    assert ", ".join(counters.told(item) for item in first) in found.reason
    assert re.findall(r"\d+(?:,\d+)*", found.reason) == ["10", "3", "2", "1,004", "1,000", "51", "50", "1"]
    assert "1 other" in found.reason


def test_what_fell_is_told_and_passes() -> None:
    found = compare(BASE, mode(other(syncs=())), None)
    assert (found.outcome, [item.name for item in found.differences]) == ("pass", ["syncs.item"])
    assert counters.told(found.differences[0]) in found.reason
    assert re.findall(r"\d+", found.reason) == ["10", "0", "1"]


@pytest.mark.parametrize("fields", [{"inputs": inputs("bfloat16")}, {"inputs": inputs(rows=16)}, {"micro_batches": 0}])
def test_a_step_on_another_batch_is_neither_better_nor_worse(fields: dict[str, object]) -> None:
    found = compare(BASE, mode(other(**fields)), None)
    assert found.outcome == "inconclusive"
    assert found.differences[0].change == "other"
    others = [item for item in found.differences if item.change == "other"]
    assert ", ".join(counters.told(item) for item in others) in found.reason
    assert "new base" in found.reason


def test_a_batch_of_another_kind_that_grew_is_told_with_what_it_was() -> None:
    found = differing(mode(other(inputs=inputs("float64"))))
    assert (found["inputs"].base, found["inputs"].head) == ("float32 32x3", "float64 32x3")


class TestPeakMemory:
    @pytest.mark.parametrize(
        ("device", "growth", "outcome"),
        [("cpu", 1.09, "pass"), ("cpu", 1.11, "regressed"), ("cuda:0", 1.01, "pass"), ("cuda:0", 1.03, "regressed")],
    )
    def test_it_may_grow_by_what_it_varies(self, device: str, growth: float, outcome: str) -> None:
        base, head = (mode(peak=round(PEAK * factor), device=device) for factor in (1.0, growth))
        assert compare(base, head, None).outcome == outcome

    def test_that_of_no_rank_is_no_counter(self) -> None:
        found = compare(mode(peak=None), mode(peak=None), None)
        assert (found.outcome, found.compared) == ("pass", 9)
        assert "peak memory" not in found.reason

    def test_that_of_one_run_alone_is_left_out(self) -> None:
        found = compare(mode(), mode(peak=None), None)
        assert [(item.name, item.reason) for item in found.left_out] == [
            (counters.PEAK_MEMORY, "head does not have it")
        ]


class TestWhatVaries:
    def test_it_is_left_out_by_name(self) -> None:
        again = mode(other(operators=703, allocations=53))
        found = compare(BASE, mode(other(operators=799, allocations=99)), again)
        assert (found.outcome, found.compared, found.differences) == ("pass", 8, ())
        assert {item.name: re.findall(r"\d+|base|head", item.reason) for item in found.left_out} == {
            "operators": ["700", "base", "703", "base"],
            "allocations": ["50", "base", "53", "base"],
        }

    def test_what_does_not_vary_is_still_seen(self) -> None:
        head = other(operators=799, collectives={"all_reduce": Collective(count=3, num_bytes=1000)})
        found = compare(BASE, mode(head), mode(other(operators=703)))
        assert [item.name for item in found.differences] == ["all_reduce.count"]

    def test_what_only_the_second_run_of_base_did_varies(self) -> None:
        again = mode(other(syncs=(ITEM, replace(ITEM, call="tolist"))))
        head = mode(other(syncs=(ITEM, replace(ITEM, call="tolist", count=4))))
        assert compare(BASE, head, again).outcome == "pass"

    def test_peak_memory_within_its_allowance_does_not(self) -> None:
        assert compare(BASE, mode(peak=round(1.5 * PEAK)), mode(peak=round(1.05 * PEAK))).outcome == "regressed"


class TestHeadRunAgain:
    def test_what_head_did_only_once_varies(self) -> None:
        found = compare(BASE, mode(other(operators=799)), mode(), mode(other(operators=700)))
        assert (found.outcome, found.differences) == ("pass", ())
        (item,) = found.left_out
        assert item.name == "operators"
        assert re.findall(r"\d+|base|head", item.reason) == ["799", "head", "700", "head"]

    def test_what_it_does_each_time_stays_a_regression_though_not_alike(self) -> None:
        found = compare(BASE, mode(other(operators=799)), mode(), mode(other(operators=801)))
        assert (found.outcome, [item.name for item in found.differences]) == ("regressed", ["operators"])

    def test_it_is_no_evidence_where_it_failed(self) -> None:
        failed = replace(mode(), status="failed", reason="rank 1 raised")
        found = compare(BASE, BASE, None, failed)
        assert (found.outcome, found.compared) == ("inconclusive", 0)
        side, _, why = found.reason.partition(": ")
        assert (side, why) == ("head, run again", failed.reason)


class TestTheLine:
    def test_it_is_the_one_that_base_does_not_have_though_others_moved(self) -> None:
        added = HostSync(call="item", line="/head/a.py:9", count=1, code="if loss.item() > 3:")
        moved = replace(ITEM, line="/head/a.py:11")
        assert differing(mode(other(syncs=(added, moved))))["syncs.item"].line == "/head/a.py:9"

    def test_it_is_the_one_that_waits_more_often(self) -> None:
        often = replace(ITEM, line="/head/a.py:12", count=3)
        assert differing(mode(other(syncs=(often,))))["syncs.item"].line == "/head/a.py:12"

    def test_without_the_text_of_lines_it_is_not_known(self) -> None:
        bare = replace(ITEM, line="/head/a.py:12", count=3, code="")
        assert differing(mode(other(syncs=(bare,))))["syncs.item"].line is None

    def test_other_counters_have_none(self) -> None:
        assert differing(mode(other(operators=701)))["operators"].line is None


class TestWhatIsNoEvidence:
    @pytest.mark.parametrize("side", ["base", "head", "base, run again"])
    def test_a_mode_that_failed(self, side: str) -> None:
        failed = replace(mode(), status="failed", reason="rank 1 raised")
        modes = {"base": BASE, "head": BASE, "base, run again": BASE, side: failed}
        found = compare(*modes.values())
        assert (found.outcome, found.compared) == ("inconclusive", 0)
        assert found.reason == f"{side}: rank 1 raised"

    def test_a_mode_that_did_nothing(self) -> None:
        inactive = replace(mode(), status="inactive", reason="there is no accelerator")
        assert compare(inactive, inactive, None).outcome == "inconclusive"

    def test_a_mode_of_which_no_step_was_counted(self) -> None:
        found = compare(BASE, mode(None), None)
        assert (found.outcome, found.compared) == ("inconclusive", 0)
        side, _, why = found.reason.partition(": ")
        assert side == "head"
        assert "no step" in why

    def test_a_run_in_which_everything_varies(self) -> None:
        bare = other(operators=1, collectives={}, inputs=(), syncs=(), micro_batches=None, allocations=None)
        again = replace(bare, operators=2, inputs=inputs())
        found = compare(mode(bare, peak=None), mode(bare, peak=None), mode(again, peak=None))
        assert (found.outcome, found.reason) == ("inconclusive", "no counter could be compared")


def test_an_interrupted_gate_is_an_error_of_each_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = launched_runs.of(10).header
    checkout = Checkout(label="base", spec=header.spec, header=header)
    monkeypatch.setattr(exact, "launch", lambda *_: None)
    done = exact.gate(exact.CountedGate(root=tmp_path, base=checkout, head=checkout), Silence())
    assert done.outcome == "inconclusive"
    assert {name: one.reason for name, one in done.exact.items()} == {"ddp": exact.INTERRUPTED}
    assert 'errors="1"' in ci.junit(done)
    assert exact.INTERRUPTED in ci.workflow_commands(done, tmp_path)


@given(base=st.integers(0, 50), head=st.integers(0, 50), again=st.integers(0, 50))
def test_any_counter_is_left_out_or_judged_by_its_direction(base: int, head: int, again: int) -> None:
    found = compare(*(mode(other(operators=number)) for number in (base, head, again)))
    if base != again:
        assert [item.name for item in found.left_out] == ["operators"]
        assert found.outcome == "pass"
    else:
        assert found.outcome == ("regressed" if head > base else "pass")
        assert [item.change for item in found.differences] == (["more"] if head > base else ["less"] * (head < base))
