"""Terminal and markdown of a comparison."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.comparison import verdict
from dpdoctor.report.comparison.text import for_comment, for_terminal
from dpdoctor.report.words.diagnosis import cost_words
from tests.builders import compared_pairs as pairs
from tests.builders.diagnosed_runs import finding
from tests.builders.markdown import ALIVE, UNSEEN, elements, seen, tokens

TERMINAL = """\
In one launch each, B is slower than A with ddp (0.705x); it is not measurably different from A on one device
(1.00x).
Throughput of B over A, 95% intervals: single 0.980–1.02x; ddp 0.696–0.714x.

A: before, 2026-01-02T03:04:05Z (the base)
B: after, 2026-01-02T03:04:05Z

figure                                   A              B               B against A
───────────────────────────────────────────────────────────────────────────────────
throughput                   316 samples/s  316 samples/s  not measurably different
single                             311–320        311–320               0.980–1.02x
step                                101 ms         101 ms  not measurably different
single                            99.9–103       99.9–103               0.980–1.02x
throughput                   447 samples/s  315 samples/s                    0.705x
ddp                                442–451        313–317              0.696–0.714x
step                                143 ms         203 ms                     1.42x
ddp                                142–145        202–205                1.40–1.44x
data_wait                          60.0 ms         120 ms                  +60.0 ms
ddp                                                               +60.0 to +60.0 ms
throughput with epoch edges  447 samples/s  315 samples/s                    0.705x
ddp                                442–451        313–317              0.696–0.714x
epoch                               14.3 s         20.3 s                     1.42x
ddp                              14.2–14.5      20.2–20.5                1.40–1.44x
speedup over one device              1.41x         0.997x                    0.705x
ddp                              1.39–1.44     0.981–1.01              0.689–0.722x
of linear scaling                      71%            50%                    0.705x
ddp                                  69–72          49–51              0.689–0.722x

One launch each: the intervals hold within a launch, and another launch may differ by more. dpdoctor profile
--repeat N gives intervals between launches. Of 12 figures compared within a launch, many more than 5% may be
called changed though nothing did."""
MARKDOWN = Path(__file__).with_name("slower.md").read_text()


def shown(comparison: Comparison, width: int = 200) -> str:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(for_terminal(comparison))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_the_whole_of_a_comparison_in_the_terminal() -> None:
    assert shown(pairs.slower(), width=110) == TERMINAL


def test_the_whole_of_a_comparison_in_markdown() -> None:
    assert for_comment(pairs.slower()) == MARKDOWN


@pytest.mark.parametrize("pair", pairs.EVERY)
class TestEveryComparison:
    def test_terminal_and_markdown_say_the_verdict(self, pair: Callable[[], Comparison]) -> None:
        comparison = pair()
        for found in verdict.verdicts(comparison):
            assert found.sentence in shown(comparison, width=1000)
            assert found.sentence in for_comment(comparison)

    def test_nothing_is_cut_on_eighty_columns(self, pair: Callable[[], Comparison]) -> None:
        table = re.findall(r"^.*\d (?:samples/s|ms).*$", shown(pair(), width=80), re.MULTILINE)
        assert not any("…" in line for line in table)

    def test_markdown_fits_a_comment(self, pair: Callable[[], Comparison]) -> None:
        assert len(for_comment(pair())) < 30_000

    def test_every_row_of_a_table_has_as_many_cells(self, pair: Callable[[], Comparison]) -> None:
        rows = [line for line in for_comment(pair()).splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1


def test_a_finding_that_appeared_comes_with_what_to_do() -> None:
    for text in (shown(pairs.diagnosed(), width=1000), for_comment(pairs.diagnosed()).replace("\\", "")):
        (line,) = [line for line in text.splitlines() if "data_starved" in line]
        assert f"data_starved appeared in B, ddp: {cost_words(finding())}, confirmed." in line
        assert str(finding().remedy) in line


def test_a_finding_that_is_gone_is_said() -> None:
    (line,) = [line for line in shown(pairs.mended()).splitlines() if "data_starved" in line]
    assert "data_starved gone in B, ddp" in line
    assert cost_words(finding()) in line


def test_markup_in_a_run_is_shown_not_obeyed() -> None:
    text = shown(pairs.hostile())
    assert "<img src=x onerror=alert(1)>" in text
    assert "\x1b" not in text
    assert "\x00" not in text


def test_html_in_a_run_is_shown_by_markdown_not_obeyed() -> None:
    text = for_comment(pairs.hostile())
    assert elements(text) <= {"<br>", "<sub>", "</sub>"}
    assert not [token.content for token in tokens(text) if token.type == "text" and ALIVE.search(token.content)]
    assert "\x00" not in text


def test_names_with_marks_of_markdown_stay_names() -> None:
    text = for_comment(pairs.named("/a/*b*|c_`d`@team.py", "/a/x.py"))
    assert "Different scripts: /a/*b*|c_`d`@team.py in A, /a/x.py in B." in seen(text).replace(UNSEEN, "")
