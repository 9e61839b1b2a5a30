from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Figure, ModeSummary
from dpdoctor.records import Conversion
from dpdoctor.report.words import clauses
from tests.builders import diagnosed_runs, runs


def mode(**phases_ms: float | None) -> ModeSummary:
    phases = {
        name: Figure(value=None, unit="s", reason="?") if ms is None else Figure(value=ms / 1000, unit="s")
        for name, ms in phases_ms.items()
    }
    return replace(runs.gpu_run().summary.modes["ddp"], phases=phases)


class TestPhaseRatios:
    def test_shares_of_the_step(self) -> None:
        assert clauses.phase_ratios(mode(forward=30, backward=10)) == pytest.approx({"forward": 0.75, "backward": 0.25})

    def test_a_script_without_an_optimizer_still_has_shares(self) -> None:
        found = clauses.phase_ratios(mode(forward=30, optimizer=None, other=10))
        assert found == pytest.approx({"forward": 0.75, "other": 0.25})

    @pytest.mark.parametrize("found", [mode(forward=30, backward=None), mode(forward=0), mode()])
    def test_there_are_none_when_a_phase_is_missing_or_none_took_time(self, found: ModeSummary) -> None:
        assert clauses.phase_ratios(found) is None


class TestStepTime:
    def test_waiting_comes_first_where_all_wait(self) -> None:
        modes = [mode(data_wait=40, forward=60), mode(data_wait=20, forward=80)]
        assert list(clauses.step_time(modes)) == ["40% and 20% of each step wait for data"]

    def test_else_the_longest_phase_where_it_is_the_same(self) -> None:
        modes = [mode(data_wait=40, forward=60), mode(data_wait=5, forward=95)]
        said = ["on the host the forward pass is the longest part of a step (60% and 95%)"]
        assert list(clauses.step_time(modes)) == said

    def test_nothing_where_modes_differ_or_a_phase_is_unknown(self) -> None:
        assert list(clauses.step_time([mode(forward=60, backward=40), mode(forward=40, backward=60)])) == []
        assert list(clauses.step_time([mode(forward=60), mode(forward=None)])) == []


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("run", "over the windows of one launch each. Another launch may differ by more."),
        ("launches", "over 5 launches."),
        ("calibrated", "between launches, by how far those of this script differ here."),
    ],
)
def test_what_an_interval_rests_on(scope: str, words: str) -> None:
    assert clauses.rests_on(Figure(value=1.3, low=1.2, high=1.4, n=5, unit="x", scope=scope)) == words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("per-device", "Weak scaling: each device takes the script's whole batch, so a step trains on more samples."),
        ("global", "Strong scaling: the devices share the script's batch."),
    ],
)
def test_what_was_kept_equal(rule: str, words: str) -> None:
    found = mode()
    batch = replace(found.batch, rule=rule)
    assert clauses.scaling_words(replace(found, batch=batch)) == words


def test_who_trains_on_the_same_batches_trains_on_no_more_samples() -> None:
    words = clauses.scaling_words(replace(mode(), conversion=Conversion(same_samples=True)))
    assert words.startswith("Each device trains on the same batches")


def test_what_the_loader_processes_alone_would_give() -> None:
    assert clauses.loader_control(diagnosed_runs.diagnosed_run().summary.modes["ddp"]) == (
        "one device with as many loader processes would give 1.67x (1.61–1.72), simulated"
    )
