"""What terminal and markdown tell of a gate, in the same words and order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpdoctor.gate.model import GateResult
from dpdoctor.report.blocks import Headline, Table
from dpdoctor.report.gate import lines
from dpdoctor.report.gate.tables import tables
from dpdoctor.report.gate.words import headline


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A gate in plain text. Text from a run or a baseline is in it as it was; whoever shows it must escape it.

    Attributes:
        reasons: why each mode has its outcome; on pass, too.
        lists: titles with their lines, one at least each.
        origin: what was compared.
    """

    verdict: Headline
    reasons: tuple[str, ...]
    tables: tuple[Table, ...]
    lists: tuple[tuple[str, tuple[str, ...]], ...]
    origin: tuple[str, ...]


def content(result: GateResult) -> Content:
    """Return what is to be told of a gate."""
    return Content(
        verdict=headline(result),
        reasons=tuple(lines.reasons(result)),
        tables=tuple(tables(result)),
        lists=tuple(_lists(result)),
        origin=tuple(lines.origin(result)),
    )


def _lists(result: GateResult) -> Iterator[tuple[str, tuple[str, ...]]]:
    found = {
        "Why they may not be compared": list(lines.refusals(result, hard=True)),
        **_by_title(result),
        "Other differences": list(lines.refusals(result, hard=False)),
        "Remarks": list(result.remarks),
    }
    yield from ((title, tuple(told)) for title, told in found.items() if told)


def _by_title(result: GateResult) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for title, line in lines.of_modes(result):
        found.setdefault(title, []).append(line)
    return found
