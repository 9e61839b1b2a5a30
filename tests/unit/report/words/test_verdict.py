from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis, Figure, Finding, ModeSummary, RunSummary, analyse
from dpdoctor.analysis.analyse import EDGES_ARE_STEADY, OF_WINDOWS
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.records import Check, Written
from dpdoctor.report.documents import brief
from dpdoctor.report.formats import terminal
from dpdoctor.report.text import capital, sentence
from dpdoctor.report.words import standing, verdict
from dpdoctor.report.words.step_parts import step_time
from dpdoctor.report.words.verdict import LONGEST_REMEDY, advice, bottleneck
from tests.builders import records, runs
from tests.builders.diagnosed_runs import diagnosed_run, figure, finding, unknown, with_findings
from tests.builders.figures import figures
from tests.builders.terminal import shown


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
    said = verdict.mode_verdict("ddp", skipped, alike={"ddp": skipped, "fsdp": skipped})
    assert said.sentence == "ddp and fsdp were skipped: the run ended."


def test_modes_that_failed_alike_but_for_times_are_told_together() -> None:
    found = {
        name: mode(status="failed", reason=f"3 steps took {took} s, too long")
        for name, took in (("ddp", "2.00"), ("fsdp", "3.00"))
    }
    (alike,) = standing.ended_badly(summary(**found), but=())
    said = verdict.mode_verdict("ddp", found["ddp"], alike=alike)
    assert said.sentence == "ddp and fsdp failed: 3 steps took 2.00\N{EN DASH}3.00 s, too long."


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
        f"95% interval 1.27–1.35x, {standing.rests_on(found.speedup)} {standing.scaling_words(found)}"
    )


def test_the_detail_says_that_an_interval_rests_on_calibrated_noise() -> None:
    wide = {name: replace(figure, scope="calibrated") for name, figure in speedup(1.31, 1.2, 1.4).items()}
    detail = verdict.mode_verdict("ddp", mode(**wide)).detail
    assert figures(detail) == ["95%", "1.20", "1.40x"]
    assert standing.rests_on(wide["speedup"]) in detail


def test_repeated_launches_and_a_split_batch() -> None:
    found = runs.repeated_run().summary
    detail = verdict.headline(found).detail
    (ddp,) = standing.leaders(found).values()
    assert (ddp.speedup.scope, ddp.batch.rule) == ("launches", "global")
    assert re.match(r"95% .*[\d.]+–[\d.]+x.* 2 launches\. ", detail)
    assert detail.endswith(standing.scaling_words(ddp))


def summary(**modes: ModeSummary) -> RunSummary:
    return replace(runs.gpu_run().summary, modes=modes)


def test_a_mode_whose_proof_failed_shows_no_figure() -> None:
    proof = (Check(name="parameters equal", ok=True, text=""), Check(name="gradients reduced", ok=False, text="0 B"))
    found = mode(conversion=runs.conversion(proof=proof))
    why = why_withheld(found)
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


def test_a_file_that_one_mode_made_and_another_changed_is_new() -> None:
    made, changed = (Written(path="/home/me/log.txt", change=change) for change in ("new", "changed"))
    (told,) = verdict.limits(summary(single=mode(files_changed=(made,)), ddp=mode(files_changed=(changed,))))
    assert told.endswith("/home/me/log.txt (new).")


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


RULE = "Modes are measurably different where the 95% interval of the ratio of their throughputs leaves out 1. "


def figure_of(value: float, half: float | None, unit: str, scope: str = "run") -> Figure:
    low, high = (None, None) if half is None else (value - half, value + half)
    return Figure(value=value, low=low, high=high, n=5, unit=unit, scope=scope)


def rated(
    rate: float, factor: float | None, half: float | None = 0.05, *, forward_ms: int = 40, scope: str = "run"
) -> ModeSummary:
    """Return DDP on two ranks at `rate` samples/s; figures give or take `half` of their value."""

    def ranged(value: float, unit: str) -> Figure:
        return figure_of(value, None if half is None else half * value, unit, scope)

    phases_ms = (2, 1, forward_ms, 50, 5, 2)
    found = runs.gpu_run().summary.modes["ddp"]
    return replace(
        found,
        throughput=ranged(rate, "samples/s"),
        speedup=Figure(value=None, unit="x", reason="no baseline") if factor is None else ranged(factor, "x"),
        scaling_efficiency=Figure(value=None, unit="ratio", reason="no baseline")
        if factor is None
        else ranged(factor / 2, "ratio"),
        phases=dict(zip(found.phases, (figure_of(ms / 1000, None, "s") for ms in phases_ms), strict=True)),
    )


