from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Figure, ModeSummary, RunSummary, analyse
from dpdoctor.analysis.analyse import EDGES_ARE_STEADY, OF_WINDOWS
from dpdoctor.records import Check
from dpdoctor.report.documents import brief
from dpdoctor.report.words import clauses, standing, verdict
from tests.builders import records, runs
from tests.builders.figures import figures


def mode(phases_ms: tuple[int, ...] = runs.COMPUTING_MS, **changes: Any) -> ModeSummary:
    """Return DDP on two ranks at 200 samples/s with the given changes."""
    found = runs.gpu_run().summary.modes["ddp"]
    phases = dict(zip(found.phases, (Figure(value=ms / 1000, unit="s") for ms in phases_ms), strict=True))
    throughput = Figure(value=200.0, low=190.0, high=210.0, n=5, unit="samples/s")
    return replace(found, **{"throughput": throughput, "phases": phases, **changes})


def speedup(value: float, low: float | None = None, high: float | None = None) -> dict[str, Figure]:
    return {
        "speedup": Figure(value=value, low=low, high=high, n=5, unit="x"),
        "scaling_efficiency": Figure(value=value / 2, n=5, unit="ratio"),
    }


@pytest.mark.parametrize(
    ("found", "tone", "sentence"),
    [
        (
            mode(runs.STARVED_MS, **speedup(1.31, 1.27, 1.35)),
            "good",
            "ddp on 2 ranks gives 1.31x of one device (66% of linear); 40% of each step waits for data.",
        ),
        (
            mode(**speedup(0.8, 0.78, 0.82)),
            "bad",
            "ddp on 2 ranks is slower than one device: 0.800x (40% of linear); "
            "on the host the backward pass is the longest part of a step (50%).",
        ),
        (
            mode(**speedup(1.02, 0.97, 1.07)),
            "warn",
            "ddp on 2 ranks is not measurably faster or slower than one device: 1.02x (0.970–1.07), "
            "51% of linear; on the host the backward pass is the longest part of a step (50%).",
        ),
        (
            mode(**speedup(1.5)),
            "plain",
            "ddp on 2 ranks gives 1.50x of one device (75% of linear), from too few windows for an interval; "
            "on the host the backward pass is the longest part of a step (50%).",
        ),
        (
            mode(speedup=Figure(value=None, unit="x", reason="no baseline"), phases={}),
            "plain",
            "ddp on 2 ranks trains 200 samples/s.",
        ),
        (
            mode(status="interrupted", reason="Ctrl-C", phases={}, **speedup(1.5, 1.4, 1.6)),
            "warn",
            "ddp on 2 ranks gives 1.50x of one device (75% of linear); it was interrupted: Ctrl-C.",
        ),
        (
            mode(reason="the job went on, and failed then", phases={}, **speedup(1.5, 1.4, 1.6)),
            "warn",
            "ddp on 2 ranks gives 1.50x of one device (75% of linear); the job went on, and failed then.",
        ),
        (
            mode(status="inactive", reason="there is no accelerator.", **speedup(1.0, 0.9, 1.1)),
            "muted",
            "ddp is not available (200 samples/s): there is no accelerator.",
        ),
        (
            mode(status="inactive", reason="no GPU", throughput=Figure(value=None, unit="samples/s", reason="?")),
            "muted",
            "ddp is not available: no GPU.",
        ),
        (mode(status="failed", reason="out of memory."), "bad", "ddp failed: out of memory."),
        (mode(status="skipped", reason="one device only"), "muted", "ddp was skipped: one device only."),
        (
            mode(throughput=Figure(value=None, unit="samples/s", reason="no window was complete")),
            "warn",
            "ddp was not measured: no window was complete.",
        ),
    ],
)
def test_a_mode_in_one_sentence(found: ModeSummary, tone: str, sentence: str) -> None:
    said = verdict.mode_verdict("ddp", found)
    assert (said.tone, said.sentence) == (tone, sentence)


def test_modes_that_were_skipped_alike_are_named_together() -> None:
    skipped = mode(status="skipped", reason="the run ended")
    said = verdict.mode_verdict("ddp", skipped, alike=("ddp", "fsdp"))
    assert said.sentence == "ddp and fsdp were skipped: the run ended."


def test_one_process_is_not_held_against_linear_scaling() -> None:
    said = verdict.mode_verdict("dp", mode(world_size=1, num_devices=1, phases={}, **speedup(1.31, 1.27, 1.35)))
    assert said.sentence == "dp on 1 device gives 1.31x of one device."


def test_one_process_that_drives_several_devices_is_held_against_them() -> None:
    said = verdict.mode_verdict("dp", mode(world_size=1, phases={}, **speedup(1.31, 1.27, 1.35)))
    assert said.sentence.startswith("dp on 2 devices ")
    assert figures(said.sentence) == ["2", "1.31x", "66%"]


def test_the_detail_says_what_the_speedup_rests_on() -> None:
    found = mode(**speedup(1.31, 1.27, 1.35))
    assert verdict.mode_verdict("ddp", found).detail == (
        f"95% interval 1.27–1.35x, {clauses.rests_on(found.speedup)} {clauses.scaling_words(found)}"
    )


def test_the_detail_says_that_an_interval_rests_on_calibrated_noise() -> None:
    wide = {name: replace(figure, scope="calibrated") for name, figure in speedup(1.31, 1.2, 1.4).items()}
    detail = verdict.mode_verdict("ddp", mode(**wide)).detail
    assert figures(detail) == ["95%", "1.20", "1.40x"]
    assert clauses.rests_on(wide["speedup"]) in detail


