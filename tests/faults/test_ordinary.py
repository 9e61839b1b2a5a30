"""The first set of ordinary scripts: everything counted as the script itself counts it."""

from __future__ import annotations

import math
import re
import statistics

import pytest

from dpdoctor.records import PHASES
from tests.faults.conftest import SHORT


def losses(text):
    return [float(line.split()[-1]) for line in text.splitlines() if "loss" in line or re.fullmatch(r"[-\d.e]+", line)]


def test_ordinary_script_in_both_modes(profile):
    done = profile("ordinary.py", "--modes", "ddp", *SHORT)
    assert done.exit_code == 0, done.output
    for mode, batches, ranks in (("single", 20, 1), ("ddp", 10, 2)):
        summary = done.mode(mode)
        assert summary["status"] == "ok"
        assert summary["batch"] == {
            "per_device": 4,
            "global": 4 * ranks,
            "rule": "per-device",
            "source": "indices drawn by the loader",
        }
        assert done.record(mode).steps_per_epoch == batches
        printed = done.printed(mode)
        assert len(done.rank(mode).steps) == printed.count("loss") + 1, "the last step is counted before it is printed"
        # Evaluation runs under no_grad: every rank sees all of it.
        assert printed.count("validated 12") == printed.count("epoch")
    training, evaluation = done.record("ddp").adoption.loaders
    assert (training.rule, evaluation.rule) == ("per-device", "whole")
    assert done.mode("ddp")["speedup"]["value"] == pytest.approx(
        done.mode("ddp")["throughput"]["value"] / done.mode("single")["throughput"]["value"]
    )


def test_accumulation_counts_micro_batches_and_reduces_each(profile):
    done = profile("ordinary.py", "--modes", "ddp", "--no-baseline", *SHORT, args=["--accumulate", "2"])
    assert done.exit_code == 0, done.output
    steps = done.rank("ddp").steps
    assert {step.micro_batches for step in steps} == {2}
    assert {step.samples_drawn for step in steps} == {8}
    assert done.record("ddp").counters.collectives["all_reduce"].num_bytes == 2 * 210 * 4


def test_own_sampler_and_loader_workers(profile):
    done = profile("ordinary.py", "--modes", "ddp", *SHORT, args=["--num-workers", "1", "--own-sampler"])
    assert done.exit_code == 0, done.output
    for mode, batches in (("single", 10), ("ddp", 5)):
        assert done.mode(mode)["batch"]["per_device"] == 4
        assert done.record(mode).steps_per_epoch == batches
        loader = done.record(mode).adoption.loaders[0]
        assert (loader.sampler, loader.num_workers, loader.num_batches) == ("SubsetRandomSampler", 1, 10)


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        ("dataset", "data_wait"),
        ("forward", "forward"),
        ("before backward", "other"),
        ("backward", "backward"),
        ("optimizer", "optimizer"),
    ],
)
def test_a_planted_sleep_lands_in_its_phase(profile, place, phase):
    planted = profile("sleeps.py", "--modes", "single", "--warmup", "3", "--steps", "20", "--rounds", "3", args=[place])
    steps = [step for step in planted.rank("single").steps if step.counted and not step.epoch_edge]
    # Medians: on a shared machine a sleep may last longer now and then.
    phases = {name: statistics.median(s.phases_ns[i] for s in steps) * 1e-9 for i, name in enumerate(PHASES)}
    assert phases.pop(phase) == pytest.approx(0.010, rel=0.10)
    assert max(phases.values()) < 0.003
    summary = planted.mode("single")
    total = sum(figure["value"] for figure in summary["phases"].values())
    assert total == pytest.approx(summary["step"]["value"], rel=0.02)
    counted = [line.split() for line in planted.printed("single").splitlines()]
    steps = planted.rank("single").steps
    assert len(steps) == int(counted[-1][0])
    assert sum(step.samples_drawn for step in steps) == int(counted[-1][1])


def test_global_batch_ddp_follows_single(profile):
    done = profile("mathematics.py", *SHORT, "--modes", "ddp", "--batch", "global", "--warmup", "10", args=["mean"])
    assert done.exit_code == 0, done.output
    single = losses(done.printed("single"))
    ranks = [losses(done.printed("ddp", rank)) for rank in (0, 1)]
    assert len(single) >= 20
    for alone, *parts in list(zip(single, *ranks, strict=False))[:20]:
        assert math.isclose(alone, sum(parts) / 2, rel_tol=1e-5)
    assert not done.record("ddp").adoption.warnings


def test_a_summed_loss_is_warned_of_in_ddp_only(profile):
    done = profile("mathematics.py", "--modes", "ddp", *SHORT, args=["sum"])
    assert done.exit_code == 0, done.output
    assert "the loss is a sum" in done.record("ddp").adoption.warnings[0]
    assert not done.record("single").adoption.warnings


def test_explain_stops_after_two_steps_with_the_proof(profile):
    done = profile("ordinary.py", "--modes", "ddp", "--explain")
    assert done.exit_code == 0, done.output
    assert len(done.rank("ddp").steps) == 2
    assert "parameters are equal" in done.output


@pytest.mark.parametrize("how", ["function", "method"])
def test_a_compiled_model_is_wrapped_first_and_compiled_after(profile, how):
    options = (*SHORT, "--modes", "ddp,fsdp", "--batch", "global", "--warmup", "10")
    done = profile("compiled.py", *options, args=[how])
    assert done.exit_code == 0, done.output
    single = losses(done.printed("single"))
    for mode in ("ddp", "fsdp"):
        ranks = [losses(done.printed(mode, rank)) for rank in (0, 1)]
        for alone, *parts in list(zip(single, *ranks, strict=False))[:20]:
            assert math.isclose(alone, sum(parts) / 2, rel_tol=1e-5)
        assert [unit.name for unit in done.record(mode).adoption.units] == ["Sequential"]
        assert "fullgraph" in done.record(mode).adoption.warnings[0]
        assert "Dynamo does not know how to trace" not in (done.root / mode / "rank0" / "stderr.log").read_text()
    assert not done.record("single").adoption.warnings
