"""fsdp follows single where sharding allows it, and names the line where it does not."""

from __future__ import annotations

import importlib.util
import math
import re

import pytest

from dpdoctor.worker.modes.fsdp import UNLOGGED
from tests.faults.conftest import SHORT, in_turn

BLOCK_BYTES = (128 * 512 + 512 + 512 * 128 + 128) * 4
ROOT_BYTES = (2 * 8 * 128 + 1) * 4


def numbers(text, pattern):
    return [float(found) for found in re.findall(pattern, text, re.MULTILINE)]


FOLLOWED = ("--batch", "global", *SHORT, "--warmup", "10")


def assert_losses_follow(done, mode):
    assert done.exit_code == 0, done.output
    assert all(check.ok for check in done.record(mode).conversion.proof), done.record(mode).conversion.proof
    single = numbers(done.printed("single"), r"^([\d.e-]+)$")
    ranks = [numbers(done.printed(mode, rank), r"^([\d.e-]+)$") for rank in (0, 1)]
    assert len(single) >= 20
    for alone, *parts in list(zip(single, *ranks, strict=False))[:20]:
        assert math.isclose(alone, sum(parts) / 2, rel_tol=1e-4)


@pytest.mark.parametrize(
    "do", ["plain", "clip", "tied", "reload", "attribute", in_turn("hook_removed"), "accumulated_late"]
)
def test_fsdp_follows_single(profile, do):
    done = profile("blocks.py", "--modes", "fsdp", *FOLLOWED, args=["--do", do])
    assert_losses_follow(done, "fsdp")
    norms = [numbers(done.printed(mode), r"^norm ([\d.]+)$")[:10] for mode in ("single", "fsdp")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    assert bool(norms[0]) is (do == "clip")


def test_fsdp_follows_single_with_lbfgs_where_ranks_hold_equal_parts(profile):
    done = profile("lbfgs.py", "--modes", "fsdp", *FOLLOWED, args=["even"])
    assert done.exit_code == 0, done.output
    single = numbers(done.printed("single"), r"^loss ([\d.]+)$")[:8]
    ranks = [numbers(done.printed("fsdp", rank), r"^loss ([\d.]+)$")[:8] for rank in (0, 1)]
    assert [sum(parts) / 2 for parts in zip(*ranks, strict=True)] == pytest.approx(single, rel=1e-3)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_all_ranks_begin_with_the_weights_of_rank_0(profile, mode):
    done = profile("begins_apart.py", "--modes", mode, "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    before = [numbers(done.printed(mode, rank), r"^before (\S+)$") for rank in (0, 1)]
    trained = [numbers(done.printed(mode, rank), r"^trained (\S+)$") for rank in (0, 1)]
    assert before[0] != pytest.approx(before[1])
    assert [one[:1] for one in trained] == [pytest.approx(before[0], rel=1e-5)] * 2
    assert trained[0] == pytest.approx(trained[1], rel=1e-5)


def test_bytes_are_those_of_the_passes_over_the_parameters(profile):
    done = profile("blocks.py", "--modes", "fsdp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    collectives = done.record("fsdp").counters.collectives
    # A block is gathered in forward and again in backward; what lies in the root only once.
    assert collectives["all_gather"].num_bytes == pytest.approx(2 * 3 * BLOCK_BYTES + ROOT_BYTES, rel=0.02)
    assert collectives["reduce_scatter"].num_bytes == pytest.approx(3 * BLOCK_BYTES + ROOT_BYTES, rel=0.02)
    assert collectives["reduce_scatter"].count == 4


def test_a_model_called_twice_before_its_backward_is_gathered_once_for_both(profile):
    done = profile("../../../samples/gan.py", "--modes", "fsdp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    assert [unit.name for unit in done.record("fsdp").conversion.modules] == ["Generator", "Discriminator"]
    assert all(check.ok for check in done.record("fsdp").conversion.proof), done.record("fsdp").conversion.proof


def test_an_agent_acts_without_gradients_by_the_trained_method_by_others_and_by_its_parts(profile):
    done = profile("rollouts.py", "--modes", "ddp,fsdp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    assert not [check for check in done.record("fsdp").conversion.proof if check.ok is False]
    replicated, sharded = (numbers(done.printed(mode), r"^([-\d.e]+)$")[:12] for mode in ("ddp", "fsdp"))
    assert len(sharded) == 12
    assert sharded == pytest.approx(replicated, rel=1e-3)


def test_a_wrapper_that_passes_on_what_is_set_is_sharded_and_saves_each_ranks_part(profile):
    done = profile("wild_wrapper.py", "--modes", "fsdp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    assert [unit.name for unit in done.record("fsdp").conversion.modules] == ["Wrapper"]
    if importlib.util.find_spec("safetensors"):
        saved = [int(done.printed("fsdp", rank).split()[0]) for rank in (0, 1)]
        assert saved == [4 * 8 + 4 + 7 + 1, 3 * 8 + 3 + 7 + 1]


def test_wrap_units_can_be_named(profile):
    done = profile("blocks.py", "--modes", "fsdp", "--no-baseline", *SHORT, "--fsdp-wrap", "Linear")
    assert done.exit_code == 0, done.output
    assert done.record("fsdp").counters.collectives["reduce_scatter"].count == 9


def test_a_wrap_unit_that_does_not_exist_is_named_with_those_that_do(profile):
    absent = profile("blocks.py", "--modes", "fsdp", "--no-baseline", *SHORT, "--fsdp-wrap", "Bottleneck")
    assert "names Bottleneck, but the model holds no module of that class; it holds Block" in absent.output


@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("ema", "FSDP shards parameters; {script}:102 does `mean.mul_(0.9).add_(new, alpha=0.1)`"),
        in_turn("deepcopy", "FSDP shards parameters; {script}:104 does `copy.deepcopy(model)`"),
        in_turn(
            "numpy", "FSDP shards parameters; {script}:106 does `model.scale.detach().numpy()`, which needs them whole"
        ),
        ("scalar", "FSDP cannot shard the parameter scale: it has no dimension"),
        in_turn(
            "hook", "the parameter blocks.0.wide.weight, and none_of at {script}:45, which the script registered on it"
        ),
        ("hook_late", "and none_of at {script}:45, registered on one at {script}:84 (register_hook), would not run"),
        in_turn(
            "node", "and clamped.<locals>.<lambda> at {script}:55, which the script registered on it (register_hook of"
        ),
        ("node_late", "and clamped.<locals>.<lambda> at {script}:55, registered on scale (register_hook of"),
    ],
)
def test_what_sharding_makes_impossible_is_named_with_its_line(profile, do, said):
    done = profile("blocks.py", "--modes", "fsdp", *SHORT, args=["--do", do])
    assert done.exit_code == 1
    assert done.mode("single")["status"] == "ok"
    script = done.summary["script"]["path"]
    assert said.format(script=script) in done.mode("fsdp")["reason"]


def test_what_sharding_makes_impossible_is_not_put_down_to_an_ablation(profile):
    # Step 22 is in the ablation's first window, and a launch without it would end before.
    options = ("--modes", "fsdp", "--no-baseline", *SHORT, "--ablations", "cached_batches", "--rounds", "3")
    done = profile("blocks.py", *options, args=["--do", "deepcopy", "--at", "22"])
    assert done.exit_code == 1
    assert done.mode("fsdp")["status"] == "failed"
    assert "which needs them whole" in done.mode("fsdp")["reason"]
    assert done.launch("fsdp").record.raised == ""
    assert done.record("fsdp").raised_in == ()


def test_what_sharding_makes_impossible_is_put_down_to_an_ablation_that_calls_other_operators(profile):
    # Step 33 is in the last window of the ablation, and a launch without it ends before.
    options = ("--modes", "fsdp", "--no-baseline", *SHORT, "--ablations", "amp", "--rounds", "3")
    done = profile("blocks.py", *options, args=["--do", "deepcopy", "--at", "33"])
    assert done.exit_code == 0, done.output
    assert "which needs them whole" in done.launch("fsdp").record.raised
    assert "fsdp, again without any ablation: ok" in done.output


def test_hooks_on_parameters_run_in_ddp(profile):
    done = profile("blocks.py", "--modes", "ddp", *FOLLOWED, args=["--do", "hook"])
    assert_losses_follow(done, "ddp")
    (told,) = done.record("ddp").conversion.warnings
    assert told.startswith("none_of at ")
    assert "registered on the parameter blocks.0.wide.weight (register_hook), acts on each rank's own gradient" in told


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (
            "hook_late",
            "none_of at {script}:45, which the script registered on the parameter scale (register_hook), acts on each",
        ),
        ("accumulated_late", "(register_post_accumulate_grad_hook), acts on each rank's own gradient"),
        (
            "node_late",
            "{script}:55, which the script registered on the parameter scale (register_hook of its AccumulateGrad "
            "node) after the model's first training forward, changes in .grad is lost",
        ),
    ],
)
def test_what_becomes_in_ddp_of_hooks_that_come_after_the_wrapper_is_told(profile, do, said):
    done = profile("blocks.py", "--modes", "ddp", "--no-baseline", *SHORT, args=["--do", do])
    assert done.exit_code == 0, done.output
    told = [text for text in done.record("ddp").conversion.warnings if "which the script registered" in text]
    assert len(told) == 1
    assert said.format(script=done.summary["script"]["path"]) in told[0]


def test_that_wandb_sees_no_gradients_of_shards_is_told_once_and_fails_nothing(profile):
    done = profile("tracker/train.py", "--modes", "fsdp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    told = [text for text in done.record("fsdp").conversion.warnings if "gradients" in text]
    assert told == [UNLOGGED]


def test_gradients_of_gradients_are_refused_with_the_line_that_asks_for_them(profile):
    done = profile("gradient_penalty.py", "--modes", "fsdp", "--no-baseline", *SHORT)
    reason, script = done.mode("fsdp")["reason"], done.summary["script"]["path"]
    assert reason.startswith("FSDP lets go of whole parameters in the first backward pass through them")
    assert f"{script}:12 asks for gradients of gradients (create_graph=True), for which {script}:20" in reason
    assert "ddp" not in reason  # where it may fail as well


def test_gradients_of_sharded_parameters_by_grad_are_refused_with_their_line(profile):
    done = profile("gradients_by_hand.py", "--modes", "fsdp", "--no-baseline", *SHORT, args=["--by", "grad"])
    reason, script = done.mode("fsdp")["reason"], done.summary["script"]["path"]
    assert reason.startswith(f"FSDP shards parameters: torch.autograd.grad at {script}:26")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "no parameter of Adam had a gradient in 8 steps"),
        (("--returns", "nothing"), "no parameter of Adam had a gradient in 8 steps"),
        (("--decode",), "gradients were not synchronised"),
    ],
)
def test_what_is_trained_past_the_tensors_that_a_model_returns_is_refused(profile, args, said):
    done = profile("wild_returns.py", "--modes", "fsdp", "--no-baseline", *SHORT, args=args)
    reason = done.mode("fsdp")["reason"]
    assert reason.startswith(said)
    assert "FSDP reduces gradients where a backward pass comes to a tensor that a module returns" in reason
    assert "among what Net returns is none" in reason


def test_a_method_that_goes_past_the_calls_of_a_model_is_named_by_its_backward_pass(profile):
    done = profile("wild_returns.py", "--modes", "fsdp", "--no-baseline", *SHORT, args=["--past"])
    reason = done.mode("fsdp")["reason"]
    assert reason.startswith("no parameter of Adam had a gradient in 8 steps")
    assert f"the backward pass at {done.summary['script']['path']}:51 goes through a forward that no call" in reason


def test_dp_without_a_gpu_is_inactive_with_the_figures_of_the_plain_module(profile):
    done = profile("blocks.py", "--modes", "dp", *SHORT)
    assert done.exit_code == 0, done.output
    mode = done.mode("dp")
    assert mode["status"] == "inactive"
    assert "needs a GPU" in mode["reason"]
    assert mode["throughput"]["value"] > 0
    assert mode["speedup"]["value"] is None
