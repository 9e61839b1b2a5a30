"""What unmodified scripts do to a tool like this: each ends right, or failed with its reason, never ok and wrong."""

from __future__ import annotations

import pytest

from tests.faults.conftest import SHORT

DDP_ALONE = ("--modes", "ddp", "--no-baseline", *SHORT)
SINGLE = ("--modes", "single", *SHORT)


def proof(profiled, mode="ddp"):
    return {check.name: check for check in profiled.record(mode).adoption.proof}


def test_the_module_that_is_called_is_adopted_not_the_one_that_holds_it(profile):
    done = profile("predictor_beside.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert [unit.name for unit in done.record("ddp").adoption.units] == ["Linear"]
    assert all(check.ok for check in proof(done).values())
    assert done.record("ddp").counters.collectives["all_reduce"].num_bytes == (8 * 2 + 2) * 4


def test_training_through_a_method_fails_in_ddp_and_warns_in_single(profile):
    done = profile("method_loss.py", "--modes", "single,ddp", *SHORT)
    assert done.exit_code == 1
    assert done.mode("single")["status"] == "ok"
    assert "Net.loss" in done.mode("single")["adoption"]["warnings"][0]
    assert done.mode("ddp")["status"] == "failed"
    assert "gradients would not be synchronised" in done.mode("ddp")["reason"]
    assert "Net.loss" in done.mode("ddp")["reason"]
    assert done.mode("ddp")["throughput"]["value"] is None


@pytest.mark.parametrize("what", ["load", "freeze", "to", "deepcopy"])
def test_a_model_changed_after_its_optimizer_was_built(profile, what):
    done = profile("after_optimizer.py", *DDP_ALONE, args=[what])
    assert done.exit_code == 0, done.output
    assert all(check.ok for check in proof(done).values())
    gradients = {"freeze": 34 * 4, "to": 178 * 8}.get(what, 178 * 4)
    assert done.record("ddp").counters.collectives["all_reduce"].num_bytes == gradients


def test_a_script_that_looks_for_a_launcher_finds_none(profile):
    done = profile("looks_for_rank.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert [unit.name for unit in done.record("ddp").adoption.units] == ["Linear"]


@pytest.mark.parametrize("mode", ["single", "ddp"])
def test_a_script_that_distributes_itself_is_named_with_its_line(profile, mode):
    done = profile("distributes_itself.py", "--modes", mode, "--no-baseline", *SHORT)
    assert done.exit_code == 1
    assert "init_process_group" in done.mode(mode)["reason"]
    assert "distributes_itself.py:5" in done.mode(mode)["reason"]


def test_an_endless_sampler_is_never_listed(profile):
    done = profile("endless_sampler.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert done.record("ddp").adoption.loaders[0].num_batches == 2_500_000_000
    assert "no real end" in done.mode("ddp")["epoch_s"]["reason"]


def test_a_bare_except_around_the_step_does_not_keep_the_script_alive(profile):
    done = profile("hard_to_end.py", *SINGLE, args=["swallow"])
    assert done.exit_code == 0, done.output
    assert done.record("single").ending == "stopped by force"
    assert done.mode("single")["throughput"]["value"] > 0


def test_a_finally_that_takes_long_is_cut_short(profile):
    done = profile("hard_to_end.py", *SINGLE, args=["finally"])
    assert done.exit_code == 0, done.output
    assert done.record("single").ending == "stopped by force"


def test_a_script_without_any_torch_optimizer_is_adopted_at_its_second_forward(profile):
    done = profile("updates_by_hand.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert proof(done)["parameters equal"].ok
    assert done.mode("ddp")["batch"]["per_device"] == 4
