"""A gate as workflow commands, read back as GitHub's runner does, and as a test report, read back by an XML parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from dpdoctor.gate.model import GateResult
from dpdoctor.report.gate import ci, content
from tests.builders import gate_results as results
from tests.builders.figures import figures

COMMAND = re.compile(r"::(?P<name>\w+) (?P<parameters>[^:]*)::(?P<message>.*)")


class Command(NamedTuple):
    name: str
    parameters: dict[str, str]
    message: str


def unescaped(text: str) -> str:
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, character)
    return text


def read(result: GateResult) -> list[Command]:
    """Return the commands; every line must be one."""
    found = []
    for line in ci.workflow_commands(result, PurePath(results.HEAD)).split("\n")[:-1]:
        match = COMMAND.fullmatch(line)
        assert match is not None, line
        pairs = (pair.split("=", 1) for pair in match["parameters"].split(","))
        found.append(Command(match["name"], {k: unescaped(v) for k, v in pairs}, unescaped(match["message"])))
    return found


@pytest.mark.parametrize("make", results.EVERY)
class TestEveryCommand:
    def test_every_line_is_one_command(self, make: Callable[[], GateResult]) -> None:
        assert {command.name for command in read(make())} <= {"error", "warning", "notice"}

    def test_there_are_no_more_than_github_shows(self, make: Callable[[], GateResult]) -> None:
        names = [command.name for command in read(make())]
        assert names
        assert max(map(names.count, names)) <= ci.MOST_OF_A_KIND

    def test_an_error_is_there_only_where_something_regressed(self, make: Callable[[], GateResult]) -> None:
        result = make()
        assert any(command.name == "error" for command in read(result)) == (result.outcome == "regressed")


def test_a_pass_is_a_notice_with_the_effect() -> None:
    time, counters = read(results.passed())
    assert (time.name, counters.name) == ("notice", "notice")
    assert time.message == f"ddp, time: {results.mode().reason}"
    assert time.parameters == {"title": "dpdoctor gate"}


def test_a_wait_is_told_at_its_line() -> None:
    found = [command for command in read(results.regressed()) if "file" in command.parameters]
    (wait,) = found
    assert wait.parameters == {"file": "src/train.py", "line": "41", "title": "dpdoctor gate"}
    assert wait.message == "ddp: waits by item 2 instead of 1, at /home/me/head/src/train.py:41."


def test_a_line_outside_of_the_checkout_has_no_place() -> None:
    text = ci.workflow_commands(results.regressed(), PurePath("/home/me/other"))
    assert "file=" not in text
    assert "waits by item" in text


def test_what_could_not_be_judged_is_a_warning() -> None:
    assert {command.name for command in read(results.undecided())} == {"warning"}
    fields = [command.message.partition(":")[0] for command in read(results.refused())]
    assert fields == ["torch", "calibration"]


def test_the_last_counts_the_rest() -> None:
    errors = [command for command in read(results.many()) if command.name == "error"]
    # One of the mode, 400 of its lines; the last of the ten stands for all that are not shown.
    assert errors[-1].message == "and 392 more"


def test_hostile_text_stays_inside_of_its_command() -> None:
    found = [command for command in read(results.hostile()) if "file" in command.parameters]
    assert [command.parameters["file"] for command in found] == ["a,b:c%\n::warning::y.py"]
    message = next(command.message for command in read(results.hostile()) if command.name == "error")
    assert "::error::x%0A@team" in message


def suite(result: GateResult) -> ET.Element:
    (found,) = ET.fromstring(ci.junit(result).encode())
    return found


def cases(result: GateResult) -> dict[tuple[str, str], ET.Element]:
    return {(case.attrib["classname"], case.attrib["name"]): case for case in suite(result).iter("testcase")}


def tags(result: GateResult) -> dict[tuple[str, str], str]:
    return {name: case[0].tag for name, case in cases(result).items()}


@pytest.mark.parametrize("make", results.EVERY)
class TestEveryReport:
    def test_the_counts_are_those_of_the_cases(self, make: Callable[[], GateResult]) -> None:
        found = suite(make())
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(found.attrib[name]) == len(list(found.iter(tag)))

    def test_a_case_is_green_only_where_it_passed(self, make: Callable[[], GateResult]) -> None:
        result = make()
        outcomes = [outcome for _, _, outcome, _ in content.judged(result)]
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
    reason, replaced = time.findtext("system-out", "").splitlines()
    assert reason == results.mode().reason
    assert replaced.startswith("pair 8: ")
    assert str(results.THROTTLED.replaced) in replaced


def test_a_regression_is_a_failure_with_what_moved() -> None:
    result = results.regressed()
    found = cases(result)
    assert tags(results.regressed()) == {
        ("dpdoctor.time", "ddp"): "failure",
        ("dpdoctor.time", "fsdp"): "system-out",
        ("dpdoctor.counters", "ddp"): "failure",
    }
    failure = found["dpdoctor.time", "ddp"][0]
    assert failure.attrib == {"type": "regressed", "message": result.modes["ddp"].reason}
    (phase,) = [line for line in (failure.text or "").splitlines() if "data_wait" in line]
    assert figures(phase) == ["60.0 ms", "59.0", "61.0", "70.0 ms", "69.0", "71.0"]
    counted = (found["dpdoctor.counters", "ddp"][0].text or "").splitlines()
    (waits,) = [line for line in counted if str(results.SYNC.line) in line]
    assert waits.startswith("waits by item ")
    assert figures(waits)[:2] == ["2", "1"]


def test_what_could_not_be_judged_is_an_error() -> None:
    assert {*tags(results.undecided()).values()} == {"error"}


def test_what_may_not_be_compared_is_an_error_that_names_the_fields() -> None:
    (case,) = cases(results.refused()).values()
    assert (case[0].tag, case[0].attrib["type"]) == ("error", "refused")
    torch, *_ = results.refused().refusals
    (line,) = {line for line in (case[0].text or "").splitlines() if line.startswith("torch: ")}
    assert all(str(words) in line for words in (torch.base, torch.head, torch.remedy))
    assert line.index(str(torch.base)) < line.index(str(torch.head))
    assert "host" not in (case[0].text or "")


def test_hostile_text_is_text() -> None:
    document = ci.junit(results.hostile())
    assert not {*document} & {*map(chr, range(9)), "\x1b", "\ufffe", "\ud800", "\N{RIGHT-TO-LEFT OVERRIDE}"}
    (failure, *_) = suite(results.hostile()).iter("failure")
    assert "<img src=x onerror=alert(1)>" in (failure.text or "")
    assert "]]>" in (failure.text or "")


def test_no_message_is_longer_than_a_list_of_tests_can_show() -> None:
    messages = [case.attrib["message"] for case in suite(results.many()).iter("failure")]
    assert messages
    assert max(map(len, messages)) <= ci.LONGEST_MESSAGE
