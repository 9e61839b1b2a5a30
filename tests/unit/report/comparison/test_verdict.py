from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.comparison import Comparison, compare
from dpdoctor.report.comparison import verdict
from tests.builders import compared_pairs as pairs
from tests.builders import runs
from tests.builders.figures import figures


def said(comparison: Comparison) -> list[str]:
    return [found.sentence for found in verdict.verdicts(comparison)]


def test_a_mode_that_is_slower_is_named_with_its_factor() -> None:
    (found,) = verdict.verdicts(pairs.slower())
    assert found.sentence == (
        "In one launch each, B is slower than A with ddp (0.705x); "
        "it is not measurably different from A on one device (1.00x)."
    )
    assert found.tone == "bad"
    assert found.detail == ("Throughput of B over A, 95% intervals: single 0.980–1.02x; ddp 0.696–0.714x.")


def test_a_larger_batch_is_not_called_faster() -> None:
    (found,) = verdict.verdicts(pairs.larger_batch())
    assert found.sentence.startswith("In one launch each, B gives more samples per second than A with ddp (1.41x);")


def test_equal_runs_are_not_measurably_different() -> None:
    (found,) = verdict.verdicts(pairs.alike())
    # DataParallel was inactive in both: its figures are not its own.
    assert (
        found.sentence
        == "In one launch each, B is not measurably different from A on one device (1.00x) and with ddp (1.00x)."
    )
    assert found.tone == "plain"


def test_each_run_after_the_first_has_its_sentence() -> None:
    of_b, of_c = said(pairs.three())
    assert [{*re.findall(r"\b[ABC]\b", sentence)} for sentence in (of_b, of_c)] == [{"A", "B"}, {"A", "C"}]
    assert [figures(sentence) for sentence in (of_b, of_c)] == [["0.705x", "0.999x"], ["0.999x"]]
    assert [found.tone for found in verdict.verdicts(pairs.three())] == ["bad", "plain"]


@pytest.mark.parametrize("pair", [pairs.failed, pairs.nothing, pairs.traces_and_profile])
def test_where_nothing_can_be_compared_that_is_said(pair: object) -> None:
    assert said(pair()) == ["No throughput of B can be compared with A's."]


def test_of_traces_the_traced_step_is_compared() -> None:
    (found,) = verdict.verdicts(pairs.traces())
    assert found.sentence == "B takes longer for a traced step than A (2.00x)."
    assert found.tone == "bad"


def test_few_windows_are_not_called_a_difference() -> None:
    slower = pairs.slower()
    ddp = slower.modes["ddp"]
    bare = replace(ddp.figures["throughput"].changes[0], verdict="unclear")
    figures = {**ddp.figures, "throughput": replace(ddp.figures["throughput"], changes=(bare,))}
    comparison = replace(slower, modes={"ddp": replace(ddp, figures=figures)})
    assert said(comparison) == ["In one launch each, B cannot be told from A by so few windows with ddp (0.705x)."]


def test_of_several_launches_the_sentence_says_nothing_of_one() -> None:
    (found,) = verdict.verdicts(pairs.repeated())
    assert found.sentence.startswith("B ")
    assert "launch" not in found.sentence
    assert (figures(found.sentence)[0], found.tone) == ("1.00x", "plain")


def test_one_launch_against_several_is_not_between_launches() -> None:
    mixed = compare([runs.repeated_run(), runs.cpu_run()])
    assert verdict.evidence(mixed) == verdict.SOME_LAUNCHES


def test_what_the_intervals_rest_on_is_said() -> None:
    assert verdict.evidence(pairs.slower()) == verdict.ONE_LAUNCH
    assert verdict.evidence(pairs.repeated()) == verdict.LAUNCHES
    assert verdict.evidence(pairs.traces()) == verdict.TRACED
    assert verdict.evidence(pairs.calibrated()) == verdict.CALIBRATED
    assert "--repeat N" in verdict.ONE_LAUNCH


def test_how_many_figures_look_changed_by_chance_is_said() -> None:
    between = verdict.chance(compare([runs.repeated_run()] * 8)).partition(" Of ")[0]
    number, at, wrong = figures(between)
    assert at == "95%"
    assert int(wrong) == round(0.05 * int(number)) > 0
    assert verdict.chance(pairs.nothing()) == ""


def test_figures_within_a_launch_are_not_said_to_look_changed_one_time_in_twenty() -> None:
    assert figures(verdict.chance(pairs.slower())) == ["12", "5%"]
    assert "many more than 5%" in verdict.chance(pairs.slower())
