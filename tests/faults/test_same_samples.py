"""Ranks that draw their batches by themselves, from the same seed, train on the same samples: seen, counted once."""

from __future__ import annotations

import pytest

from tests.faults.conftest import SHORT

DDP = ("--modes", "ddp", "--no-baseline", *SHORT)
ONE_WINDOW = (*DDP, "--rounds", "1")


def findings(done):
    return [found["rule"] for found in done.summary["findings"]]


def test_batches_drawn_from_the_same_seed(profile):
    done = profile("language_model.py", *DDP)
    assert done.exit_code == 0, done.output
    assert done.printed("ddp", 0) == done.printed("ddp", 1)
    mode = done.mode("ddp")
    assert mode["conversion"]["same_samples"]
    assert (mode["batch"]["per_device"], mode["batch"]["global"]) == (8, 8)
    assert mode["throughput"]["value"] == pytest.approx(8 / mode["step"]["value"], rel=0.01)
    assert findings(done)[0] == "unsharded_data"


def test_a_seed_for_each_rank_draws_them_apart(profile):
    done = profile("language_model.py", *DDP, "--seed-per-rank")
    assert not {*done.printed("ddp", 0).splitlines()} & {*done.printed("ddp", 1).splitlines()}
    mode = done.mode("ddp")
    assert not mode["conversion"]["same_samples"]
    assert (mode["batch"]["per_device"], mode["batch"]["global"]) == (8, 16)
    assert "unsharded_data" not in findings(done)


def test_batches_of_a_loader_are_shared_out(profile):
    done = profile("ordinary.py", *DDP)
    assert not done.mode("ddp")["conversion"]["same_samples"]


def test_what_enters_a_network_that_makes_the_weights_of_another_is_no_sample(profile):
    done = profile("wild_hypernetwork.py", *DDP)
    assert done.exit_code == 0, done.output
    assert not done.mode("ddp")["conversion"]["same_samples"]
    assert "unsharded_data" not in findings(done)


@pytest.mark.parametrize("args", [(), ("ahead",)])
def test_the_time_beside_samples_and_how_far_ahead_they_are_fetched_make_them_no_others(profile, args):
    done = profile("wild_stream.py", *DDP, args=args)
    mode = done.mode("ddp")
    assert mode["conversion"]["same_samples"]
    assert (mode["batch"]["per_device"], mode["batch"]["global"]) == (4, 4)
    assert findings(done)[0] == "unsharded_data"


@pytest.mark.parametrize("args", [(), ("drawn",)])
def test_numbers_that_only_dpdoctor_seeded_are_drawn_apart(profile, args):
    done = profile("unseeded_pairs.py", *DDP, args=args)
    mode = done.mode("ddp")
    first, last = ([done.printed("ddp", rank).splitlines()[place] for rank in (0, 1)] for place in (0, -1))
    assert first[0] == first[1]
    assert last[0] != last[1]
    assert not mode["conversion"]["same_samples"]
    assert mode["batch"]["global"] == 8
    assert "unsharded_data" not in findings(done)
    assert any("does not seed" in warning for warning in mode["conversion"]["warnings"])


def test_what_a_process_that_the_script_forks_draws_is_apart_from_the_first(profile):
    done = profile("unseeded_pairs.py", *ONE_WINDOW, args=["forked"])
    assert not {*done.printed("ddp", 0).splitlines()} & {*done.printed("ddp", 1).splitlines()}
    assert done.mode("ddp")["batch"]["global"] == 8
    assert "unsharded_data" not in findings(done)


@pytest.mark.parametrize(("args", "samples"), [((), 8), (("seeded",), 4)])
def test_workers_of_a_stream_draw_apart_unless_the_script_seeds_torch(profile, args, samples):
    done = profile("unseeded_stream.py", *ONE_WINDOW, args=args)
    first, second = ({*done.printed("ddp", rank).splitlines()} for rank in (0, 1))
    assert bool(first & second) is (args == ("seeded",))
    assert done.mode("ddp")["batch"]["global"] == samples


def test_numbers_that_the_script_seeds_stay_alike(profile):
    done = profile("unseeded_pairs.py", *DDP, args=["seeded"])
    mode = done.mode("ddp")
    assert mode["conversion"]["same_samples"]
    assert mode["batch"]["global"] == 4
    (found,) = (found for found in done.summary["findings"] if found["rule"] == "unsharded_data")
    assert "dataset draws" in found["remedy"]


def test_what_the_script_seeds_may_pick_the_same_samples_beside_noise_that_differs(profile):
    mode = profile("unseeded_pairs.py", *ONE_WINDOW, args=["picked"]).mode("ddp")
    assert not mode["conversion"]["same_samples"]
    assert mode["throughput"]["value"] is None
    assert mode["throughput"]["reason"].startswith("what each step draws with numpy, which the script seeds itself")


def test_what_the_script_seeds_and_draws_before_training_alone_picks_nothing(profile):
    mode = profile("unseeded_pairs.py", *ONE_WINDOW, args=["shuffled"]).mode("ddp")
    assert mode["batch"]["global"] == 8
    assert mode["throughput"]["value"] > 0


