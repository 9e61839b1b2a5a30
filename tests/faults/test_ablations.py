"""Ablations, end to end: what is planted is what they give, and the run goes on as if they had not been."""

from __future__ import annotations

import statistics

import pytest

from dpdoctor import rundir
from dpdoctor.records import Launch
from dpdoctor.spec import OTHER_SETTING
from dpdoctor.worker.data.replay import CHANGED, NO_LOADER
from tests.faults.conftest import LITTLE, Profiled, in_turn

WINDOWS = ("--warmup", "3", "--steps", "4", "--rounds", "3", "--trace-steps", "0")
PLANTED_S = 0.03
STEP_S = 0.06


def gain_s(launch: Launch, ablation: str) -> tuple[float, float]:
    """Return the median over the rounds of what an ablation takes less than the full step, and that of the full
    step.
    """
    steps = {}
    for window in (window for rank in launch.ranks for window in rank.windows if window.kind == "measure"):
        assert window.complete
        key = (window.round, window.ablation)
        steps[key] = max(steps.get(key, 0.0), (window.end_ns - window.begin_ns) * 1e-9 / window.num_steps)
    rounds = sorted({number for number, _ in steps})
    gains = [steps[number, "full"] - steps[number, ablation] for number in rounds]
    return statistics.median(gains), statistics.median(steps[number, "full"] for number in rounds)


def skipped(done: Profiled, mode: str, rank: int = 0) -> dict[str, str | None]:
    return {ablation.name: ablation.skipped for ablation in done.record(mode, rank).ablations}


@pytest.mark.measured
@pytest.mark.parametrize(
    ("num_workers", "batch_s", "planted_s"),
    # Two workers deliver two batches in the time of one.
    [(0, 0.0, 0.0), (0, PLANTED_S, PLANTED_S), (2, 2 * (PLANTED_S + STEP_S), PLANTED_S)],
)
def test_a_planted_wait_for_the_loader_comes_back_as_the_gain(profile, num_workers, batch_s, planted_s):
    done = profile(
        "slow_loader.py",
        *("--modes", "single", "--ablations", "cached_batches", "--rounds", "3", "--trace-steps", "0"),
        args=["--batch-s", str(batch_s), "--num-workers", str(num_workers)],
    )
    assert done.exit_code == 0, done.output
    assert skipped(done, "single") == {"cached_batches": None}
    gain, step = gain_s(done.launch("single"), "cached_batches")
    assert gain == pytest.approx(planted_s, abs=max(0.03 * step, 0.15 * planted_s))


@pytest.mark.measured
def test_one_worker_is_tried_where_the_script_has_none(profile):
    done = profile(
        "slow_loader.py",
        *("--modes", "single", "--ablations", "one_worker", "--rounds", "3", "--trace-steps", "0"),
        args=["--batch-s", str(PLANTED_S)],
    )
    assert done.exit_code == 0, done.output
    assert skipped(done, "single") == {"one_worker": None}
    # Both sleep, so that neither slows the other, and one worker is enough.
    gain, step = gain_s(done.launch("single"), "one_worker")
    assert gain == pytest.approx(PLANTED_S, abs=0.15 * step)
    predicted = {found["num_workers"]: found["step"]["value"] for found in done.mode("single")["loader"]["predictions"]}
    assert predicted[1] == pytest.approx(STEP_S, rel=0.15)


def test_each_rank_tries_one_worker(profile):
    options = ("--modes", "ddp", "--no-baseline", "--ablations", "one_worker", "--rounds", "1", "--trace-steps", "0")
    done = profile("slow_loader.py", *options, args=["--batch-s", str(PLANTED_S)])
    assert done.exit_code == 0, done.output
    assert skipped(done, "ddp") == {"one_worker": None}


@pytest.mark.parametrize("kind", ["indices", "keys"])
def test_one_worker_is_asked_for_what_the_scripts_sampler_gives(profile, kind):
    done = profile("wild_split.py", "--modes", "single", *LITTLE, "--ablations", "one_worker", args=[kind])
    assert done.exit_code == 0, done.output
    assert skipped(done, "single") == {"one_worker": None}
    assert {hand_off.failure for hand_off in done.record("single").hand_offs} == {""}


def test_the_setting_that_promises_most_is_tried_in_turns_with_the_scripts_own(profile):
    options = ("--modes", "ddp", "--no-baseline", "--ablations", "one_worker", "--rounds", "2", "--trace-steps", "0")
    done = profile("slow_loader.py", *options, args=["--batch-s", "0.3", "--num-workers", "1"])
    assert done.exit_code == 0, done.output
    tried = rundir.read(done.root).trials["ddp"]
    assert tried.record.loader_setting.num_workers > 1
    for rank in tried.ranks:
        of_ablation = [window.window for window in rank.windows if window.ablation == OTHER_SETTING and window.complete]
        steps = {step.step for step in rank.steps if step.window in of_ablation}
        workers = {batch.worker for batch in rank.batches if batch.step in steps}
        assert len(workers) == tried.record.loader_setting.num_workers
    found = done.mode("ddp")["loader"]
    assert found["trial"]["speedup"]["value"] > 0
    assert "was tried in turns" in found["advice_reason"]


def losses(done: Profiled, mode: str, rank: int, ablation: str) -> list[float]:
    """Return what the script printed as its losses in all steps but those of the ablation's windows."""
    record = done.rank(mode, rank)
    without = {window.window for window in record.windows if window.ablation == ablation}
    printed = [float(line.split()[1]) for line in done.printed(mode, rank).splitlines() if line.startswith("loss")]
    # The script is ended in its last step, before it prints that line.
    return [loss for loss, step in zip(printed, record.steps, strict=False) if step.window not in without]


