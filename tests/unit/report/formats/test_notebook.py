from __future__ import annotations

import re
from collections.abc import Callable

import markupsafe
import pytest

from dpdoctor.analysis import Analysis
from dpdoctor.report.formats.notebook import LoadedRun
from dpdoctor.report.text import THROUGHPUT_WORDS
from dpdoctor.report.traces.words import trace_headline
from dpdoctor.report.words import diagnosis
from dpdoctor.report.words.first_screen import first_screen
from tests.builders import diagnosed_runs, runs, traced_runs
from tests.builders.every_run import EVERY_RUN
from tests.builders.html import LOADING, Elements

LINES = """\
train.py, 2026-01-02T03:04:05Z
Nothing was found that would be worth a change; 49% of a step under ddp is forward and backward, with communication.
single: ok, 316 samples/s (312–320)
dp: inactive, 316 samples/s (311–320)
ddp: ok, 447 samples/s (443–451), 1.41x (1.39–1.44) of one device
fsdp: failed"""


def html(run: Callable[[], Analysis]) -> str:
    return LoadedRun(analysis=run())._repr_html_()


def test_a_run_in_a_few_lines() -> None:
    assert repr(LoadedRun(analysis=runs.cpu_run())) == LINES


def test_traces_are_told_by_their_verdict() -> None:
    run = traced_runs.late_run()
    assert repr(LoadedRun(analysis=run)).splitlines()[1] == trace_headline(run).sentence


@pytest.mark.parametrize("run", EVERY_RUN)
def test_the_fragment_runs_and_loads_nothing(run: Callable[[], Analysis]) -> None:
    found = Elements(html(run)).found
    assert found[0] == ("div", {"class": "dpdoctor-run"})
    assert {"script", "img", "link", "iframe"}.isdisjoint(tag for tag, _ in found)
    assert not any(name.startswith("on") or name in LOADING for _, attributes in found for name in attributes)
    assert not re.search(r"https?://|@import|url\(", html(run))


@pytest.mark.parametrize("run", EVERY_RUN)
def test_every_element_is_closed(run: Callable[[], Analysis]) -> None:
    text = html(run)
    for tag in {tag for tag, _ in Elements(text).found}:
        assert len(re.findall(rf"<{tag}[ >]", text)) == text.count(f"</{tag}>"), tag


def test_the_style_is_only_for_the_fragment() -> None:
    (style,) = re.findall("<style>(.*?)</style>", html(runs.cpu_run), re.DOTALL)
    rules = re.findall(r"([^{}]*)\{[^{}]*\}", re.sub(r"/\*.*?\*/", "", style))
    selectors = [selector.strip() for rule in rules for selector in rule.split(",")]
    assert len(selectors) > 10
    assert all(selector.startswith(".dpdoctor-run") for selector in selectors)


def test_the_fragment_says_what_the_page_says() -> None:
    shown = html(diagnosed_runs.diagnosed_run)
    assert markupsafe.escape(first_screen(diagnosed_runs.diagnosed_run().summary).answer) in shown
    found = diagnosed_runs.finding()
    for words in (
        "447 samples/s",
        found.title,
        f"ddp: {diagnosis.cost_words(found)}, confirmed; speedup {diagnosis.gain_words(found)}",
        "In your script: train.py:30",
        "DataLoader(..., num_workers=4)",
        "RuntimeError: deepcopy",
        THROUGHPUT_WORDS,
    ):
        assert markupsafe.escape(words) in shown


def test_text_of_a_run_stays_text() -> None:
    shown = html(diagnosed_runs.hostile_findings)
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in shown
    assert "\x1b" not in repr(LoadedRun(analysis=traced_runs.hostile_traces()))


def test_what_is_not_known_has_its_reason() -> None:
    assert str(runs.gpu_run().summary.modes["ddp"].epoch_s.reason) in html(runs.gpu_run)
    assert trace_headline(traced_runs.unreadable()).sentence in html(traced_runs.unreadable)
