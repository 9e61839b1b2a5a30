"""The gallery's index: a line per run, made from what lies in the folder."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpdoctor import rundir

from .entries import ENTRIES
from .origin import Origin

ORIGIN, PICTURE = "origin.json", "first-screen.jpg"


def write(gallery: Path) -> None:
    """Write index.html over the runs that lie in the gallery, in the order of the entries."""
    there = [name for name in ENTRIES if (gallery / name / ORIGIN).exists()]
    runs = {name: rundir.read_json(gallery / name / ORIGIN, Origin) for name in there}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("index.html").render(runs=runs, picture=PICTURE)
    rundir.write_whole(gallery / "index.html", page.encode())
