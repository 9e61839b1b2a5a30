"""Wherever a script ends, each measured mode has a trace of whole steps, or says why it has none."""

from __future__ import annotations

import pytest

from dpdoctor import rundir
from tests.faults.conftest import SHORT

TRACED = (*SHORT, "--trace-steps", "3")


# Three steps warm up, one is profiled, then come windows of four and one before each: the second ends at step 14.
@pytest.mark.parametrize(("mode", "steps"), [("single", 12), ("ddp", 12), ("ddp", 14), ("fsdp", 11)])
def test_a_mode_whose_script_ended_before_the_trace_is_launched_once_more_for_it(profile, mode, steps):
    done = profile("ends_early.py", "--modes", mode, *TRACED, "--no-baseline", args=[str(steps)])
    assert done.exit_code == 0, done.output
    assert rundir.trace_dir(done.root, mode).is_dir()
    summary = done.mode(mode)
    assert summary["breakdown"]["step"]["value"] > 0
    assert summary["trace_reason"] == ""
    assert any("launched once more" in warning for warning in summary["conversion"]["warnings"])
    assert all(rank.digest and rank.digest.devices[0].steps for rank in done.launch(mode).ranks)


def test_a_mode_whose_script_went_on_to_another_model_before_the_trace_is_launched_once_more_for_it(profile):
    done = profile("folds.py", "--modes", "ddp", *TRACED, "--no-baseline", args=["14"])
    assert done.exit_code == 0, done.output
    mode = done.mode("ddp")
    assert mode["breakdown"]["step"]["value"] > 0
    assert any("launched once more" in warning for warning in mode["conversion"]["warnings"])


def test_one_that_ends_inside_the_trace_keeps_what_there_is(profile):
    done = profile("ends_early.py", "--modes", "ddp", *TRACED, "--no-baseline", args=["17"])
    assert done.exit_code == 0, done.output
    assert done.mode("ddp")["breakdown"]["step"]["value"] > 0


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_one_that_ends_before_any_window_says_so(profile, steps):
    done = profile("ends_early.py", "--modes", "ddp", *TRACED, "--no-baseline", args=[str(steps)])
    assert done.exit_code == 1
    assert not rundir.trace_dir(done.root, "ddp").exists()
    assert f"after {steps} step" in done.mode("ddp")["reason"]


def test_no_trace_is_made_where_none_was_asked_for(profile):
    done = profile("ends_early.py", "--modes", "single", *SHORT, args=["12"])
    assert done.exit_code == 0, done.output
    assert not rundir.trace_dir(done.root, "single").exists()


def test_what_loader_processes_would_cost_is_tried_after_a_script_that_ended(profile):
    done = profile("ends_early.py", "--modes", "ddp", *SHORT, "--no-baseline", args=["12"])
    assert done.exit_code == 0, done.output
    first, second = (rank.record for rank in done.launch("ddp").ranks)
    assert first.ending == second.ending == "returned"
    assert [hand_off.n > 0 for hand_off in first.hand_offs] == [True]
    assert not second.hand_offs


# Of the first step, warm-up, the proof, the uncounted step after it, rounds 1, 2 and 5, and the traced steps.
@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3, 4, 5, 7, 12, 27, 31])
def test_wherever_it_ends_each_mode_has_its_trace_or_its_reason_on_the_first_screen(profile, steps):
    done = profile("ends_early.py", "--modes", "ddp,fsdp", *TRACED, "--rounds", "5", args=[str(steps)])
    said = " ".join(done.output.split())
    for name in ("single", "ddp", "fsdp"):
        mode = done.mode(name)
        if mode["status"] == "failed":
            assert f"after {steps} step" in mode["reason"]
            assert mode["reason"].partition(",")[0] in said
        else:
            assert mode["breakdown"]["step"]["value"] > 0
            assert mode["trace_reason"] == ""
            launched_once_more = [text for text in mode["conversion"]["warnings"] if "launched once more" in text]
            assert bool(launched_once_more) == (steps < 30)
