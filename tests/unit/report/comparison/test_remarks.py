from __future__ import annotations

from msgspec.structs import replace

from dpdoctor.analysis.comparison import Comparison, compare
from dpdoctor.report.comparison.remarks import NOT_ACCURACY, Remark, remarks
from dpdoctor.report.comparison.words import in_runs
from tests.builders import compared_pairs as pairs
from tests.builders import runs
from tests.builders.runs_to_compare import even, with_header


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
