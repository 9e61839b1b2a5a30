"""--time-budget is kept where steps are slow, or much is done between them."""

from __future__ import annotations

import pytest

from dpdoctor import heartbeat

BUDGET_S = 3


@pytest.mark.measured
@pytest.mark.parametrize("kind", ["step", "evaluation", "pause"])
def test_slow_scripts_are_measured_within_the_budget_and_say_what_gave_way(profile, kind):
    options = ("--modes", "single", "--time-budget", str(BUDGET_S), "--ablations", "none")
    done = profile("slow_steps.py", *options, args=[kind])
    assert done.exit_code == 0, done.output
    first, *_, last = done.rank("single").steps
    taken_s = (last.begin_ns + last.duration_ns - first.begin_ns - first.duration_ns) * 1e-9
    assert taken_s <= 1.5 * BUDGET_S
    (warning,) = done.record("single").conversion.warnings
    assert "--time-budget of 3.00 s is too little for 3 windows" in warning
    assert done.mode("single")["step"]["value"] is not None


@pytest.mark.parametrize(
    ("often", "budget_s", "said"),
    [
        (10_000_000, "2", "backward passes, last at {script}:28, and has not returned: if it evaluates"),
        (150, "60", "its last optimizer.step ran 150 backward passes: if it evaluates its closure"),
    ],
)
def test_one_step_that_does_all_the_training_is_told_to_be_many(profile, often, budget_s, said):
    done = profile("lbfgs.py", "--modes", "single", "--time-budget", budget_s, args=["once", str(often)])
    assert done.exit_code == 1
    assert said.format(script=done.summary["script"]["path"]) in done.mode("single")["reason"]
    # Were it stuck, it would not be asked whether it calls optimizer.step().
    assert heartbeat.read(done.root / "single" / "rank0").passes == 0


def test_where_no_window_fits_the_mode_says_what_would_be_enough(profile):
    options = ("--modes", "single", "--time-budget", "0.25", "--ablations", "none")
    done = profile("slow_steps.py", *options, args=["step"])
    assert done.exit_code == 1
    assert "--time-budget was over before a window could be measured" in done.mode("single")["reason"]
    assert done.mode("single")["throughput"]["value"] is None
