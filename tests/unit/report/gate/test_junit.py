"""A gate as a test report, read back by an XML parser."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from dpdoctor.gate.model import GateResult
from dpdoctor.report.gate import junit, words
from tests.builders import gate_results as results


def suite(result: GateResult) -> ET.Element:
    (found,) = ET.fromstring(junit.document(result).encode())
    return found


def cases(result: GateResult) -> dict[tuple[str, str], ET.Element]:
    return {(case.attrib["classname"], case.attrib["name"]): case for case in suite(result).iter("testcase")}


def tags(result: GateResult) -> dict[tuple[str, str], str]:
    return {name: case[0].tag for name, case in cases(result).items()}


@pytest.mark.parametrize("make", results.EVERY)
class TestEveryResult:
    def test_the_counts_are_those_of_the_cases(self, make: Callable[[], GateResult]) -> None:
        found = suite(make())
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(found.attrib[name]) == len(list(found.iter(tag)))

    def test_a_case_is_green_only_where_it_passed(self, make: Callable[[], GateResult]) -> None:
        result = make()
        outcomes = [outcome for _, _, outcome, _ in words.judged(result)]
        assert sum(case[0].tag == "system-out" for case in suite(result).iter("testcase")) == outcomes.count("pass")
        assert (result.outcome == "pass") == (
            not list(suite(result).iter("failure")) + list(suite(result).iter("error"))
        )


def test_a_pass_says_what_was_seen() -> None:
    (time, counters) = cases(results.passed()).values()
    assert (time.attrib, counters.attrib["classname"]) == (
        {"classname": "dpdoctor.time", "name": "ddp"},
        "dpdoctor.counters",
    )
    text = time.findtext("system-out", "")
    assert text.startswith("the step takes 0.4 % longer (-1.2 to 2.0 %, 7 pairs)")
    assert "pair 8: the GPU was throttled in head." in text


def test_a_regression_is_a_failure_with_what_moved() -> None:
    found = cases(results.regressed())
    assert tags(results.regressed()) == {
        ("dpdoctor.time", "ddp"): "failure",
        ("dpdoctor.time", "fsdp"): "system-out",
        ("dpdoctor.counters", "ddp"): "failure",
    }
    failure = found["dpdoctor.time", "ddp"][0]
    assert failure.attrib == {"type": "regressed", "message": "the step takes 9.8 % longer (8.1 to 11.5 %, 7 pairs)"}
    assert "phase data_wait: 60.0 ms (59.0 to 61.0 ms) before, 70.0 ms (69.0 to 71.0 ms) now." in (failure.text or "")
    counted = found["dpdoctor.counters", "ddp"][0].text or ""
    assert "waits by item 2 instead of 1, at /home/me/head/src/train.py:41." in counted


def test_what_could_not_be_judged_is_an_error() -> None:
    assert {*tags(results.undecided()).values()} == {"error"}


def test_what_may_not_be_compared_is_an_error_that_names_the_fields() -> None:
    (case,) = cases(results.refused()).values()
    assert (case[0].tag, case[0].attrib["type"]) == ("error", "refused")
    assert "torch: 2.11.0 in base, 2.15.0 in head. save the baseline anew with this torch." in (case[0].text or "")
    assert "host" not in (case[0].text or "")


def test_hostile_text_is_text() -> None:
    document = junit.document(results.hostile())
    assert not {*document} & {*map(chr, range(9)), "\x1b", "\ufffe", "\ud800", "\N{RIGHT-TO-LEFT OVERRIDE}"}
    (failure, *_) = suite(results.hostile()).iter("failure")
    assert "<img src=x onerror=alert(1)>" in (failure.text or "")
    assert "]]>" in (failure.text or "")


def test_no_message_is_longer_than_a_list_of_tests_can_show() -> None:
    messages = [case.attrib["message"] for case in suite(results.many()).iter("failure")]
    assert messages
    assert max(map(len, messages)) <= junit.LONGEST_MESSAGE
