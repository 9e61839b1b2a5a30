"""A gate as workflow commands, read back as GitHub's runner reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

import pytest

from dpdoctor.gate.model import GateResult
from dpdoctor.report.gate import annotations
from tests.builders import gate_results as results

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
    for line in annotations.commands(result, PurePath(results.HEAD)).split("\n")[:-1]:
        match = COMMAND.fullmatch(line)
        assert match is not None, line
        pairs = (pair.split("=", 1) for pair in match["parameters"].split(","))
        found.append(Command(match["name"], {k: unescaped(v) for k, v in pairs}, unescaped(match["message"])))
    return found


@pytest.mark.parametrize("make", results.EVERY)
class TestEveryResult:
    def test_every_line_is_one_command(self, make: Callable[[], GateResult]) -> None:
        assert {command.name for command in read(make())} <= {"error", "warning", "notice"}

    def test_there_are_no_more_than_github_shows(self, make: Callable[[], GateResult]) -> None:
        names = [command.name for command in read(make())]
        assert names
        assert max(map(names.count, names)) <= annotations.MOST_OF_A_KIND

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
    text = annotations.commands(results.regressed(), PurePath("/home/me/other"))
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