@pytest.mark.parametrize(
    ("ablation", "args"),
    [
        in_turn("no_comm", ["--optimizer", "sgd"]),
        ("no_comm", ["--optimizer", "adam"]),
        ("no_sync_accumulation", ["--optimizer", "sgd", "--accumulate", "3"]),
    ],
)
def test_the_losses_of_full_windows_are_those_of_a_run_without_ablations(profile, tmp_path, ablation, args):
    modes = ("--modes", "ddp,fsdp", "--no-baseline", *WINDOWS)
    plain = profile("fixed_batch.py", *modes, "--ablations", "none", args=args)
    plain.root.rename(tmp_path / "plain")
    plain = Profiled(exit_code=plain.exit_code, output=plain.output, root=tmp_path / "plain")
    done = profile("fixed_batch.py", *modes, "--ablations", ablation, args=args)
    assert (plain.exit_code, done.exit_code) == (0, 0), done.output
    for mode in ("ddp", "fsdp"):
        assert skipped(done, mode) == {ablation: None}
        assert skipped(plain, mode) == {}
        ran = [window for window in done.rank(mode).windows if window.ablation == ablation]
        assert [window.complete for window in ran] == [True] * 3
        for rank in range(2):
            expected, found = losses(plain, mode, rank, ablation), losses(done, mode, rank, ablation)
            both = min(len(found), len(expected))
            assert both > 15
            assert found[:both] == pytest.approx(expected[:both], rel=1e-5)
            assert found[0] != pytest.approx(found[-1], rel=0.01), "it trains"


@pytest.mark.measured
def test_reducing_once_per_step_is_faster_than_once_per_micro_batch(profile):
    done = profile(
        "fixed_batch.py",
        *("--modes", "ddp", "--no-baseline", "--ablations", "no_sync_accumulation", *WINDOWS, "--steps", "20"),
        args=["--accumulate", "8"],
    )
    assert done.exit_code == 0, done.output
    assert gain_s(done.launch("ddp"), "no_sync_accumulation")[0] > 0


def test_what_cannot_be_ablated_is_skipped_with_its_reason(profile):
    done = profile("not_for_ablations.py", "--modes", "ddp", "--nproc", "1", *WINDOWS, args=["--how", "no_loader"])
    assert done.exit_code == 0, done.output
    alone = skipped(done, "single")
    assert alone["cached_batches"] == NO_LOADER
    assert "not_for_ablations.py:38" in (alone["amp"] or "")
    assert "no_comm" not in alone, "it means nothing there"
    one_rank = skipped(done, "ddp")
    assert one_rank["no_comm"] == "one rank has nobody to communicate with"
    assert one_rank["no_data_no_comm"] == NO_LOADER
    assert "does not accumulate" in (one_rank["no_sync_accumulation"] or "")


def test_steps_of_different_length_cannot_be_told_which_micro_batch_is_the_last(profile):
    done = profile(
        "fixed_batch.py", "--modes", "ddp", "--no-baseline", *WINDOWS, args=["--accumulate", "3", "--ragged"]
    )
    assert done.exit_code == 0, done.output
    for rank in range(2):
        reasons = skipped(done, "ddp", rank)
        assert "changes from step to step" in (reasons.pop("no_sync_accumulation") or "")
        assert {name for name, reason in reasons.items() if reason is None} >= {
            "cached_batches",
            "no_comm",
            "no_data_no_comm",
        }


def test_a_script_that_changes_its_batches_in_place_ends_the_ablation(profile):
    done = profile(
        "not_for_ablations.py",
        "--modes",
        "single",
        *WINDOWS,
        "--ablations",
        "cached_batches",
        args=["--how", "in_place"],
    )
    assert done.exit_code == 0, done.output
    assert skipped(done, "single") == {"cached_batches": CHANGED}
    (window,) = [window for window in done.rank("single").windows if window.ablation == "cached_batches"]
    assert not window.complete


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_scheduler_that_counts_on_the_length_of_the_loader_is_not_asked_for_more(profile, num_workers):
    done = profile(
        "not_for_ablations.py",
        *("--modes", "single", *WINDOWS, "--rounds", "50", "--ablations", "cached_batches"),
        args=["--how", "scheduled", "--num-workers", str(num_workers)],
    )
    assert done.exit_code == 0, done.output
    assert any(window.ablation == "cached_batches" for window in done.rank("single").windows)
    _, taken, _, total = done.printed("single").splitlines()[-1].split()
    assert done.record("single").ending == "returned"
    if num_workers:
        assert int(taken) <= int(total), "what is thrown away is not trained on"
    else:
        assert taken == total
    assert all(step.samples_drawn == 4 for step in done.rank("single").steps)


def test_explain_runs_no_ablations(profile):
    done = profile("not_for_ablations.py", "--modes", "single", "--explain")
    assert done.exit_code == 0, done.output
    assert skipped(done, "single") == {}
    assert [window.kind for window in done.rank("single").windows] == ["warmup", "proof"]


@pytest.mark.parametrize(
    ("ablations", "others"), [("cached_batches", ()), ("cached_batches,one_worker", ("one_worker",))]
)
def test_a_script_that_raises_with_an_ablation_loses_the_ablation(profile, ablations, others):
    done = profile(
        "heeds_its_batches.py",
        "--modes",
        "single",
        "--ablations",
        ablations,
        *WINDOWS,
        "--no-control",
        "--time-budget",
        "20",
    )
    assert done.exit_code == 0, done.output
    launch = done.launch("single").record
    assert (launch.status, "a sample came twice" in launch.raised) == ("ok", True)
    found = skipped(done, "single")
    assert set(found) == {"cached_batches", *others}
    assert all("a sample came twice" in (reason or "") for reason in found.values()), found
    assert "single was launched again" in " ".join(done.output.split())
