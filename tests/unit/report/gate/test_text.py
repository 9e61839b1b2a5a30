"""Terminal and markdown of a gate."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rich.console import Console

from dpdoctor.analysis import Figure
from dpdoctor.gate.model import GateResult
from dpdoctor.report.formats.comment import MOST_CHARACTERS
from dpdoctor.report.gate import content as words
from dpdoctor.report.gate.content import content
from dpdoctor.report.gate.text import for_comment, for_terminal
from tests.builders import gate_results as results
from tests.builders.figures import figures
from tests.builders.markdown import ALIVE, UNSEEN, elements, seen, tokens

OURS = {"<br>", "<sup>", "</sup>", "<sub>", "</sub>", "<span>", "</span>"}


def shown(result: GateResult, width: int = 200) -> str:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(for_terminal(result))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


@pytest.mark.parametrize("make", results.EVERY)
class TestEveryResult:
    def test_nothing_in_a_comment_comes_to_life(self, make: Callable[[], GateResult]) -> None:
        comment = for_comment(make())
        assert elements(comment) <= OURS
        assert {token.type for token in tokens(comment)}.isdisjoint({"link_open", "image", "em_open", "code_inline"})
        assert not [token.content for token in tokens(comment) if token.type == "text" and ALIVE.search(token.content)]

    def test_a_comment_fits(self, make: Callable[[], GateResult]) -> None:
        assert len(for_comment(make())) <= MOST_CHARACTERS

    def test_every_row_of_a_table_has_as_many_cells(self, make: Callable[[], GateResult]) -> None:
        for table in for_comment(make()).split("\n\n"):
            rows = [line for line in table.splitlines() if line.startswith("|")]
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1

    def test_it_does_not_command_the_terminal(self, make: Callable[[], GateResult]) -> None:
        assert not {"\x1b", "\x00"} & {*shown(make()), *for_comment(make())}

    def test_the_verdict_leads(self, make: Callable[[], GateResult]) -> None:
        result = make()
        first = " ".join(words.headline(result).sentence.split())
        assert seen(for_comment(result)).replace(UNSEEN, "").startswith(first[:40])


def test_a_pass_has_effect_interval_and_what_would_have_been_seen() -> None:
    text = shown(results.passed())
    reason = results.mode().reason
    assert text.startswith(f"Passed: ddp (time) and ddp (counters).\nddp, time: {reason}")
    assert re.search(r"^ddp +pass +\+0\.4% +5\.0% +3\.1% +7 of 8$", text, re.MULTILINE)
    assert re.search(r"^ +-1\.2 to \+2\.0%$", text, re.MULTILINE)
    assert "ddp, pair 8: the GPU was throttled in head." in text
    assert f"ddp, operator calls: {results.exact().left_out[0].reason}." in text
    assert text.endswith("base: /home/me/base, head: /home/me/head, calibrated: 2026-01-02T03:04:05Z, dpdoctor 0.1.0")


def test_a_regression_has_what_moved() -> None:
    result = results.regressed()
    (_, appeared, _) = result.modes["ddp"].moved
    for text in (shown(result), seen(for_comment(result)).replace(UNSEEN, "")):
        assert "Regressed: ddp (time) and ddp (counters)." in text
        assert "ddp, phase data_wait: 60.0 ms (59.0–61.0) before, 70.0 ms (69.0–71.0) now." in text
        assert f"ddp, finding data_starved {appeared.text}." in text
        assert "/home/me/head/src/train.py:41" in text


def test_a_counter_that_grew_is_bad_and_one_that_fell_is_good() -> None:
    table = content(results.regressed()).tables[1]
    assert [(row[0].text, row[2].text, row[2].tone) for row in table.rows] == [
        ("waits by item", "2", "bad"),
        ("operator calls", "702", "bad"),
        ("bytes copied to the device", "500", "good"),
    ]


def test_what_is_unknown_says_why() -> None:
    text = shown(results.undecided())
    assert text.startswith("Could not judge: ddp (time) and ddp (counters).")
    assert str(results.effect(None).reason) in text
    assert re.search(r"^ddp +could not judge +unknown +5\.0% +unknown +\N{EM DASH}$", text, re.MULTILINE)


def test_a_refusal_names_field_values_and_remedy() -> None:
    text = shown(results.refused())
    assert text.startswith("Base and head may not be compared: torch and calibration.")
    assert "torch: 2.11.0 in base, 2.15.0 in head. save the baseline anew with this torch." in text
    assert "calibration: neither has it. run dpdoctor calibrate." in text
    assert "Other differences\n  host: a in base, none in head. be aware of it." in text
    assert "Remarks\n  cores were taken" in text


def test_counters_alone_have_no_table_of_times() -> None:
    assert content(results.counters_only()).tables == ()


def test_a_failed_gate_of_many_modes_says_what_it_left_out() -> None:
    *_, reasons, _, times, left_out, _ = for_comment(results.many()).split("\n\n")
    told, rows = len(reasons.splitlines()), len(times.splitlines()[2:])
    # Of 60 modes by time and one by its counters, of their rows, of 400 counters, 60 pairs and one counter left out.
    assert figures(left_out) == [str(61 - told), str(60 - rows), "400", "60", "1"]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.081, 1.115, "+8.1 to +12%"),
        (0.99, 1.02, "-1.0 to +2.0%"),
        (None, 1.02, "at most +2.0%"),
        (0.99, None, "at least -1.0%"),
        (None, None, ""),
    ],
)
def test_bounds_of_a_change(low: float | None, high: float | None, text: str) -> None:
    assert words.change_interval(Figure(value=1.0, low=low, high=high, unit="x")) == text
