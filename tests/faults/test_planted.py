"""A fault that is planted in a sample is what dpdoctor names first: some live, all from recordings."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from dpdoctor import rundir, units
from dpdoctor.analysis import analyse
from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from dpdoctor.report.formats import markdown
from dpdoctor.report.text import batch_text
from dpdoctor.rules import BY_NAME, diagnose
from dpdoctor.spec import NATIVE
from tests.benchmarks.planted.catalogue import ENTRIES
from tests.benchmarks.planted.launching import profile
from tests.benchmarks.planted.recording import EXPECTED, facts, path_of, unpack
from tests.benchmarks.planted.scoring import fault
from tests.benchmarks.planted.verdicts import read
from tests.builders.terminal import shown
from tests.faults.conftest import in_turn

OWN = [name for name, entry in ENTRIES.items() if not entry.third_party and entry.mode != NATIVE]
# One of the loader, one of the ranks.
LIVE = ("slow_transform", "slow_rank")


@pytest.mark.measured
@pytest.mark.parametrize("name", [name if name in LIVE else in_turn(name) for name in OWN])
def test_what_is_planted_is_named_first_and_nothing_in_a_healthy_sample(name, tmp_path):
    folder = tmp_path / "run"
    # What is named first shows in fewer rounds and traced steps than what it costs.
    error = profile(ENTRIES[name], ENTRIES[name].usual, folder, {}, options=("--rounds", "3", "--trace-steps", "6"))
    assert fault(ENTRIES[name], read(folder, error)) is None


@pytest.fixture(params=OWN)
def recorded(request, tmp_path):
    """Return the name of an entry and its recorded run, diagnosed; run.json is written."""
    run = unpack(path_of(request.param), tmp_path / "run")
    analysis = diagnose(analyse(rundir.read(run)))
    rundir.write_json(run / rundir.SUMMARY, analysis.summary)
    return request.param, run, analysis


def test_of_a_recording_too(recorded):
    name, run, _ = recorded
    assert fault(ENTRIES[name], read(run, None)) is None


def test_every_figure_of_a_recording_is_what_it_was(recorded):
    """Where a change is meant, `record_planted.py --expected` keeps the new figures, and its diff shows what it did."""
    name, run, _ = recorded
    assert facts(json.loads((run / rundir.SUMMARY).read_text())) == json.loads(EXPECTED.read_text())[name]


def displays(value):
    """Return the texts that a number may have on a page, by the module that makes them all."""
    kinds = (units.seconds, units.size, units.share, units.times, units.digits)
    return {batch_text(value), f"{units.size(value)}/s", *(kind(value) for kind in kinds)}


def test_every_number_in_a_table_is_beside_its_value(recorded):
    _, _, analysis = recorded
    html = page.render(of_run(analysis))
    found = [(float(value), text) for value, text in re.findall(r'<data[^>]* value="([^"]*)">([^<]*)</data>', html)]
    assert len(found) > 50
    assert [
        (value, text) for value, text in found if not displays(value) & {unescape(text), text.partition(" ")[0]}
    ] == []


def test_every_format_shows_the_first_finding_of_a_recording(recorded):
    _, _, analysis = recorded
    first = next((found for found in analysis.summary.findings if found.severity != "info"), None)
    texts = [page.render(of_run(analysis)), shown(analysis), markdown.comment(analysis)]
    if first is not None:
        title, rule = first.title.partition(":")[0], BY_NAME[first.rule].title
        told = zip((title, rule, title), texts, strict=True)
        assert [words.lower() in " ".join(text.lower().split()) for words, text in told] == [True] * 3
