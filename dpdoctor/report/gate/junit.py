"""A gate as the XML that CI systems read as a test report, in the form that JUnit's runner for Ant gave it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

import msgspec

from dpdoctor.gate.model import GateResult, Outcome
from dpdoctor.redact import printable
from dpdoctor.report.gate import content
from dpdoctor.report.text import clipped

NAME = "dpdoctor gate"
LONGEST_MESSAGE = 300
# What could not be judged is an error, as a test is that could not run; a failure says that head is worse. Nothing is
# `skipped`: CI systems take that for harmless.
_TAGS: dict[Outcome, str] = {"regressed": "failure", "inconclusive": "error", "refused": "error"}


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    outcome: Outcome
    reason: str
    details: tuple[str, ...]


def document(result: GateResult) -> str:
    """Return the XML: a test case for every mode that was judged by its time, and for every one by its counters.

    Where base and head may not be compared, a case of its own says so. Characters that XML cannot hold are replaced.
    """
    cases = [*_refused(result), *_cases(result)]
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


def _refused(result: GateResult) -> Iterator[_Case]:
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
