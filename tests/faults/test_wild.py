"""What scripts found in the wild do, each in few lines: everything here once failed, or gave a wrong number."""

from __future__ import annotations

import pytest
import torch

from dpdoctor import rundir
from tests.faults.conftest import SHORT, in_turn

SINGLE = ("--modes", "single", *SHORT)
DDP_ALONE = ("--modes", "ddp", "--no-baseline", *SHORT)
TAKES_DICT = pytest.mark.skipif(
    "dict" not in str(torch.autograd.grad.__annotations__["inputs"]), reason="this torch takes no dict"
)


@pytest.mark.parametrize("mode", ["single", "ddp"])
def test_a_compiled_model_that_is_evaluated_before_it_trains(profile, mode):
    done = profile("wild_compiled.py", "--modes", mode, "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    assert [unit.name for unit in done.record(mode).conversion.modules] == ["Net"]
    assert done.mode(mode)["batch"]["per_device"] == 12


def test_a_buffer_that_ddp_cannot_broadcast_is_laid_out_anew_and_named(profile):
    done = profile("wild_positions.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert "the buffer positions was laid out anew" in done.record("ddp").conversion.warnings[0]


def test_what_fsdp_cannot_shard_as_it_lies_is_laid_out_anew_and_named(profile):
    done = profile("wild_channels_last.py", "--modes", "ddp,fsdp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    assert "2 parameters of Net made contiguous, layers.0.weight first" in done.record("fsdp").conversion.warnings[0]
    replicated, sharded = ([float(line) for line in done.printed(mode).split()[:10]] for mode in ("ddp", "fsdp"))
    assert sharded == pytest.approx(replicated, rel=1e-4)


@pytest.mark.parametrize(
    ("script", "samples", "told"),
    [
        (
            "whole_batch.py",
            20,
            "dim 0 of the first tensor that the model is called with, up to 20 per step",
        ),
        ("by_time.py", 4, "dim 1 of the first tensor that the model is called with, up to 4 per step"),
    ],
)
def test_without_a_loader_the_summary_says_what_a_sample_is(profile, script, samples, told):
    done = profile(script, *SINGLE)
    assert done.mode("single")["batch"]["per_device"] == samples
    assert told in " ".join(done.output.split())


def test_where_nothing_tells_the_batch_from_time_samples_are_unknown_and_the_step_is_not(profile):
    done = profile("wild_positions.py", *SINGLE)
    mode = done.mode("single")
    assert mode["status"] == "ok"
    assert mode["batch"]["per_device"] is mode["throughput"]["value"] is None
    assert mode["step"]["value"] > 0
    assert "nothing tells which dimension" in " ".join(done.output.split())


def test_who_gives_the_samples_is_not_told_how_they_might_be_counted(profile):
    done = profile("wild_positions.py", "--samples-per-step", "5", *SINGLE)
    assert done.record("single").conversion.warnings == ()
    assert done.mode("single")["batch"]["per_device"] == 5


def test_two_models_in_turn_count_their_batch_once(profile):
    done = profile("wild_two_models.py", *SINGLE)
    assert done.mode("single")["batch"]["per_device"] == 7


@pytest.mark.parametrize(
    ("kind", "samples", "told"),
    [
        ("sam", 6, "up to 6 per step"),
        ("attack", None, "give gradients to what the model is called with"),
        ("views", None, "resemble others of the step"),
        ("chunks", None, "the loss takes apart, along the batch, what the model returned"),
        ("noise", None, "resemble others of the step"),
        ("repeated", 6, "each is there 2 times, one like the other, and counts once"),
        ("micro_batches", 12, "up to 2 backward passes of a step are taken to be on samples of their own"),
        ("graphs", None, "as nodes of graphs"),
    ],
)
def test_samples_are_counted_once_or_not_at_all(profile, kind, samples, told):
    done = profile("wild_passes.py", *SINGLE, args=[kind])
    assert done.exit_code == 0, done.output
    assert done.mode("single")["batch"]["per_device"] == samples
    (warning,) = done.record("single").conversion.warnings
    assert told in warning


def test_a_list_of_images_without_a_loader_is_not_counted(profile):
    done = profile("wild_list.py", *SINGLE)
    assert {step.samples_entered for step in done.rank("single").steps} == {0}
    assert "give --samples-per-step" in done.record("single").conversion.warnings[0]


def test_a_copy_kept_inside_is_neither_reduced_nor_expected_to_be_gathered(profile):
    done = profile("wild_average_inside.py", "--modes", "ddp,fsdp", *SHORT)
    assert done.exit_code == 0, done.output
    trained = (2 * (320 * 320 + 320) + 320 * 4 + 4) * 4
    assert done.record("ddp").counters.collectives["all_reduce"].num_bytes == trained
    conversion = done.record("ddp").conversion
    assert not conversion.find_unused_parameters
    assert "left out of the wrapper: nothing trains average." in conversion.warnings[0]
    assert all(check.ok for check in done.record("fsdp").conversion.proof)


def test_a_sampler_that_draws_apart_on_each_rank_is_told(profile):
    done = profile("wild_sampler.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert any("ranks draw different batches" in warning for warning in done.record("ddp").conversion.warnings)


def test_a_script_that_leaves_its_wrapper_in_mid_run_fails(profile):
    done = profile("wild_changes_call.py", *DDP_ALONE)
    assert done.exit_code == 1
    assert done.mode("ddp")["reason"].startswith("gradients were no longer synchronised")


def test_a_method_that_runs_the_backward_pass_too_fails_in_ddp_and_warns_in_single(profile):
    done = profile("wild_method_step.py", "--modes", "single,ddp", *SHORT)
    assert done.exit_code == 1
    assert done.mode("single")["status"] == "ok"
    assert "Net.fit" in done.mode("single")["conversion"]["warnings"][0]
    assert "gradients would not be synchronised" in done.mode("ddp")["reason"]
    assert "Net.fit" in done.mode("ddp")["reason"]


def test_models_of_a_trainer_that_is_a_module_are_wrapped_where_each_has_its_own_optimizer(profile):
    done = profile("trainer_module.py", "--modes", "single,ddp,fsdp", *SHORT)
    for name in ("single", "ddp", "fsdp"):
        mode = done.mode(name)
        assert mode["status"] == "ok", mode["reason"]
        assert [module["line"].rpartition(":")[2] for module in mode["conversion"]["modules"]] == ["16", "16"]
        assert mode["batch"]["per_device"] == 16


def test_a_forward_that_runs_the_backward_pass_returns_too_late_for_wrappers(profile):
    done = profile("wild_backward_inside.py", "--modes", "single,ddp,fsdp", "--keep-going", *SHORT)
    assert done.mode("single")["status"] == "ok"
    line = f"the backward pass at {done.summary['script']['path']}:15 begins inside of the model's forward"
    for name in ("ddp", "fsdp"):
        assert line in done.mode(name)["reason"]


def test_what_a_backward_pass_computes_once_more_is_no_other_model(profile):
    done = profile("wild_adjoint.py", "--modes", "single,ddp", *SHORT)
    assert done.exit_code == 0, done.output
    for name in ("single", "ddp"):
        assert [unit["name"] for unit in done.mode(name)["conversion"]["modules"]] == ["Net"]
        assert not done.record(name).conversion.warnings


@pytest.mark.parametrize(("steps", "status"), [(14, "ok"), (6, "failed")])
def test_a_fresh_model_for_every_fold_ends_the_mode_after_the_first_that_was_proved(profile, steps, status):
    done = profile("folds.py", "--modes", "single,ddp", *SHORT, "--warmup", "5", args=[str(steps)])
    for name in ("single", "ddp"):
        mode = done.mode(name)
        assert mode["status"] == status, mode["reason"]
        if status == "ok":
            assert mode["batch"]["per_device"] == 8
            assert "after 14 steps the script began to train another model" in " ".join(mode["conversion"]["warnings"])
        else:
            assert "the script trains another model" in mode["reason"]


def test_models_that_were_built_ahead_and_train_in_turn_end_the_mode_after_the_first(profile):
    done = profile("folds.py", "--modes", "single,ddp", *SHORT, "--warmup", "5", "--rounds", "6", args=["20", "ahead"])
    for name in ("single", "ddp"):
        mode = done.mode(name)
        assert mode["status"] == "ok", mode["reason"]
        assert mode["batch"]["per_device"] == 8
        assert "after 20 steps the script began to train another model" in " ".join(mode["conversion"]["warnings"])


@pytest.mark.parametrize("attacks", [1, 7])
def test_an_optimizer_for_each_batch_that_steps_before_the_lasting_one_ends_no_step(profile, attacks):
    done = profile("wild_adversarial.py", *SINGLE, "--warmup", "12", args=[str(attacks)])
    assert done.exit_code == 0, done.output
    assert done.mode("single")["batch"]["per_device"] == 8
    assert {step.samples_drawn for step in done.rank("single").steps if step.window} == {8}


def test_what_a_part_could_not_tell_of_samples_its_model_may(profile):
    done = profile("wild_head_outside.py", *SINGLE)
    assert done.exit_code == 0, done.output
    assert done.mode("single")["batch"]["per_device"] == 16


def test_a_sum_that_only_moves_samples_is_not_taken_for_the_loss(profile):
    done = profile("wild_energy.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert not any("the loss is a sum" in text for text in done.record("ddp").conversion.warnings)
    assert done.mode("ddp")["batch"]["global"] == 16


def test_a_step_that_is_taken_in_a_backward_pass_ends_with_it(profile):
    done = profile("wild_steps_in_backward.py", *SINGLE)
    assert done.exit_code == 0, done.output
    assert {(step.samples_drawn, step.micro_batches) for step in done.rank("single").steps} == {(8, 1)}


def test_a_step_that_is_taken_in_a_backward_pass_is_too_early_for_ranks(profile):
    # All ranks train on the same samples here: without any exchange they stay alike.
    done = profile(
        "wild_steps_in_backward.py", "--modes", "ddp,fsdp", "--no-baseline", "--keep-going", *SHORT, args=["same"]
    )
    script = done.summary["script"]["path"]
    early = f"optimizer.step at {script}:16 runs inside the backward pass, before DistributedDataParallel averages"
    assert done.mode("ddp")["reason"].startswith(f"gradients were not synchronised: {early}")
    assert f"update at {script}:15" in done.mode("fsdp")["reason"]


def test_what_a_thread_fetches_for_a_validation_is_not_counted(profile):
    done = profile("wild_prefetched.py", *SINGLE, "--steps", "16")
    assert done.exit_code == 0, done.output
    steps = done.rank("single").steps
    ahead = 3  # in the queue, and before and after it
    assert 8 * len(steps) <= sum(step.samples_drawn for step in steps) <= 8 * (len(steps) + ahead)


def test_what_a_thread_fetches_ahead_counts_in_the_step_that_trains_on_it(profile):
    done = profile("wild_background.py", "--modes", "single,ddp", *SHORT)
    assert done.exit_code == 0, done.output
    for mode in ("single", "ddp"):
        assert done.mode(mode)["batch"]["per_device"] == 32
        assert {step.samples_drawn for step in done.rank(mode).steps if step.window} == {32}


def test_a_loader_for_evaluations_is_as_long_as_it_is_before_anything_has_trained(profile):
    done = profile("wild_evaluated_first.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert [loader.rule for loader in done.record("ddp").conversion.loaders] == ["whole", "per-device"]


def test_samples_that_a_collate_function_leaves_out_are_not_counted(profile):
    done = profile("wild_left_out.py", *SINGLE, "--warmup", "12", "--steps", "20")
    assert done.exit_code == 0, done.output
    steps = [step for step in done.rank("single").steps if step.window]
    printed = [int(line) for line in done.printed("single").split()[12 : 12 + len(steps)]]
    assert min(printed) < max(printed) == 8
    assert [step.samples_drawn for step in steps] == printed


@pytest.mark.parametrize("warmup", [12, 24])
def test_a_model_that_trains_later_is_wrapped_if_it_does_in_the_warm_up(profile, warmup):
    done = profile("wild_trains_later.py", *DDP_ALONE, "--warmup", str(warmup), args=["20"])
    mode = done.mode("ddp")
    assert mode["status"] == ("ok" if warmup > 20 else "failed")
    if warmup < 20:
        assert "a parameter of shape (1, 8) in SGD began to train after the warm-up" in mode["reason"]
        assert "give --warmup" in mode["reason"]


@pytest.mark.parametrize("new_processes", [False, True])
def test_a_script_that_asks_the_terminal_on_stdin_finds_one_on_which_nobody_types(profile, new_processes):
    done = profile("wild_terminal.py", *DDP_ALONE, new_processes=new_processes)
    assert done.exit_code == 0, done.output
    assert done.printed("ddp", 1).splitlines()[:3] == ["width 80 80", "read '' b'' False", "programs end"]


@pytest.mark.parametrize(
    ("by", "said"),
    [
        pytest.param("named", "torch.autograd.grad at {script}:29 takes gradients of parameters", marks=TAKES_DICT),
        ("grad", "torch.autograd.grad at {script}:26 takes gradients of parameters"),
        ("backward", "the backward pass at {script}:33 goes through a forward that another one went through"),
    ],
)
def test_gradients_that_ddp_does_not_reduce_are_named_with_their_line(profile, by, said):
    done = profile("gradients_by_hand.py", *DDP_ALONE, args=["--by", by])
    mode, script = done.mode("ddp"), done.summary["script"]["path"]
    assert mode["status"] == "failed"
    assert mode["reason"].startswith(f"gradients were not synchronised: {said.format(script=script)}")
    assert "CPUAllocator" not in done.output


def test_a_head_without_a_gradient_of_its_own_in_a_backward_pass_is_named(profile):
    mode = profile("wild_heads.py", *DDP_ALONE).mode("ddp")
    assert mode["status"] == "failed"
    assert "gave none to heads.1.weight and 1 more" in mode["reason"]
    assert "wild_heads.py:20" in mode["reason"]


def test_buffers_are_broadcast_once_before_a_backward_pass_that_would_not_bear_more(profile):
    done = profile("wild_called_twice.py", *DDP_ALONE, args=["together", "in_place"])
    assert done.exit_code == 0, done.output
    record = done.record("ddp")
    assert all(check.ok for check in record.conversion.proof)
    (told,) = [text for text in record.conversion.warnings if "broadcast_buffers=False" in text]
    assert told.startswith("Net, called at ")
    assert "wild_called_twice.py:37, was called before" in told
    assert record.counters.collectives["all_reduce"].num_bytes == 11 * 4
    assert record.counters.collectives["broadcast"].num_bytes == 2 * 10 * 4  # for the call in eval mode, too


def test_buffers_are_broadcast_in_each_call_that_has_a_backward_pass_of_its_own(profile):
    done = profile("wild_called_twice.py", *DDP_ALONE, args=["in_turn", "in_place"])
    assert done.exit_code == 0, done.output
    record = done.record("ddp")
    assert not any("broadcast_buffers" in text for text in record.conversion.warnings)
    assert record.counters.collectives["all_reduce"].num_bytes == 2 * 11 * 4
    assert record.counters.collectives["broadcast"].num_bytes == 3 * 10 * 4


def test_buffers_are_broadcast_in_each_call_where_torch_bears_it(profile):
    done = profile("wild_called_twice.py", *DDP_ALONE, args=["together"])
    assert done.exit_code == 0, done.output
    record = done.record("ddp")
    is_told = any("broadcast_buffers" in text for text in record.conversion.warnings)
    assert record.counters.collectives["broadcast"].num_bytes == (2 if is_told else 3) * 10 * 4


def test_a_module_that_two_parts_hold_is_sharded_once(profile):
    done = profile("wild_tied_modules.py", "--modes", "fsdp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    assert done.mode("fsdp")["status"] == "ok"


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "nested", "jagged"])
def test_inputs_that_are_not_laid_out_densely(profile, layout):
    done = profile("wild_layouts.py", *DDP_ALONE, args=[layout])
    assert done.exit_code == 0, done.output
    mode = done.mode("ddp")
    assert mode["batch"]["per_device"] == 7
    assert any("does not seed" in warning for warning in mode["conversion"]["warnings"])


@pytest.mark.parametrize("layout", ["coo", "nested", "jagged"])
def test_loaders_may_give_what_is_not_laid_out_densely(profile, layout):
    done = profile("wild_layouts.py", *DDP_ALONE, "--ablations", "cached_batches", args=[layout, "loader"])
    assert done.exit_code == 0, done.output
    assert done.mode("ddp")["batch"]["global"] == 14
    (ablation,) = done.record("ddp").ablations
    assert "a sparse or nested tensor" in ablation.skipped


def test_a_model_of_two_methods_is_wrapped_once(profile):
    done = profile("wild_two_methods.py", "--modes", "ddp,fsdp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    for mode in ("ddp", "fsdp"):
        (unit,) = done.record(mode).conversion.modules
        assert unit.num_parameters == 67
        assert done.mode(mode)["batch"]["per_device"] == 6
    reduced = done.record("ddp").counters.collectives["all_reduce"]
    assert reduced.num_bytes == 67 * 4
    replicated, sharded = ([float(line) for line in done.printed(mode).split()[:4]] for mode in ("ddp", "fsdp"))
    assert sharded == pytest.approx(replicated, rel=1e-4)


def test_a_module_that_is_made_anew_in_each_step_is_named(profile):
    done = profile("wild_made_anew.py", "--modes", "ddp,fsdp", "--no-baseline", "--keep-going", *SHORT)
    for mode in ("ddp", "fsdp"):
        assert done.mode(mode)["status"] == "failed"
        reason = done.mode(mode)["reason"]
        assert reason.startswith("Around, called at ")
        assert "wild_made_anew.py:20, is one more of its class around the same parameters" in reason


def test_forward_passes_of_a_module_that_is_made_anew_are_unknown_on_one_device(profile):
    done = profile("wild_made_anew.py", *SINGLE)
    assert done.exit_code == 0, done.output
    for name in ("forward", "other"):
        assert done.mode("single")["phases"][name]["value"] is None
        assert "wild_made_anew.py:20, is made anew" in done.mode("single")["phases"][name]["reason"]
    assert done.mode("single")["throughput"]["value"] is None
    assert done.mode("single")["step"]["value"] > 0


@pytest.mark.parametrize(
    ("args", "times_reduced"),
    [
        (["together"], 2),
        (["together", "with_buffer"], 2),
        in_turn(["together", "in_place"], 2),
        in_turn(["in_turn"], 2),
        (["in_turn", "in_place"], 2),
        (["levels"], 1),
        in_turn(["levels", "in_place"], 1),
        in_turn(["levels_in_turn"], 1),
        (["levels_in_turn", "in_place"], 1),
        in_turn(["levels_down"], 1),
    ],
)
def test_modules_around_one_model_train_as_on_one_device(profile, args, times_reduced):
    options = ("--modes", "single,ddp", "--batch", "global", *SHORT)
    done = profile("wild_around_one.py", *options, args=args)
    assert done.exit_code == 0, done.output
    alone, *ranks = (
        [float(line) for line in done.printed(mode, rank).split()[:8]]
        for mode, rank in (("single", 0), ("ddp", 0), ("ddp", 1))
    )
    assert [sum(parts) / 2 for parts in zip(*ranks, strict=True)] == pytest.approx(alone, rel=1e-4)
    record = done.record("ddp")
    assert record.counters.collectives["all_reduce"].num_bytes == times_reduced * (2 * 8 * 16 + 16 + 8) * 4
    is_told = any("have parameters in common, inner.0.weight first" in text for text in record.conversion.warnings)
    assert is_told is (args[0] != "levels")
    if args[1:] == ["in_place"]:
        calls_again = any("which was called before" in text for text in record.conversion.warnings)
        assert calls_again is (args[0] in {"together", "levels"})


def test_a_model_that_two_modules_train_is_sharded_once(profile):
    done = profile("wild_around_one.py", "--modes", "fsdp", "--no-baseline", *SHORT, args=["in_turn"])
    reason, script = done.mode("fsdp")["reason"], done.summary["script"]["path"]
    assert reason.startswith(f"Fits, called at {script}:70, could not be converted: FSDP shards a parameter once")
    assert "inner.0.weight was sharded as one of Agrees, which the script called before" in reason


def test_a_part_of_a_sharded_model_that_is_called_alone_is_named(profile):
    done = profile("wild_around_one.py", "--modes", "fsdp", "--no-baseline", *SHORT, args=["levels_down"])
    said = "FSDP shards parameters; a call of Doubles gathers them, and Fits, a part of it, is called alone ("
    assert done.mode("fsdp")["reason"].startswith(said)


def test_a_backward_pass_before_there_is_an_optimizer_is_no_step_and_warns_of_nothing(profile):
    done = profile("wild_backward_before.py", *DDP_ALONE)
    assert done.exit_code == 0, done.output
    assert not [text for text in done.record("ddp").conversion.warnings if "a sum over the batch" in text]


def test_batches_of_a_tensor_class_that_refuses_to_be_cut_are_trained_on(profile):
    done = profile("wild_tensor_class.py", "--modes", "single,ddp", *SHORT)
    assert done.exit_code == 0, done.output
    assert [done.mode(mode)["batch"]["global"] for mode in ("single", "ddp")] == [6, 12]


@pytest.mark.parametrize("first", ["generator", "critic"])
def test_models_that_are_frozen_in_turn_are_wrapped_when_they_train(profile, first):
    done = profile("wild_frozen_in_turn.py", "--modes", "single,ddp,fsdp", *SHORT, args=[first])
    assert done.exit_code == 0, done.output
    sizes = [216, 161] if first == "generator" else [161, 216]
    for mode, samples in (("single", 6), ("ddp", 12), ("fsdp", 12)):
        assert done.mode(mode)["batch"]["global"] == samples
        assert [unit.num_parameters for unit in done.record(mode).conversion.modules] == sizes
        assert all(check.ok for check in done.record(mode).conversion.proof)


@pytest.mark.parametrize("how", ["plain", "scheduled", "traces", "autograd"])
def test_a_script_that_profiles_itself_is_kept_from_it(profile, how):
    done = profile("wild_own_profiler.py", "--modes", "single,ddp", *SHORT, "--trace-steps", "3", args=[how, "0"])
    assert done.exit_code == 0, done.output
    for mode, samples in (("single", 6), ("ddp", 12)):
        assert done.mode(mode)["batch"]["global"] == samples
        assert done.record(mode).counters.operators > 0
        assert any("torch.profiler was kept from recording" in text for text in done.record(mode).conversion.warnings)
        assert done.rank(mode).digest.step_source == "ProfilerStep"
        assert [step.step for step in done.rank(mode).digest.traced_steps] == [2]
        printed = done.printed(mode).splitlines()
        if how == "scheduled":
            assert printed[:2] == ["cycle 5 0", "cycle 10 0"]
        if how == "traces":
            assert printed[:2] == ["traces 1", "traces 2"]


@pytest.mark.slow
def test_a_script_that_profiles_itself_is_kept_from_it_bare_as_well(profile):
    options = [option for option in SINGLE if option != "--no-control"]
    done = profile("wild_own_profiler.py", *options, args=["scheduled", "0"], control=True)
    assert done.exit_code == 0, done.output
    for launch in ("single", "bare"):
        assert done.printed(launch).startswith("cycle 5 0\n")
    assert {launch.record.status for launch in rundir.read(done.root).bare} == {"ok"}


@pytest.mark.parametrize("how", ["forward", "whole"])
def test_a_class_with_a_call_of_its_own_is_trained_through_it(profile, how):
    done = profile("wild_own_call.py", "--modes", "single,ddp,fsdp", *SHORT, args=[how])
    assert done.exit_code == 0, done.output
    for mode, samples in (("single", 6), ("ddp", 12), ("fsdp", 12)):
        assert done.mode(mode)["batch"]["global"] == samples
        assert done.mode(mode)["phases"]["forward"]["value"] > 0
        assert "__call__, which stands for its call" in done.record(mode).conversion.warnings[0]
    replicated, sharded = ([float(line) for line in done.printed(mode).split()[:6]] for mode in ("ddp", "fsdp"))
    assert sharded == pytest.approx(replicated, rel=1e-4)


@pytest.mark.parametrize(
    "args", [("--kind", "embedding"), ("--kind", "bag"), ("--forward",)], ids=["embedding", "bag", "forward"]
)
def test_sparse_gradients_are_reduced_in_ddp_and_refused_by_fsdp(profile, args):
    options = ("--modes", "single,ddp,fsdp", "--keep-going", *SHORT)
    done = profile("wild_sparse.py", *options, args=args)
    assert [done.mode(mode)["status"] for mode in ("single", "ddp", "fsdp")] == ["ok", "ok", "failed"]
    assert [done.mode(mode)["batch"]["global"] for mode in ("single", "ddp")] == [6, 12]
    (reduced,) = (check.text for check in done.record("ddp").conversion.proof if check.name == "gradients reduced")
    assert reduced == "32.1 kB all-reduced in a step that made 32.1 kB of gradients"
    assert "cannot reduce sparse gradients, which table makes" in done.mode("fsdp")["reason"]


def test_that_ddp_finds_no_tensor_in_what_a_model_with_unused_parameters_returns_is_told(profile):
    done = profile("wild_returns.py", "--modes", "ddp", *SHORT, args=["--unused"])
    assert done.mode("single")["status"] == "ok"
    assert done.mode("ddp")["reason"].startswith("DistributedDataParallel looks for what is unused")
    assert "what Net returns, of class Normal, has none that needs a gradient" in done.mode("ddp")["reason"]


@pytest.mark.parametrize("how", [in_turn("loss"), "fullgraph", "step", "method", in_turn("after")])
def test_a_model_that_a_compiled_function_calls_is_compiled_in_its_place(profile, how):
    done = profile("wild_compiled_function.py", "--modes", "single,ddp", *SHORT, args=[how])
    assert done.exit_code == 0, done.output
    function = {"step": "step", "method": "Model.loss"}.get(how, "loss_of")
    for mode, samples in (("single", 6), ("ddp", 12)):
        assert done.mode(mode)["batch"]["global"] == samples
        assert done.mode(mode)["phases"]["forward"]["value"] > 0
        told, *_ = done.record(mode).conversion.warnings
        assert told.startswith(f"{function}, compiled at ")
        assert "calls Model, which torch would trace past any wrapper" in told


def test_what_is_computed_of_all_data_is_the_same_on_every_rank(profile):
    done = profile("wild_reads_all.py", *DDP_ALONE, "--steps", "30")
    assert done.exit_code == 0, done.output
    one, other = (done.printed("ddp", rank).splitlines() for rank in (0, 1))
    assert one == other
    assert len({line.split()[0] for line in one}) == 2
    assert all(line.startswith("evaluated 80 10 ") for line in one[1:])
    assert done.mode("ddp")["batch"]["global"] == 16


def test_who_takes_more_batches_than_a_rank_has_is_told_so(profile):
    done = profile("takes_too_many.py", *DDP_ALONE, "--steps", "30")
    reason = done.mode("ddp")["reason"]
    assert "it has 40 batches, and each of 2 ranks takes 20. Take their number from len(loader)" in reason
