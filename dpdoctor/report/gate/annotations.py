"""A gate as workflow commands, of which GitHub makes annotations: beside the script's line, where one is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import msgspec

from dpdoctor import units
from dpdoctor.gate.model import GateResult, Outcome
from dpdoctor.redact import printable
from dpdoctor.report.gate import content
from dpdoctor.report.text import clipped, mode_label

# GitHub shows ten of a kind per step.
MOST_OF_A_KIND = 10
LONGEST_MESSAGE = 1_000
_TITLE = "dpdoctor gate"
_COMMANDS: dict[Outcome, str] = {
    "pass": "notice",
    "regressed": "error",
    "inconclusive": "warning",
    "refused": "warning",
}


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    message: str
    line: str | None = None


def commands(result: GateResult, root: PurePath) -> str:
    """Return a workflow command a line; of each kind no more than GitHub shows, of which the last counts the rest.

    `root`: the checkout of head, to which GitHub's file names are relative. Text from the runs cannot end a command nor
    begin another.
    """
    notes = [*_refusals(result), *_judged(result)]
    kinds = dict.fromkeys(note.command for note in notes)
    shown = [note for kind in kinds for note in _few(kind, [note for note in notes if note.command == kind])]
    return "".join(f"{_command(note, root)}\n" for note in shown)


def _refusals(result: GateResult) -> Iterator[_Note]:
    yield from (_Note(command="warning", message=line) for line in content.refusals(result, hard=True))


def _judged(result: GateResult) -> Iterator[_Note]:
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
    parameters = ",".join(f"{name}={_parameter(value)}" for name, value in {**place, "title": _TITLE}.items())
    return f"::{note.command} {parameters}::{_data(printable(clipped(note.message, LONGEST_MESSAGE)))}"


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
