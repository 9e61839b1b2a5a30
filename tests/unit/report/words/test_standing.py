from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Figure, ModeSummary, RunSummary
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.records import Check, Conversion
from dpdoctor.report.words import standing, verdict
from tests.builders import diagnosed_runs, runs


def mode(rate: float | None = 200, half: float | None = None, **changes: Any) -> ModeSummary:
    """Return DDP on two ranks at that many samples/s, give or take `half`."""
    low, high = (None, None) if half is None or rate is None else (rate - half, rate + half)
    reason = "no window" if rate is None else None
    throughput = Figure(value=rate, low=low, high=high, n=5, unit="samples/s", reason=reason)
    return replace(runs.gpu_run().summary.modes["ddp"], throughput=throughput, **changes)


def summary(**modes: ModeSummary) -> RunSummary:
    return replace(runs.gpu_run().summary, modes=modes)


def leaders(**modes: ModeSummary) -> list[str]:
    return list(standing.leaders(summary(**modes)))


class TestLeaders:
    def test_the_fastest_parallel_mode_leads_alone_where_the_intervals_support_it(self) -> None:
        modes = {"single": mode(900, 5), "ddp": mode(200, 5), "fsdp": mode(300, 5), "dp": mode(100, 5)}
        assert leaders(**modes) == ["fsdp"]
        assert standing.focus(summary(**modes)) == "fsdp"

    def test_modes_whose_quotient_may_be_one_lead_together_in_the_order_of_the_run(self) -> None:
        modes = {"single": mode(100, 1), "fsdp": mode(2414, 60), "ddp": mode(2372, 60), "dp": mode(2000, 60)}
        assert leaders(**modes) == ["fsdp", "ddp"]
        assert standing.focus(summary(**modes)) == "fsdp"

    def test_intervals_that_overlap_may_still_be_told_apart(self) -> None:
        # 100 +- 6 and 110 +- 6 share 104 to 106, but differ by 10 with a half width of hypot(6, 6) = 8.5.
        assert leaders(ddp=mode(100, 6), fsdp=mode(110, 6)) == ["fsdp"]
        assert leaders(ddp=mode(100, 8), fsdp=mode(110, 8)) == ["ddp", "fsdp"]

    def test_without_intervals_no_order_is_supported(self) -> None:
        assert leaders(ddp=mode(100), fsdp=mode(900)) == ["ddp", "fsdp"]
        assert leaders(ddp=mode(100, 5), fsdp=mode(900)) == ["ddp", "fsdp"]

    def test_steady_steps_with_edges_are_held_against_none_without(self) -> None:
        modes = {"ddp": mode(200, 5, edges_are_steady=True), "fsdp": mode(300, 5)}
        assert leaders(**modes) == ["ddp", "fsdp"]
        assert "longer epochs" in str(standing.quotient(modes["ddp"], modes["fsdp"]).reason)
        (told, _) = verdict.headline(summary(**modes)).sentence.split(": ", 1)
        assert told.endswith("cannot be told apart")

    def test_no_leader_is_measurably_slower_than_another_mode(self) -> None:
        # fsdp is too uncertain to be told from either, but ddp is faster than dp.
        assert leaders(dp=mode(100, 2), ddp=mode(110, 2), fsdp=mode(112, 40)) == ["ddp", "fsdp"]

    @pytest.mark.parametrize("status", ["inactive", "failed", "interrupted"])
    def test_a_mode_that_is_not_ok_never_leads(self, status: str) -> None:
        assert leaders(single=mode(100), ddp=mode(200, status=status, reason="x")) == ["single"]

    def test_without_figures_there_are_none(self) -> None:
        assert leaders(single=mode(None), ddp=mode(None)) == []
        assert standing.focus(summary(ddp=mode(None))) is None


class TestWithheld:
    def test_a_mode_whose_proof_failed(self) -> None:
        proof = (
            Check(name="parameters equal", ok=True, text=""),
            Check(name="gradients reduced", ok=False, text="0 B"),
        )
        found = mode(conversion=runs.conversion(proof=proof))
        assert why_withheld(found) == "conversion was not proved: gradients reduced: 0 B"
        assert standing.withheld_briefly(found) == "the mode failed; the reason stands at the top"

    def test_a_mode_that_was_skipped(self) -> None:
        found = mode(status="skipped", reason="one device only")
        assert why_withheld(found) == "one device only"
        assert standing.withheld_briefly(found) == "the mode was skipped; the reason stands at the top"

    def test_a_mode_that_is_shown(self) -> None:
        assert why_withheld(mode()) is standing.withheld_briefly(mode()) is None


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("run", "over the windows of one launch each. Another launch may differ by more."),
        ("launches", "over 5 launches."),
        ("calibrated", "between launches, by how far those of this script differ here."),
    ],
)
def test_what_an_interval_rests_on(scope: str, words: str) -> None:
    assert standing.rests_on(Figure(value=1.3, low=1.2, high=1.4, n=5, unit="x", scope=scope)) == words


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
    assert standing.scaling_words(replace(found, batch=batch)) == words


def test_who_trains_on_the_same_batches_trains_on_no_more_samples() -> None:
    words = standing.scaling_words(replace(mode(), conversion=Conversion(same_samples=True)))
    assert words.startswith("Each device trains on the same batches")


def test_what_the_loader_processes_alone_would_give() -> None:
    assert standing.loader_control(diagnosed_runs.diagnosed_run().summary.modes["ddp"]) == (
        "one device with as many loader processes would give 1.67x (1.61–1.72), simulated"
    )