def test_one_window_is_enough_to_see_them_drawn_apart(profile):
    mode = profile("unseeded_pairs.py", *ONE_WINDOW).mode("ddp")
    assert mode["batch"]["global"] == 8
    assert any("does not seed" in warning for warning in mode["conversion"]["warnings"])


def test_one_window_is_enough_to_see_that_they_stay_alike(profile):
    mode = profile("language_model.py", *ONE_WINDOW).mode("ddp")
    assert mode["conversion"]["same_samples"]
    assert mode["batch"]["global"] == 8


def test_a_script_that_ends_in_its_first_window_is_seen_to_train_on_the_same(profile):
    """Ranks do not meet after the proof any more."""
    mode = profile("language_model.py", *ONE_WINDOW, "--steps", "100", args=["40"]).mode("ddp")
    assert mode["status"] == "ok", mode["reason"]
    assert mode["conversion"]["same_samples"]
    assert mode["batch"]["global"] == 8


def test_one_and_the_same_batch_counts_once_and_is_told(profile):
    done = profile("whole_batch.py", *ONE_WINDOW)
    mode = done.mode("ddp")
    assert (mode["batch"]["per_device"], mode["batch"]["global"]) == (20, 20)
    assert mode["throughput"]["value"] == pytest.approx(20 / mode["step"]["value"], rel=0.01)
    assert any("one and the same batch" in warning for warning in mode["conversion"]["warnings"])
    assert findings(done)[0] == "unsharded_data"


@pytest.mark.parametrize("args", [(), ("stream",)])
def test_augmentation_that_differs_does_not_make_the_same_samples_others(profile, args):
    done = profile("few_batches.py", *DDP, args=args)
    mode = done.mode("ddp")
    assert mode["conversion"]["same_samples"]
    assert (mode["batch"]["per_device"], mode["batch"]["global"]) == (16, 16)
    (found,) = (found for found in done.summary["findings"] if found["rule"] == "unsharded_data")
    assert found["status"] == "confirmed"


@pytest.mark.parametrize("options", [(), ("--seed-per-rank",)])
def test_generators_of_the_scripts_own_pick_the_same_samples_which_no_option_changes(profile, options):
    done = profile("own_numbers.py", *DDP, *options, args=["generator"])
    assert done.mode("ddp")["batch"]["global"] == 32
    (found,) = (found for found in done.summary["findings"] if found["rule"] == "unsharded_data")
    assert ("--seed-per-rank does not reach what picks them" in found["remedy"]) is bool(options)
    assert "give --seed-per-rank" not in found["remedy"]


@pytest.mark.parametrize("options", [(), ("--seed-per-rank",)])
def test_generators_of_the_scripts_own_may_pick_the_same_samples_beside_noise_that_differs(profile, options):
    mode = profile("own_numbers.py", *ONE_WINDOW, *options, args=["noise"]).mode("ddp")
    assert mode["throughput"]["value"] is None
    assert "with numpy.random.default_rng, which the script seeds itself" in mode["throughput"]["reason"]
    assert mode["throughput"]["reason"].endswith("Seed it by the rank")


@pytest.mark.parametrize(("options", "samples"), [((), 32), (("--seed-per-rank",), 64)])
def test_an_order_that_is_drawn_before_the_first_backward_pass_is_drawn_apart(profile, options, samples):
    done = profile("own_numbers.py", *DDP, *options, args=["order"])
    assert done.mode("ddp")["batch"]["global"] == samples


@pytest.mark.parametrize(
    ("args", "status"),
    [
        ((), "inferred"),
        (("read",), "inferred"),
        (("evaluates",), "inferred"),
        (("seeded",), "confirmed"),
        (("slices",), "confirmed"),
        (("own",), "confirmed"),
    ],
)
def test_an_order_that_only_dpdoctor_seeded_is_not_the_scripts(profile, args, status):
    done = profile("unseeded_order.py", *DDP, args=args)
    mode = done.mode("ddp")
    (found,) = (found for found in done.summary["findings"] if found["rule"] == "unsharded_data")
    assert found["status"] == status
    assert mode["batch"]["global"] == (8 if status == "confirmed" else None)
    assert status == "confirmed" or "give --seed-per-rank" in mode["throughput"]["reason"].lower()


@pytest.mark.parametrize("num_workers", ["0", "1"])
def test_a_script_from_which_its_rank_was_hidden_may_draw_apart(profile, num_workers):
    done = profile("seeds_by_rank.py", *ONE_WINDOW, args=[num_workers])
    mode = done.mode("ddp")
    (found,) = (found for found in done.summary["findings"] if found["rule"] == "unsharded_data")
    assert found["status"] == "inferred"
    assert "--modes native" in found["remedy"]
    assert (mode["throughput"]["value"], mode["batch"]["global"]) == (None, None)
    assert "seeds_by_rank.py:" in mode["throughput"]["reason"]
    assert "asks for its rank" in mode["throughput"]["reason"]