def headline_of(**modes: ModeSummary) -> tuple[str, str, str]:
    said = verdict.headline(replace(runs.gpu_run().summary, modes=modes))
    return said.tone, said.sentence, said.detail


def time_of(*modes: ModeSummary) -> str:
    """Return where the steps of the modes, which spend them alike, go."""
    (words,) = step_time(modes)
    return sentence(capital(words))


@pytest.mark.parametrize(
    ("factors", "tone", "against_one"),
    [
        ((1.5, 1.6), "good", "1.50x and 1.60x of one device (75% and 80% of linear)"),
        ((0.5, 0.6), "bad", "both are slower than one device: 0.500x and 0.600x (25% and 30% of linear)"),
        ((0.98, 1.03), "warn", "neither differs measurably from one device: 0.980x and 1.03x"),
        (
            (1.02, 1.1),
            "warn",
            "1.02x and 1.10x of one device (51% and 55% of linear), a measurable difference only for fsdp",
        ),
    ],
)
def test_two_modes_in_one_sentence(factors: tuple[float, float], tone: str, against_one: str) -> None:
    said = headline_of(ddp=rated(2372, factors[0]), fsdp=rated(2414, factors[1]))
    assert said[:2] == (
        tone,
        f"ddp and fsdp on 2 ranks are not measurably different: 2,372 and 2,414 samples/s; {against_one}.",
    )


def test_the_detail_gives_the_rule_the_quotient_and_what_it_rests_on() -> None:
    ddp, fsdp = rated(2372, 1.5), rated(2414, 1.6)
    *_, detail = headline_of(ddp=ddp, fsdp=fsdp)
    assert detail == (
        f"{time_of(ddp, fsdp)} {RULE}fsdp over ddp 1.02x (0.948–1.09), {standing.rests_on(ddp.speedup)} "
        f"{standing.scaling_words(ddp)}"
    )


def test_repeated_launches_are_said_to_be() -> None:
    ddp, fsdp = rated(2372, 1.5, scope="launches"), rated(2414, 1.6, scope="launches")
    *_, detail = headline_of(ddp=ddp, fsdp=fsdp)
    assert standing.rests_on(ddp.speedup) in detail
    assert figures(detail.partition("fsdp over ddp ")[2]) == ["1.02x", "0.948", "1.09", "5"]
    assert "5 launches" in detail


def test_modes_without_intervals_are_not_called_alike() -> None:
    ddp, fsdp = rated(100, 1.5, None), rated(300, 4.5, None)
    tone, sentence, detail = headline_of(ddp=ddp, fsdp=fsdp)
    assert tone == "plain"
    assert sentence.startswith("ddp and fsdp on 2 ranks cannot be told apart by so few windows: 100 and 300 samples/s;")
    assert "a measurable difference for none of them" in sentence
    assert detail == f"{time_of(ddp, fsdp)} {RULE}{standing.scaling_words(ddp)}"


def test_without_a_baseline_the_modes_are_told_from_each_other_only() -> None:
    _, sentence, _ = headline_of(ddp=rated(2372, None), fsdp=rated(2414, None))
    assert sentence.startswith("ddp and fsdp on 2 ranks")
    assert figures(sentence) == ["2", "2,372", "2,414 samples/s"]
    assert sentence.endswith(" samples/s.")


def test_three_modes_on_unlike_devices_that_spend_their_steps_unlike() -> None:
    one_process = replace(rated(2400, 1.0), world_size=1)
    _, sentence, detail = headline_of(dp=one_process, ddp=rated(2372, 1.0, forward_ms=60), fsdp=rated(2414, 1.0))
    assert sentence == (
        "dp on 2 devices, ddp on 2 ranks and fsdp on 2 ranks are not measurably different: "
        "2,400, 2,372 and 2,414 samples/s; none differs measurably from one device: 1.00x, 1.00x and 1.00x."
    )
    assert detail.startswith(RULE)


def short(text: str = "set num_workers=4", **fields: object) -> Finding:
    """Return a finding of DDP whose remedy is known in few words; more fields by keyword."""
    return finding(**{"short_remedy": text, **fields})


def advised(*findings: Finding, modes: tuple[str, ...] = ("ddp",)) -> str | None:
    return advice(with_findings(runs.cpu_run(), *findings).summary, modes)


def test_it_says_what_to_change_and_what_that_gives() -> None:
    assert advised(short()) == "set num_workers=4: predicted 1.70x of today's throughput"


def test_it_says_whether_that_is_measured_or_the_most_there_is() -> None:
    assert advised(short(speedup_basis="measured")) == "set num_workers=4: measured 1.70x of today's throughput"
    assert advised(short(speedup_basis="at most")) == "set num_workers=4: at most 1.80x of today's throughput"
    unbounded = replace(figure(1.7, 0.1, "x"), high=None)
    assert advised(short(speedup=unbounded, speedup_basis="at most")) == "set num_workers=4: no upper bound known"