def test_repeated_launches_and_a_split_batch() -> None:
    found = runs.repeated_run().summary
    detail = verdict.headline(found).detail
    (ddp,) = standing.leaders(found).values()
    assert (ddp.speedup.scope, ddp.batch.rule) == ("launches", "global")
    assert re.match(r"95% .*[\d.]+–[\d.]+x.* 2 launches\. ", detail)
    assert detail.endswith(clauses.scaling_words(ddp))


def summary(**modes: ModeSummary) -> RunSummary:
    return replace(runs.gpu_run().summary, modes=modes)


def test_a_mode_whose_proof_failed_shows_no_figure() -> None:
    proof = (Check(name="parameters equal", ok=True, text=""), Check(name="gradients reduced", ok=False, text="0 B"))
    found = mode(conversion=runs.conversion(proof=proof))
    why = standing.why_withheld(found)
    assert why is not None
    assert verdict.mode_verdict("ddp", found).sentence == f"ddp failed: {why}."


def test_nothing_was_measured() -> None:
    said = verdict.headline(runs.failed_run().summary)
    assert (said.sentence, said.detail) == ("No mode could be measured.", "")


def test_steps_of_unknown_samples_are_told() -> None:
    unknown = Figure(value=None, unit="samples/s", reason="x")
    steps = [Figure(value=value, n=5, unit="s") for value in (0.02, 0.025)]
    ddp, fsdp = (
        mode(throughput=unknown, step=step, status=status) for step, status in zip(steps, ("ok", "failed"), strict=True)
    )
    said = verdict.headline(summary(ddp=ddp, fsdp=fsdp)).sentence
    assert said == "Samples per second are unknown; ddp takes 20.0 ms per step (50.0 steps/s)."
    all_ok = summary(single=ddp, ddp=ddp, fsdp=replace(fsdp, status="ok"))
    said = verdict.headline(all_ok).sentence
    assert "steps/s), ddp takes" in said
    assert "steps/s) and fsdp takes" in said


def test_why_modes_have_no_figures_is_said_once() -> None:
    explained = mode(throughput=Figure(value=None, unit="samples/s", reason="--explain measures nothing"))
    found = summary(single=explained, ddp=explained, fsdp=mode(status="failed", reason="x"), dp=mode())
    assert list(verdict.limits(found)) == ["No throughput of single and ddp: --explain measures nothing."]


def test_a_run_without_modes() -> None:
    assert verdict.headline(analyse(records.run({})).summary).sentence == "This run has no modes: nothing was measured."


def test_a_mode_that_was_launched_twice_is_told_with_what_failed_first() -> None:
    again = "the script raised RuntimeError: unexpected pos 7 vs 5 (train.py:3); what it writes is kept in memory"
    (told,) = verdict.limits(summary(single=mode(), ddp=mode(again=again)))
    assert told.startswith("ddp was launched twice")
    assert "unexpected pos 7 vs 5" in told


def test_a_mode_that_was_launched_again_without_an_ablation_is_told_with_what_failed() -> None:
    (told,) = verdict.limits(summary(single=mode(), ddp=mode(raised="the script raised TypeError (train.py:3)")))
    assert told.startswith("ddp was launched again, without the ablations")
    assert "TypeError (train.py:3)" in told


def test_windows_that_were_taken_whole_are_told_of_once() -> None:
    whole = mode()
    whole = replace(whole, conversion=replace(whole.conversion, warnings=(EDGES_ARE_STEADY,)))
    assert list(verdict.limits(summary(single=mode(), ddp=whole, fsdp=whole))) == [f"ddp and fsdp: {EDGES_ARE_STEADY}."]


@pytest.mark.parametrize(("ratio", "is_told"), [(0.9, True), (0.96, False)])
def test_a_rate_that_epoch_starts_and_evaluations_make_much_less_is_told(ratio: float, is_told: bool) -> None:
    known = mode()
    assert known.throughput.value is not None
    of_all = replace(known.throughput, value=ratio * known.throughput.value, low=None, high=None)
    found = list(
        verdict.limits(
            summary(single=mode(throughput_all_steps=known.throughput), ddp=mode(throughput_all_steps=of_all))
        )
    )
    assert [text.startswith("Rates are of steady steps") and "(ddp)" in text for text in found] == [True] * is_told
    assert not any("single" in text for text in found)


def test_a_rate_of_windows_is_not_told_as_that_of_epochs() -> None:
    rate = mode().throughput
    of_epoch = replace(rate, value=150.0)
    of_windows = replace(rate, value=123.0, reason=f"{OF_WINDOWS}; the length of an epoch is unknown")
    found = summary(single=mode(throughput_all_steps=of_windows), ddp=mode(throughput_all_steps=of_epoch))
    assert list(verdict.limits(found)) == [
        "Rates are of steady steps; with epoch starts and evaluations: 150 samples/s (ddp).",
        "Rates are of steady steps; epoch starts and evaluations are left out: single.",
    ]


def test_modes_that_failed_alike_are_told_of_once() -> None:
    alike = {"status": "failed", "reason": "no module named torch", "stderr_tail": ("line 1",)}
    run = summary(single=mode(**alike), ddp=mode(**alike), fsdp=mode(**{**alike, "reason": "the disk is full"}))
    told = list(brief.of_modes(run))
    assert [(found.sentence, found.lines) for found in told] == [
        ("single and ddp failed: no module named torch.", ("line 1",)),
        ("fsdp failed: the disk is full.", ("line 1",)),
    ]
