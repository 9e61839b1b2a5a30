from __future__ import annotations

import dataclasses

import msgspec
import pytest

from dpdoctor import rundir
from dpdoctor.analysis.comparison import compare
from dpdoctor.gate.evidence.recorded import Recorded, recorded, training_data
from dpdoctor.records import Conversion, Written
from tests.builders import launched_runs
from tests.builders.launched_runs import COUNTERS, LOADER, host, mode, of


def test_the_medians_of_all_launches_in_their_order() -> None:
    found = mode(of(12, 10, 11))
    assert found.seconds == pytest.approx((0.012, 0.010, 0.011))
    assert found.steps == launched_runs.WINDOWS * launched_runs.STEPS
    assert found.batch == 64
    assert found.summary.launches == 3
    assert found.summary.step.value == pytest.approx(0.011)
    assert found.disturbed == ()


def test_the_second_launch_shows_what_varies_by_nature() -> None:
    again = mode(of(12, 10)).again
    assert again is not None
    assert again.step.value == pytest.approx(0.010)
    assert again.counters == COUNTERS
    assert mode(of(12)).again is None


def test_a_launch_that_was_disturbed_is_named() -> None:
    quota = [host(1, num_throttled=0, num_quota_periods=0), host(3, num_throttled=10, num_quota_periods=20)]
    run = launched_runs.run(launched_runs.launch(10), launched_runs.launch(10, 2, samples=quota))
    (reason,) = mode(recorded(run)).disturbed
    which, _, why = reason.partition(": ")
    assert which == "launch 2"
    assert "quota" in why
    assert "50.0 %" in why


def test_paths_of_one_machine_are_left_out() -> None:
    found = of(10)
    assert (found.header.spec.target, found.header.spec.cwd) == ("train.py", ".")
    assert "/home/me/train.py" not in msgspec.json.encode((found.header.spec, found.modes)).decode()


def test_what_the_script_would_have_written_is_left_out() -> None:
    conversion = Conversion(loaders=(LOADER,), written=(Written(path="/home/me/model.pt", change="new"),))
    found = mode(recorded(launched_runs.run(launched_runs.launch(10, conversion=conversion))))
    assert found.summary.conversion is not None
    assert dataclasses.replace(found.summary.conversion, proof=()) == Conversion(loaders=(LOADER,))


def test_it_survives_being_written_and_read() -> None:
    found = of(12, 10)
    assert msgspec.json.decode(rundir.encode(found), type=Recorded) == found


def test_it_can_be_compared_like_a_run() -> None:
    comparison = compare([of(10, 10).analysis(), of(20, 20).analysis()])
    (change,) = comparison.modes["ddp"].figures["step"].changes
    assert change.ratio.value == pytest.approx(2)
    (phase,) = comparison.modes["ddp"].phases["forward"].changes
    assert phase.verdict == "more"


def test_the_training_data() -> None:
    assert training_data(Conversion(loaders=(LOADER,))) == "Digits, 200 batches per epoch"
    assert training_data(Conversion()) is None
    assert training_data(None) is None


def test_a_mode_that_was_never_launched_has_nothing() -> None:
    found = mode(recorded(launched_runs.run()))
    assert (found.seconds, found.steps, found.batch, found.again) == ((), 0, None, None)
    assert found.summary.status == "skipped"