def test_what_a_headline_begins_with_is_not_said_twice() -> None:
    found = short("train on one device", rule="parallelism_not_worth_it", title="2 devices train slower than one")
    run = with_findings(runs.cpu_run(), found).summary
    assert bottleneck(run, "ddp") is None
    assert str(advice(run, ("ddp",))).startswith("train on one device")
    assert bottleneck(with_findings(runs.cpu_run(), short()).summary, "ddp") == short().title


def test_the_costliest_finding_speaks() -> None:
    words = advised(short("this one", rule="a"), short("costs less", rule="b"))
    assert words == advised(short("this one"))
    assert words.startswith("this one: ")


@pytest.mark.parametrize(
    "costliest",
    [
        short("no gain is predicted", rule="a", speedup=None),
        short("the gain is unknown", rule="a", speedup=unknown("no simulation", "x")),
        finding("a"),
    ],
)
def test_the_remedy_of_another_finding_is_not_taken_for_its(costliest: Finding) -> None:
    assert advised(costliest, short("of another", rule="b")) is None


def test_another_mode_may_know_the_gain() -> None:
    both = (short(speedup=None), short(mode="single"))
    words = advised(*both, modes=("ddp", "single"))
    assert words == f"for single {advised(short())}"


@pytest.mark.parametrize(
    "fields",
    [
        {"speedup": figure(1.02, 0.05, "x")},
        {"speedup": figure(0.9, 0.0, "x")},
        {"severity": "info"},
        {"status": "refuted", "remedy": None, "short_remedy": None},
        {"mode": "single"},
        {"mode": "fsdp"},
    ],
)
def test_nothing_is_said_without_a_clear_gain_in_a_leading_mode(fields: dict[str, object]) -> None:
    assert advised(short(**fields), modes=("ddp", "fsdp")) is None


class TestSeveralLeaders:
    MODES = ("single", "ddp")

    def test_one_remedy_of_all_is_told_once(self) -> None:
        both = (short(), short(mode="single", speedup=figure(1.5, 0.1, "x")))
        words = advised(*both, modes=self.MODES)
        assert words is not None
        assert words.startswith("set num_workers=4: ")
        assert figures(words) == ["4", "1.50x", "1.70x"]

    @pytest.mark.parametrize("other", [(), (short("set num_workers=1", mode="single"),)])
    def test_a_remedy_of_some_names_them(self, other: tuple[Finding, ...]) -> None:
        words = advised(short(), *other, modes=self.MODES)
        assert words == f"for ddp {advised(short())}"


def test_a_long_name_from_the_script_is_shortened() -> None:
    words = advised(short(f"take {'A' * 10_000} out of the loader"))
    assert words is not None
    assert len(words) < LONGEST_REMEDY + 60
    assert "out of the loader: " in words
    assert figures(words) == ["1.70x"]


class TestHeadline:
    def test_the_page_ends_with_it(self) -> None:
        sentence = verdict.headline(diagnosed_run().summary).sentence
        assert sentence.endswith(f"; {finding().title}; {advised(short())}.")

    def test_without_a_costly_finding_it_says_where_the_time_goes(self) -> None:
        summary = runs.cpu_run().summary
        (where,) = step_time([summary.modes["ddp"]])
        assert figures(where) == ["42%"]
        assert verdict.headline(summary).sentence.endswith(f"; {where}.")

    def test_modes_that_cannot_be_told_apart_end_with_it(self) -> None:
        summary = with_findings(tied(), short(), short(mode="fsdp")).summary
        change = advice(summary, ("ddp", "fsdp"))
        assert change is not None
        assert figures(change) == ["4", "1.70x", "1.70x"]
        sentence = verdict.headline(summary).sentence
        assert sentence.startswith("ddp and fsdp on 2 ranks")
        assert sentence.endswith(f"; {change}.")

    def test_a_mode_that_does_not_lead_has_none(self) -> None:
        mode = diagnosed_run().summary.modes["ddp"]
        assert "predicted" not in verdict.mode_verdict("ddp", mode).sentence


def tied() -> Analysis:
    """Return single, DDP and an FSDP that measured the same as DDP."""
    found = runs.cpu_run()
    modes = {**found.summary.modes, "fsdp": found.summary.modes["ddp"]}
    return replace(found, summary=replace(found.summary, modes=modes))


def test_without_findings_the_terminal_prints_the_bare_verdict() -> None:
    assert terminal.summary(runs.cpu_run())
    assert "predicted" not in shown(runs.cpu_run())
