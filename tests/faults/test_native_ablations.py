"""Ablations in jobs that dpdoctor did not start: each comes off again and takes away what it says, or shows no gain."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.faults.conftest import TWO_FORKED, in_turn
from tests.faults.test_native import skip_without_wall

QUICK = ("--modes", "native", "--no-baseline", *TWO_FORKED, "--time-budget", "15", "--trace-steps", "0")
WINDOWS = ("--warmup", "20", "--steps", "12", "--rounds", "3")
ABLATIONS = ("--ablations", "no_comm,no_sync_accumulation,coalesced")


def collectives(run, count="collectives") -> dict[str, set[float]]:
    """Return by ablation how many collectives a step of its complete windows issued, or called, on any rank."""
    found = defaultdict(set)
    for rank in run.launch("native").ranks:
        ablations = {
            window.window: window.ablation for window in rank.windows if window.kind == "measure" and window.complete
        }
        for number, ablation in ablations.items():
            steps = [getattr(step, count) for step in rank.steps if step.window == number and step.counted]
            found[ablation].add(sum(steps) / len(steps))
    return dict(found)


@pytest.mark.parametrize(
    ("way", "full", "called", "left"),
    [
        ("attribute", 1, 0, 0),  # nanoGPT's
        ("no_sync", 1, 0, 0),  # Accelerate's
        in_turn("every_micro_batch", 2, 2, 0),
        ("hand", 7, 7, 1),  # the flag by which the script goes on
        in_turn("fsdp1", 2, 2, 0),
        ("clipped", 9, 8, 1),  # the norm of all gradients, which torch's operators exchange
    ],
)
def test_a_window_without_communication_issues_what_is_to_be_left_and_others_what_they_did(
    profile, way, full, called, left
):
    run = profile("native_ablations.py", *QUICK, *WINDOWS, *ABLATIONS, args=[way, "200"])
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    found = collectives(run)
    assert (found["full"], found["no_comm"]) == ({full}, {left})
    assert collectives(run, "called")["full"] == {called}
    ablations = run.mode("native")["ablations"]
    assert ablations["no_comm"]["gain"]["value"] is not None
    if way == "every_micro_batch":
        assert found["no_sync_accumulation"] == {1}
        assert ablations["no_sync_accumulation"]["gain"]["value"] is not None
    else:
        assert "no_sync_accumulation" not in found
    if way == "hand":  # all gradients in one call, and the flag
        assert found["coalesced"] == {2}
        assert ablations["coalesced"]["gain"]["value"] is not None
    else:
        assert "coalesced" not in found
    assert not run.mode("native")["conversion"]["warnings"]


@pytest.mark.parametrize("way", ["hand", in_turn("own_forward")])
def test_steps_that_pass_unwatched_are_the_same_steps(profile, way):
    run = profile("native_ablations.py", *QUICK, *WINDOWS, "--ablations", "unwatched", args=[way, "200"])
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    mode = run.mode("native")
    assert mode["ablations"]["unwatched"]["share"]["low"] is not None
    assert not mode["conversion"]["warnings"]
    for rank in run.launch("native").ranks:
        of = {window.window: window.ablation for window in rank.windows if window.kind == "measure" and window.complete}
        assert sorted(of.values()) == ["full"] * 3 + ["unwatched"] * 3
        assert [step.step for step in rank.steps] == list(range(1, len(rank.steps) + 1))
        seen = {("full", True): set(), ("unwatched", True): set(), ("unwatched", False): set()}
        for step in rank.steps:
            if step.counted and step.window in of and not step.epoch_edge:
                told = step.samples_drawn or step.samples_entered, step.called, step.collectives
                seen[of[step.window], step.watched].add(told)
        assert len(seen["full", True]) == 1
        assert seen["unwatched", True] == seen["full", True], "its steps are recorded as any others"
        assert seen["unwatched", False] == {(0, None, None)}


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        in_turn("own_forward", "could not keep the ranks from exchanging"),
        ("momentum", "a momentum of its own"),
        ("compiled", "compiled as a whole"),
    ],
)
def test_an_ablation_whose_proof_fails_shows_no_gain_and_the_run_goes_on(profile, way, reason):
    run = profile("native_ablations.py", *QUICK, *WINDOWS, *ABLATIONS, args=[way, "200"])
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    mode = run.mode("native")
    gain = mode["ablations"]["no_comm"]["gain"]
    assert gain["value"] is None
    assert reason in gain["reason"]
    assert len(collectives(run)["full"]) == 1
    assert mode["step"]["n"] == 3
    # That compiling takes its time is a fact.
    costly = [found for found in run.summary["findings"] if found["severity"] != "info"]
    assert not [found for found in costly if found["status"] == "confirmed"]


def test_windows_hold_the_whole_rhythm_of_what_ranks_exchange(profile):
    # The step that is looked at closely, the 23rd, exchanges nothing.
    run = profile(
        "native_ablations.py", *QUICK, *ABLATIONS, "--warmup", "22", "--rounds", "3", args=["local_sgd", "200"]
    )
    skip_without_wall(run)
    assert run.exit_code == 0, run.output
    by_hand, _ = run.mode("native")["conversion"]["strategies"]
    assert by_hand["facts"].startswith("6 calls of all_reduce in a step")
    assert collectives(run) == {"full": {1.5}, "no_comm": {0}}
    measured = [window for window in run.launch("native").ranks[0].windows if window.kind == "measure"]
    assert {window.num_steps % 4 for window in measured} == {0}
