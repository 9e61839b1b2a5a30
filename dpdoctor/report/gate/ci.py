"""A gate for CI systems: workflow commands, of which GitHub makes annotations, and the XML of a JUnit test report.

An annotation stands beside the script's line, where one is known. The XML has the form of JUnit's runner for Ant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from xml.etree import ElementTree as ET

import msgspec

from dpdoctor import units
from dpdoctor.gate.model import GateResult, Outcome
from dpdoctor.redact import printable
from dpdoctor.report.gate import content
from dpdoctor.report.text import clipped, mode_label

# GitHub shows ten of a kind per step.
MOST_OF_A_KIND = 10
LONGEST_ANNOTATION = 1_000
NAME = "dpdoctor gate"
_COMMANDS: dict[Outcome, str] = {
    "pass": "notice",
    "regressed": "error",
    "inconclusive": "warning",
    "refused": "warning",
}
LONGEST_MESSAGE = 300
# What could not be judged is an error, as a test is that could not run; a failure says that head is worse. Nothing is
# `skipped`: CI systems take that for harmless.
_TAGS: dict[Outcome, str] = {"regressed": "failure", "inconclusive": "error", "refused": "error"}


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    message: str
    line: str | None = None


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    outcome: Outcome
    reason: str
    details: tuple[str, ...]


def workflow_commands(result: GateResult, root: PurePath) -> str:
    """Return a workflow command a line; of each kind no more than GitHub shows, of which the last counts the rest.

    `root`: the checkout of head, to which GitHub's file names are relative. Text from the runs cannot end a command nor
    begin another.
    """
    notes = [*_refusal_notes(result), *_judged_notes(result)]
    kinds = dict.fromkeys(note.command for note in notes)
    shown = [note for kind in kinds for note in _few(kind, [note for note in notes if note.command == kind])]
    return "".join(f"{_command(note, root)}\n" for note in shown)


def _refusal_notes(result: GateResult) -> Iterator[_Note]:
    yield from (_Note(command="warning", message=line) for line in content.refusals(result, hard=True))


def _judged_notes(result: GateResult) -> Iterator[_Note]:
    """Yield a note for each mode; of counters that grew at a known line another one there."""
    for name, kind, outcome, reason in content.judged(result):
        yield _Note(command=_COMMANDS[outcome], message=f"{mode_label(name)}, {kind}: {reason}")
    for name, exact in result.exact.items():
        for item, told in zip(exact.differences, content.differences(exact), strict=True):
            if item.line is not None and item.change == "more":
                yield _Note(command="error", message=f"{mode_label(name)}: {told}", line=item.line)


def _few(kind: str, notes: list[_Note]) -> list[_Note]:
    if len(notes) <= MOST_OF_A_KIND:
        return notes
    more = len(notes) - (MOST_OF_A_KIND - 1)
    return [*notes[: MOST_OF_A_KIND - 1], _Note(command=kind, message=f"and {units.whole(more)} more")]


def _command(note: _Note, root: PurePath) -> str:
    place = _place(note.line, root) if note.line else {}
    parameters = ",".join(f"{name}={_parameter(value)}" for name, value in {**place, "title": NAME}.items())
    return f"::{note.command} {parameters}::{_data(printable(clipped(note.message, LONGEST_ANNOTATION)))}"


def _place(line: str, root: PurePath) -> dict[str, str]:
    """Return file and line of the script as GitHub knows them; nothing of what lies outside of the checkout."""
    path, _, number = line.rpartition(":")
    if not number.isdecimal() or not PurePath(path).is_relative_to(root):
        return {}
    return {"file": str(PurePath(path).relative_to(root)), "line": number}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _parameter(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")


def junit(result: GateResult) -> str:
    """Return the XML: a test case for every mode that was judged by its time, and for every one by its counters.

    Where base and head may not be compared, a case of its own says so. Characters that XML cannot hold are replaced.
    """
    cases = [*_refused_cases(result), *_cases(result)]
    suites = ET.Element("testsuites", _counts(cases))
    suite = ET.SubElement(suites, "testsuite", {**_counts(cases), "skipped": "0"})
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(result).items():
        ET.SubElement(properties, "property", {"name": name, "value": printable(value)})
    for case in cases:
        _add(suite, case)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _counts(cases: Sequence[_Case]) -> dict[str, str]:
    tags = [_TAGS.get(case.outcome, "") for case in cases]
    found = {"tests": len(tags), "failures": tags.count("failure"), "errors": tags.count("error")}
    return {"name": NAME, **{name: str(number) for name, number in found.items()}}


def _properties(result: GateResult) -> dict[str, str]:
    return {"kind": result.kind, "base": result.base.label, "head": result.head.label, "dpdoctor": result.dpdoctor}


def _refused_cases(result: GateResult) -> Iterator[_Case]:
    told = tuple(content.refusals(result, hard=True))
    if told:
        yield _Case(name="base and head", kind="comparable", outcome="refused", reason=told[0], details=told)


def _cases(result: GateResult) -> Iterator[_Case]:
    details = {
        content.TIME: lambda name: [*content.moved(result.modes[name]), *content.replaced(result.modes[name])],
        content.COUNTERS: lambda name: [
            *content.differences(result.exact[name]),
            *content.left_out(result.exact[name]),
        ],
    }
    for name, kind, outcome, reason in content.judged(result):
        yield _Case(name=name, kind=kind, outcome=outcome, reason=reason, details=tuple(details[kind](name)))


def _add(suite: ET.Element, case: _Case) -> None:
    names = {"classname": f"dpdoctor.{case.kind}", "name": printable(clipped(case.name, LONGEST_MESSAGE))}
    element = ET.SubElement(suite, "testcase", names)
    text = printable("\n".join((case.reason, *case.details)))
    tag = _TAGS.get(case.outcome)
    if tag is None:
        ET.SubElement(element, "system-out").text = text
        return
    told = {"type": case.outcome, "message": printable(clipped(case.reason, LONGEST_MESSAGE))}
    ET.SubElement(element, tag, told).text = text
