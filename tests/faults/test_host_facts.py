"""What the host does, planted into scripts at a known line and of a known length, comes back with both."""

from __future__ import annotations

import pytest

from dpdoctor import rundir
from dpdoctor.analysis import analyse
from dpdoctor.records import PHASES, EventRecord, Rank
from tests.faults.conftest import SCRIPTS, SHORT

EVALUATION_NS = 60_000_000
EPOCH_STEPS = 10


def events(rank: Rank, kind: str) -> list[EventRecord]:
    return sorted((event for event in rank.events if event.kind == kind), key=lambda event: event.at_ns)


def line_of(script: str, text: str) -> str:
    """Return the one line of a script that holds a text, as records name it."""
    path = SCRIPTS / script
    (number,) = [i for i, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return f"{path}:{number}"


@pytest.mark.parametrize("gradients", ["no_grad", "forgets no_grad"])
def test_waits_evaluations_and_checkpoints_come_back(profile, gradients):
    done = profile("host_facts.py", "--modes", "single", *SHORT, "--steps", "20", args=[gradients])
    assert done.exit_code == 0, done.output
    rank, counters = done.rank("single"), done.record("single").counters
    assert [(sync.call, sync.line, sync.count) for sync in counters.syncs] == [
        ("item", line_of("host_facts.py", "loss.item()"), 1),
        ("repr", line_of("host_facts.py", "print(loss, "), 1),
    ]
    printed = [line.split()[3:] for line in done.printed("single").splitlines() if line.startswith("evaluated")]
    evaluated, saved = events(rank, "evaluation"), events(rank, "checkpoint")
    assert len(printed) >= 4
    assert len(evaluated) == len(saved) == len(printed)
    for number, times in enumerate(printed):
        begin, middle, end = map(int, times)
        evaluation, checkpoint = evaluated[number], saved[number]
        assert begin <= evaluation.at_ns <= evaluation.at_ns + evaluation.duration_ns <= checkpoint.at_ns
        assert evaluation.duration_ns >= EVALUATION_NS
        assert middle <= checkpoint.at_ns <= checkpoint.at_ns + checkpoint.duration_ns <= end
        assert checkpoint.detail == "last.pt"
        assert evaluation.step == checkpoint.step == (number + 1) * EPOCH_STEPS
    of_training = [event for event in events(rank, "iterator") if event.detail == "0"]
    assert [event.step for event in of_training] == [EPOCH_STEPS * i for i in range(len(printed) + 1)]
    assert {step.elements for step in rank.steps} == {4 * 8}


def test_a_rollout_is_no_evaluation_and_a_loss_no_code_of_the_loop(profile):
    options = ("--ablations", "none", "--warmup", "3", "--steps", "8", "--rounds", "3", "--trace-steps", "6")
    done = profile("rolls_out.py", "--modes", "single", *options)
    assert done.exit_code == 0, done.output
    rank = done.rank("single")
    rollouts = events(rank, "inference")
    assert len(rollouts) >= 24
    assert min(event.duration_ns for event in rollouts) >= 40_000_000
    assert events(rank, "evaluation") == []
    steady = [step for step in rank.steps if step.counted]
    phases = {name: min(step.phases_ns[place] for step in steady) for place, name in enumerate(PHASES)}
    assert phases["forward"] >= 30_000_000
    assert phases["optimizer"] >= 20_000_000
    found = {finding["rule"]: finding for finding in done.summary["findings"]}
    assert "own_code" not in found
    assert "evaluation_share" not in found
    assert found["inference_share"]["remedy"] is None


@pytest.mark.measured
def test_compilations_come_back_each_with_its_step(profile):
    done = profile("recompiles.py", "--modes", "single", *SHORT, "--steps", "20", args=["30"])
    assert done.exit_code == 0, done.output
    rank = done.rank("single")
    compiled = [event for event in events(rank, "compile") if event.detail.startswith("dynamo")]
    assert [(event.step, event.detail) for event in compiled] == [(0, "dynamo 0/0"), (30, "dynamo 0/1")]
    (slow,) = [step for step in rank.steps if step.step == 31]
    assert 0.5 * slow.duration_ns < compiled[1].duration_ns < slow.duration_ns
    assert slow.elements == 12 * 8


@pytest.mark.measured
def test_threads_beyond_the_cores_come_back(profile):
    done = profile("too_many_threads.py", "--modes", "single", *SHORT, "--steps", "60", args=["6"])
    assert done.exit_code == 0, done.output
    used = done.record("single").cpu
    measured = [window for window in done.rank("single").windows if window.kind == "measure"]
    assert used.wall_s == pytest.approx(sum(w.end_ns - w.begin_ns for w in measured) * 1e-9, rel=0.05)
    cores = done.summary["fingerprint"]["cores"]
    assert 0 < used.cpu_s / used.wall_s <= 1.1 * cores
    assert used.num_threads > 6
    assert used.involuntary_switches > 0


@pytest.mark.measured
def test_a_rank_that_collects_garbage_is_late_because_of_that(profile):
    options = ("--warmup", "3", "--steps", "4", "--rounds", "1", "--trace-steps", "16")
    done = profile("collects_garbage.py", "--modes", "ddp", "--no-baseline", *options)
    assert done.exit_code == 0, done.output
    verdict = analyse(rundir.read(done.root)).cross_rank["ddp"].verdict
    assert (verdict.kind, verdict.rank, verdict.cause) == ("persistent", 1, "gc")


@pytest.mark.measured
def test_code_of_the_loop_is_found_with_its_line(profile):
    done = profile("slow_loader.py", "--modes", "single", "--ablations", "none", "--rounds", "2", "--steps", "10")
    assert done.exit_code == 0, done.output
    line = line_of("slow_loader.py", "time.sleep(STEP_S)")
    first = done.record("single").own_code[0]
    assert first.line == line
    assert first.share > 0.9
    found = done.summary["findings"][0]
    assert (found["rule"], found["line"]) == ("own_code", line)
    step_s = done.mode("single")["step"]["value"]
    assert found["cost"]["value"] == pytest.approx(0.06 / step_s, abs=0.05)
