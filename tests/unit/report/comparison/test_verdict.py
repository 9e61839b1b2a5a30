from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.comparison import Comparison, compare
from dpdoctor.report.comparison import verdict
from dpdoctor.report.comparison.rows import in_runs
from dpdoctor.report.comparison.verdict import NOT_ACCURACY, Remark, remarks
from tests.builders import compared_pairs as pairs
from tests.builders import runs
from tests.builders.figures import figures
from tests.builders.runs_to_compare import even, with_header


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


def found(comparison: Comparison) -> dict[str, Remark]:
    return {remark.title: remark for remark in remarks(comparison)}


def in_a_and_b(base: str, other: str) -> str:
    return in_runs([("A", base), ("B", other)])


def test_of_equal_runs_there_is_only_what_befell_them() -> None:
    assert {*found(pairs.alike())} == {
        "dp: inactive in A and B",
        "fsdp: failed in A and B",
    }


def test_a_failed_mode_has_its_reason() -> None:
    reason = runs.cpu_run().summary.modes["fsdp"].reason
    assert found(pairs.alike())["fsdp: failed in A and B"].text == f"{reason}."


def test_batches_that_differ_are_said_and_that_throughput_is_not_time_to_accuracy() -> None:
    remark = found(pairs.larger_batch())["Different batches"]
    assert remark.text == (
        f"Samples per step, all devices: ddp: {in_a_and_b('64 (32 per device)', '128 (64 per device)')}. {NOT_ACCURACY}"
    )
    assert remark.grave


def test_machine_and_versions_that_differ_are_said() -> None:
    remark = found(pairs.larger_batch())
    assert remark["Not the same machine or threads"].text == "cores: 2 in A, 8 in B."
    assert remark["Different versions"].text == f"torch: {in_a_and_b('2.15.0', '2.16.0')}."


def test_modes_that_one_run_lacks_are_said() -> None:
    remark = found(pairs.three())["Not every run has every mode"]
    assert remark.text == "dp is missing in B and C; ddp is missing in C; fsdp is missing in B and C."


def test_other_numbers_of_devices_are_said() -> None:
    base, other = even(100), even(100)
    single = other.summary.modes["single"]
    summary = replace(other.summary, modes={"single": replace(single, num_devices=4)})
    remark = found(compare([base, replace(other, summary=summary)]))
    assert remark["Different numbers of devices"].text == f"single: {in_a_and_b('1 device', '4 devices')}."


def test_another_script_is_not_the_same_as_a_changed_one() -> None:
    base = even(100)
    fingerprint = replace(base.run.header.fingerprint, script_sha256="cd" * 32)
    assert "The script changed" in found(compare([base, with_header(base, fingerprint=fingerprint)]))
    spec = replace(base.run.header.spec, target="/home/me/other.py", args=())
    remark = found(compare([base, with_header(base, fingerprint=fingerprint, spec=spec)]))
    assert remark["Different scripts"].text == f"{in_a_and_b('/home/me/train.py', '/home/me/other.py')}."
    assert remark["Different arguments"].text == f"{in_a_and_b('--epochs 2', 'none')}."


def test_traces_and_a_script_have_nothing_in_common() -> None:
    remark = found(pairs.traces_and_profile())["Not made alike"]
    assert remark.text.startswith(
        "Made of traces that existed (A), of a script (B). Traces and a script have no mode in common"
    )
    assert "Not every run has every mode" not in found(pairs.traces_and_profile())


def test_of_traces_the_machine_that_read_them_is_no_matter() -> None:
    titles = {*found(pairs.traces())}
    assert titles == {"Different numbers of devices", "Not the same devices"}


def test_the_graver_come_first() -> None:
    order = [remark.grave for remark in remarks(compare([runs.cpu_run(), runs.hostile_run()]))]
    assert order == sorted(order, reverse=True)
