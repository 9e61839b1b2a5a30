"""Terminal and markdown of a comparison."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rich.console import Console

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.comparison import markdown, terminal, verdict
from tests.unit.report.comparison import pairs

TERMINAL = ""
MARKDOWN = ""


def shown(comparison: Comparison, width: int = 200) -> str:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(terminal.render(comparison))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_the_whole_of_a_comparison_in_the_terminal() -> None:
    assert shown(pairs.slower(), width=110) == TERMINAL


def test_the_whole_of_a_comparison_in_markdown() -> None:
    assert markdown.render(pairs.slower()) == MARKDOWN


@pytest.mark.parametrize("pair", pairs.EVERY)
class TestEveryComparison:
    def test_terminal_and_markdown_say_the_verdict(self, pair: Callable[[], Comparison]) -> None:
        comparison = pair()
        for found in verdict.verdicts(comparison):
            assert found.sentence in shown(comparison, width=1000)
            assert found.sentence in markdown.render(comparison)

    def test_nothing_is_cut_on_eighty_columns(self, pair: Callable[[], Comparison]) -> None:
        table = re.findall(r"^.*\d (?:samples/s|ms).*$", shown(pair(), width=80), re.MULTILINE)
        assert not any("…" in line for line in table)

    def test_markdown_fits_a_comment(self, pair: Callable[[], Comparison]) -> None:
        assert len(markdown.render(pair())) < 30_000

    def test_every_row_of_a_table_has_as_many_cells(self, pair: Callable[[], Comparison]) -> None:
        rows = [line for line in markdown.render(pair()).splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1


def test_a_finding_that_appeared_comes_with_what_to_do() -> None:
    for text in (shown(pairs.diagnosed()), markdown.render(pairs.diagnosed()).replace("\\", "")):
        assert "data_starved appeared in B, DDP: 42.0 % (39.0 % to 45.0 %) of each step, confirmed." in text
        assert "To do: set num_workers=4; now it is 2." in text


def test_a_finding_that_is_gone_is_said() -> None:
    assert "data_starved gone in B, DDP: it was 42.0 %" in shown(pairs.mended())


def test_markup_in_a_run_is_shown_not_obeyed() -> None:
    text = shown(pairs.hostile())
    assert "<img src=x onerror=alert(1)>" in text
    assert "\x1b" not in text
    assert "\x00" not in text


def test_html_in_a_run_is_shown_by_markdown_not_obeyed() -> None:
    text = markdown.render(pairs.hostile())
    assert not re.search(r"<(?!br>|sub>|/sub>|!-- -->)", text)
    assert "\x00" not in text


def test_names_with_marks_of_markdown_stay_names() -> None:
    text = markdown.render(pairs.named("/a/*b*|c_`d`@team.py", "/a/x.py"))
    assert r"Different scripts: /a/\*b\*\|c\_\`d\`@<!-- -->team.py in A, /a/x.py in B." in text
