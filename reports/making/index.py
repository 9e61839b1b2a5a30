"""The gallery's index: a line per run, made from what lies in the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpdoctor import rundir
from dpdoctor.analysis import RunSummary
from dpdoctor.report.text import mode_label
from dpdoctor.report.words import diagnosis, verdict

from .entries import ENTRIES
from .origin import Origin

ORIGIN = "origin.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run: its files lie in the folder `name`."""

    name: str
    verdict: str
    finding: str
    origin: Origin


def write(gallery: Path) -> None:
    """Write index.html over the runs that lie in the gallery, in the order of the entries."""
    lines = [_line(gallery, name) for name in ENTRIES if (gallery / name / ORIGIN).exists()]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("index.html").render(lines=lines)
    rundir.write_whole(gallery / "index.html", page.encode())


def _line(gallery: Path, name: str) -> Line:
    summary = rundir.read_json(gallery / name / rundir.SUMMARY, RunSummary)
    return Line(
        name=name,
        verdict=verdict.headline(summary).sentence,
        finding=_costliest(summary),
        origin=rundir.read_json(gallery / name / ORIGIN, Origin),
    )


def _costliest(summary: RunSummary) -> str:
    costly = diagnosis.parts(summary).costly
    if not costly:
        return "Nothing was found that would be worth a change."
    first = costly[0]
    return f"{mode_label(first.mode)}: {first.title} ({first.status})."
