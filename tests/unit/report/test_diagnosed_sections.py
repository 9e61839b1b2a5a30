from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from dpdoctor.analysis import AblationSummary, Analysis, Figure, Finding, Inconclusive, SlowFetches
from dpdoctor.analysis.base.summary import LoaderTrial
from dpdoctor.analysis.loader.trial import after_trial, words
from dpdoctor.report import page
from dpdoctor.report.blocks import Absent, Callout, Card, Cell, Facts, Fold, Paragraph, Table
from dpdoctor.report.documents.run import of_run
from dpdoctor.report.formats import terminal
from dpdoctor.report.text import capital, sentence
from dpdoctor.report.views.findings import STATUS_WORDS
from dpdoctor.report.views.waterfall import TERM_WORDS
from dpdoctor.report.words import diagnosis, standing, verdict
from dpdoctor.rules import BY_NAME
from dpdoctor.spec import ONE_WORKER, LoaderSetting
from tests.builders import diagnosed_runs, runs
from tests.builders.diagnosed_runs import figure, finding, unknown, with_findings, with_modes
from tests.builders.figures import figures
from tests.builders.html import elements
from tests.builders.sections import VIEWS, build, charts, flat, only


def cards(analysis: Analysis) -> list[Card]:
    return only(Card, build("findings", analysis))


def pairs(analysis: Analysis, place: int = 0) -> dict[str, str]:
    return dict(cards(analysis)[place].pairs)


def badges(card: Card) -> list[str]:
    return [badge.text for badge in card.badges]


def alone(found: Finding) -> Analysis:
    return with_findings(runs.cpu_run(), found)


def folds(name: str, analysis: Analysis) -> list[Fold]:
    return only(Fold, VIEWS[name].build(analysis))


def shown(analysis: Analysis) -> str:
    console = Console(width=120, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(terminal.summary(analysis))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


class TestFindings:
    def test_a_finding_says_cost_cause_remedy_and_what_it_would_give(self) -> None:
        found = finding()
        said = pairs(diagnosed_runs.diagnosed_run())
        assert figures(said["Cost"]) == ["42%", "39", "45"]
        assert figures(said["Speedup"]) == ["1.70x", "1.60", "1.80"]
        assert said == {
            "Cost": diagnosis.cost_words(found),
            "Status": STATUS_WORDS["confirmed"],
            "Cause": sentence(capital(found.cause)),
            "Do": "Set num_workers=4; now it is 2.",
            "In your script": "train.py:30",
            "Speedup": diagnosis.gain_words(found),
        }

    def test_evidence_and_the_line_to_write_are_there(self) -> None:
        card = cards(diagnosed_runs.diagnosed_run())[0]
        assert card.code == "DataLoader(..., num_workers=4)"
        assert card.points == finding().evidence
        assert badges(card) == ["ddp", "critical", "confirmed"]
        assert f"<code>{card.code}</code>" in page.render(of_run(diagnosed_runs.diagnosed_run()))

    def test_order_is_kept_and_facts_and_refuted_ones_come_after(self) -> None:
        analysis = diagnosed_runs.diagnosed_run()
        assert [card.title.split()[0] for card in cards(analysis)] == ["The", "The", "The", "Talks,"]
        costly, facts, refuted, inconclusive = folds("findings", analysis)
        found = [[card.anchor for card in only(Card, [*flat(fold.blocks)])] for fold in (costly, facts, refuted)]
        assert found == [["finding-1", "finding-2"], ["finding-3"], ["finding-4"]]
        assert figures(inconclusive.title) == ["1"]
        assert [len(table.rows) for table in only(Table, inconclusive.blocks)] == [1]

    def test_a_refuted_finding_recommends_nothing(self) -> None:
        card = cards(diagnosed_runs.diagnosed_run())[-1]
        assert dict(card.pairs)["Status"] == STATUS_WORDS["refuted"]
        assert {"Do", "Speedup"} & {name for name, _ in card.pairs} == set()
        assert (card.code, card.tone) == ("", "muted")

    def test_ranks_and_shares_of_an_epoch_are_said(self) -> None:
        analysis = diagnosed_runs.diagnosed_run()
        assert badges(cards(analysis)[1]) == ["ddp", "warning", "inferred", "rank 1"]
        assert "epoch" in pairs(analysis, 1)["Cost"]
        assert "epoch" not in pairs(analysis, 0)["Cost"]

    def test_unknown_costs_and_gains_give_their_reason(self) -> None:
        found = finding(cost=unknown("too few steps", "ratio"), speedup=unknown("no simulation", "x"))
        assert pairs(alone(found))["Cost"] == "unknown: too few steps"
        assert pairs(alone(found))["Speedup"] == "unknown: no simulation"

    def test_a_rule_that_no_gpu_has_tried_says_so(self) -> None:
        name = next(name for name, rule in BY_NAME.items() if not rule.verified)
        assert "not verified on hardware" in badges(cards(alone(finding(name)))[0])

    def test_the_rules_paragraph_goes_with_it(self) -> None:
        rule = BY_NAME["data_starved"]
        about = dict(cards(diagnosed_runs.diagnosed_run())[0].about)
        assert (about["What."], about["Remedy."]) == (rule.what, rule.remedy)

    def test_nothing_to_find_is_said(self) -> None:
        (callout,) = only(Callout, build("findings", runs.cpu_run()))
        assert callout.title.startswith("Nothing")
        assert (figures(callout.text), callout.tone) == ([str(len(BY_NAME)), "3"], "good")

    def test_what_could_not_be_judged_is_not_called_good(self) -> None:
        blind = Inconclusive(rule="straggler", mode="ddp", reason="too few steps")
        analysis = with_findings(runs.cpu_run(), inconclusive=(blind,))
        (callout,) = only(Callout, build("findings", analysis))
        assert (figures(callout.text), callout.tone) == ([str(len(BY_NAME)), "3", "1"], "plain")
        (table,) = only(Table, build("findings", analysis))
        assert [cell.text for cell in table.rows[0]] == ["straggler", "ddp", "Too few steps."]

    def test_a_failed_mode_is_not_told_what_to_change(self) -> None:
        assert cards(with_findings(runs.cpu_run(), finding(mode="fsdp"))) == []

    def test_without_a_mode_nothing_can_be_found(self) -> None:
        assert build("findings", runs.failed_run()) == [Absent(what="Findings", reason="no mode was measured")]


class TestArms:
    def test_gains_with_intervals_and_rounds(self) -> None:
        table = only(Table, build("ablations", diagnosed_runs.diagnosed_run()))[0]
        row = table.rows[0]
        assert [cell.text for cell in row] == ["cached_batches", "40.0 ms", "40%", "60.0 ms", "9"]
        assert row[1].note == "39.0–41.0"

    def test_the_chart_shows_losses_too(self) -> None:
        chart = charts("ablations", diagnosed_runs.diagnosed_run())["ddp: what a step gains"]
        assert chart.traces[0]["x"] == pytest.approx([3.5, -6.99], abs=0.01)
        assert chart.layout["yaxis"]["ticktext"] == ["cached_batches  3.5%", "amp  -7.0%"]
        assert figures(chart.alternative.partition("amp")[2]) == ["-7.0%", "-7.7", "-6.3"]

    def test_skipped_ablations_give_their_reason(self) -> None:
        analysis = diagnosed_runs.diagnosed_run()
        reason = analysis.summary.modes["ddp"].ablations["no_comm"].gain.reason
        assert reason
        assert only(Absent, build("ablations", analysis)) == [Absent(what="no_comm", reason=reason)]

    def test_the_ablation_against_what_was_seen(self) -> None:
        tables = [t for t in only(Table, build("ablations", diagnosed_runs.diagnosed_run())) if "against" in t.caption]
        # One device waits for 40% of a step, by clock and by ablation; DDP for 42%, of which its ablation gains
        # 3.5%.
        assert [t.rows[0][-1].text for t in tables] == ["agree", "disagree"]
        (callout,) = only(Callout, build("ablations", diagnosed_runs.diagnosed_run()))
        assert callout.tone == "warn"
        assert callout.title.startswith("ddp: ")
        assert "cached_batches" in callout.text
        # What the ablation gained and what was seen, side by side: the report prefers neither.
        assert figures(callout.text) == ["3.5%", "2.8", "4.2", "42%", "41", "43"]

    def test_without_ablations_it_says_how_to_get_them(self) -> None:
        assert "--ablations all" in only(Absent, build("ablations", runs.cpu_run()))[0].reason


class TestWaterfall:
    def test_bars_run_from_ideal_to_measured_without_what_is_unknown(self) -> None:
        (chart,) = charts("waterfall", diagnosed_runs.diagnosed_run()).values()
        (trace,) = chart.traces
        assert trace["measure"] == ["absolute", *["relative"] * 6, "total"]
        assert trace["x"] == pytest.approx([100, -40, 60, 12, 4, 0, 7, 143])
        assert sum(trace["x"][:-1]) == pytest.approx(trace["x"][-1])
        assert trace["y"][:3] == [
            "linear scaling  100 ms",
            f"{TERM_WORDS['loader_processes']}  -40.0 ms",
            f"{TERM_WORDS['data_loading']}  60.0 ms",
        ]
        assert not any(TERM_WORDS["slower_ranks"] in label for label in trace["y"])

    def test_the_table_gives_sources_and_reasons(self) -> None:
        analysis = diagnosed_runs.diagnosed_run()
        (table,) = only(Table, build("waterfall", analysis))
        rows = {row[0].text: row for row in table.rows}
        assert rows[TERM_WORDS["data_loading"]][1:] == (
            Cell(text="60.0 ms", note="58.0–62.0"),
            Cell(text="42%"),
            Cell(text="an ablation"),
        )
        fall = analysis.summary.modes["ddp"].waterfall
        assert fall is not None
        assert rows[TERM_WORDS["slower_ranks"]][1] == Cell(
            text="unknown", footnote=fall.terms["slower_ranks"].reason or "?"
        )

    def test_the_sentence_names_the_losses_that_stand_clear_of_noise(self) -> None:
        said = only(Paragraph, build("waterfall", diagnosed_runs.diagnosed_run()))[0].text
        assert said == (
            "ddp reaches 71% of linear: a step takes 143 ms, linear would be 100 ms. "
            "Lost: waiting for data 20.0 ms, transfer between ranks 12.0 ms and other 7.00 ms."
        )

    def test_the_sentence_blames_waiting_for_what_changed_by_measurement_only(self) -> None:
        # Simulated loader processes give 40 ms back, which one device would have and the mode has not: no change.
        analysis = diagnosed_runs.diagnosed_run()
        ddp = analysis.summary.modes["ddp"]
        assert ddp.waterfall is not None
        terms = {**ddp.waterfall.terms, "data_loading": figure(0.040, 0.002), "slower_compute": figure(-0.010, 0.001)}
        fall = replace(ddp.waterfall, terms=terms)
        changed = with_modes(analysis, ddp=replace(ddp, waterfall=fall))
        said = only(Paragraph, build("waterfall", changed))[0].text
        assert said.endswith(
            "Lost: transfer between ranks 12.0 ms and other 7.00 ms. Given back: slower computing 10.0 ms."
        )

    def test_a_small_loss_that_is_sure_does_not_hide_larger_ones_that_are_not(self) -> None:
        analysis = diagnosed_runs.diagnosed_run()
        ddp = analysis.summary.modes["ddp"]
        assert ddp.waterfall is not None
        unsure = {"transfer": figure(0.017, 0.023), "slower_ranks": figure(0.016, 0.022), "other": figure(0.001, 0.03)}
        terms = {**ddp.waterfall.terms, "data_loading": figure(0.040, 0.002), **unsure}
        fall = replace(ddp.waterfall, terms={**terms, "slower_compute": figure(0.005, 0.002)})
        said = only(Paragraph, build("waterfall", with_modes(analysis, ddp=replace(ddp, waterfall=fall))))[0].text
        assert said.endswith(
            "Lost: slower computing 5.00 ms; not clear of noise: transfer between ranks 17.0 ms and waiting for slower "
            "ranks 16.0 ms."
        )

    def test_where_all_is_noise_no_loss_is_named(self) -> None:
        analysis = diagnosed_runs.diagnosed_run()
        ddp = analysis.summary.modes["ddp"]
        assert ddp.waterfall is not None
        noise = {term: figure(0.005, 0.1) for term in ddp.waterfall.terms} | {"data_loading": figure(0.005, 0.15)}
        fall = replace(ddp.waterfall, terms=noise)
        noisy = with_modes(analysis, ddp=replace(ddp, waterfall=fall))
        said = only(Paragraph, build("waterfall", noisy))[0].text
        # How far from linear, the step and the linear one; no loss.
        assert figures(said) == ["71%", "143 ms", "100 ms"]

    def test_why_there_is_none(self) -> None:
        analysis = diagnosed_runs.diagnosed_run()
        said = [block.reason for block in only(Absent, build("waterfall", analysis))]
        dp, fsdp = (analysis.summary.modes[name] for name in ("dp", "fsdp"))
        assert dp.waterfall_reason
        assert said == [dp.waterfall_reason, standing.withheld_briefly(fsdp)]

    def test_one_device_alone_has_nothing_to_lose(self) -> None:
        only_one = runs.rankless_run()
        single = {"single": only_one.summary.modes["single"]}
        analysis = replace(only_one, summary=replace(only_one.summary, modes=single))
        (absent,) = build("waterfall", analysis)
        assert absent.what == "Losses"
        assert "one device" in absent.reason


class TestLoader:
    ANALYSIS = diagnosed_runs.diagnosed_run()
    READY = "Prefetched batches when training asked"

    def test_the_advice_comes_first(self) -> None:
        first = only(Callout, build("loader", self.ANALYSIS))[0]
        assert first.title == "Set num_workers=4"  # prefetch_factor stays what torch makes it
        assert figures(first.text)[:4] == ["35.0 ms", "34.3", "35.7", "3.50 ms"]
        assert diagnosed_runs.loader().advice_reason in first.text

    def test_what_is_to_be_set_is_what_changes(self) -> None:
        ddp = self.ANALYSIS.summary.modes["ddp"]
        assert ddp.loader is not None
        advice = replace(diagnosed_runs.prediction(2, 0.035), prefetch_factor=4)
        loader = replace(ddp.loader, num_workers=2, persistent_workers=False, advice=advice)
        modes = dict.fromkeys(("single", "ddp"), replace(ddp, loader=loader))
        first = only(Callout, build("loader", with_modes(self.ANALYSIS, **modes)))[0]
        assert first.title == "Set prefetch_factor=4, persistent_workers=True"

    def test_a_setting_that_was_tried_is_told_with_its_measured_step(self) -> None:
        ddp = self.ANALYSIS.summary.modes["ddp"]
        assert ddp.loader is not None
        plain = replace(ddp.loader, num_workers=0, advice=diagnosed_runs.prediction(1, 0.0705))
        tried = AblationSummary(gain=figure(0.03), share=figure(0.3, unit="ratio"), step=figure(0.070, 0.001))
        mode = replace(ddp, loader=plain, ablations={"one_worker": tried})
        modes = dict.fromkeys(("single", "ddp"), mode)
        first = only(Callout, build("loader", with_modes(self.ANALYSIS, **modes)))[0]
        assert (first.title, figures(first.text)) == ("Set num_workers=1", ["70.0 ms", "69.0", "71.0"])

    def test_what_another_launch_measured_is_told_in_place_of_the_prediction(self) -> None:
        ddp = self.ANALYSIS.summary.modes["ddp"]
        assert ddp.loader is not None
        assert ddp.loader.advice is not None
        setting = LoaderSetting(num_workers=ddp.loader.advice.num_workers, prefetch_factor=2)
        trial = LoaderTrial(setting=setting, speedup=figure(1.4, 0.1, unit="x"))
        mode = replace(ddp, loader=replace(ddp.loader, trial=trial, advice_reason=words(trial)))
        modes = dict.fromkeys(("single", "ddp"), mode)
        first = only(Callout, build("loader", with_modes(self.ANALYSIS, **modes)))[0]
        assert first.title == "Set num_workers=4"
        assert "predicted" not in first.text
        assert "1.40x (1.30–1.50)" in first.text

    def test_what_was_tried_and_not_simulated_is_told_with_its_gain_and_why_nothing_else_is_predicted(self) -> None:
        ddp = self.ANALYSIS.summary.modes["ddp"]
        assert ddp.loader is not None
        trial = LoaderTrial(setting=ONE_WORKER, speedup=figure(1.4, 0.1, unit="x"))
        advice, reason = after_trial(None, trial, ())
        loader = replace(ddp.loader, num_workers=0, predictions=(), advice=advice, advice_reason=reason, trial=trial)
        modes = dict.fromkeys(("single", "ddp"), replace(ddp, loader=loader))
        built = build("loader", with_modes(self.ANALYSIS, **modes))
        first = only(Callout, built)[0]
        assert (first.title, first.text) == ("Set num_workers=1", f"{reason}.")
        assert [absent.reason for absent in only(Absent, built) if absent.what == "Predicted step"] == [reason] * 2

    @pytest.mark.parametrize(
        ("queued", "is_shown"), [(figure(70e-6, 40e-6, "s"), True), (figure(1e-7, 2e-7, "s"), False)]
    )
    def test_a_wait_for_a_core_that_may_be_none_is_no_fact(self, queued: Figure, is_shown: bool) -> None:
        single = self.ANALYSIS.summary.modes["single"]
        modes = {"single": replace(single, loader=replace(diagnosed_runs.loader(), queued=queued))}
        facts = dict(only(Facts, build("loader", with_modes(self.ANALYSIS, **modes)))[0].pairs)
        assert ("Waiting for a core while fetching" in facts) == is_shown

    def test_facts_with_reasons_for_what_is_unknown(self) -> None:
        facts = dict(only(Facts, build("loader", self.ANALYSIS))[0].pairs)
        assert facts["Workers"] == "num_workers=2, prefetch_factor=2"
        assert figures(facts["Fetching a batch"]) == ["80.0 ms", "78.0", "82.0", "12%"]
        assert f"unknown: {diagnosed_runs.loader().epoch_start.reason}" in facts.values()

    def test_single_slow_fetches_are_told(self) -> None:
        slow = SlowFetches(count=9, total=144, seconds=0.4, usual_seconds=0.04, cpu_ratio=0.05, step=figure(0.06))
        mode = self.ANALYSIS.summary.modes["single"]
        loader = replace(diagnosed_runs.loader(), slow_fetches=slow)
        analysis = with_modes(self.ANALYSIS, single=replace(mode, loader=loader))
        facts = only(Facts, build("loader", analysis))[0].pairs
        assert ["9", "144", "400 ms"] in [figures(value) for _, value in facts]

    def test_predictions_begin_without_workers_and_mark_advice_and_own_setting(self) -> None:
        chart = charts("loader", self.ANALYSIS)["Predicted step by number of workers"]
        lines = {trace["name"]: trace for trace in chart.traces}
        assert lines["prefetch_factor=4"]["x"] == [0, 1, 2, 4]
        assert (lines["advice"]["x"], lines["the script's own"]["x"]) == ([4], [2])
        assert "num_workers=0: 120 ms" in chart.alternative

    def test_transforms_and_their_shares(self) -> None:
        chart = charts("loader", self.ANALYSIS)["What a fetch consists of"]
        assert "49%" in chart.alternative.rpartition("RandomAffine")[2].partition("ToTensor")[0]

    def test_ready_batches_beyond_a_handful_are_one_bar(self) -> None:
        chart = charts("loader", self.ANALYSIS)[self.READY]
        assert [trace["x"][0] for trace in chart.traces] == pytest.approx([70, 20, 0, 0, 0, 0, 10])
        assert figures(chart.alternative) == ["0", "70%", "1", "20%", "6", "10%"]

    def test_without_workers_no_batch_ever_lies_ready(self) -> None:
        ddp = self.ANALYSIS.summary.modes["ddp"]
        assert ddp.loader is not None
        plain = replace(ddp.loader, num_workers=0, prefetch_factor=None, workers=())
        modes = dict.fromkeys(("single", "ddp"), replace(ddp, loader=plain))
        found = charts("loader", with_modes(self.ANALYSIS, **modes))
        assert self.READY not in found

    def test_the_control_says_what_is_not_the_modes_merit(self) -> None:
        said = [block.text for block in only(Paragraph, build("loader", self.ANALYSIS))]
        assert ["4", "60.0 ms"] in [figures(text)[:2] for text in said]

    def test_without_a_loader_it_says_so(self) -> None:
        assert [block.what for block in build("loader", runs.cpu_run())] == ["Loader"]


class TestTerminal:
    def test_what_to_do_stands_below_the_modes(self) -> None:
        text = shown(diagnosed_runs.diagnosed_run())
        _, _, found = text.partition("OPPORTUNITIES")
        assert re.search(r"ddp\n1\. The loader starves training +~1.70x\n", found)

    def test_facts_and_refuted_ones_are_the_pages(self) -> None:
        text = shown(diagnosed_runs.diagnosed_run())
        assert [f"{place}. " in text for place in (1, 2, 3)] == [True, True, False]

    def test_one_issue_of_several_modes_is_told_once_and_how_each_gain_is_known(self) -> None:
        gains = {"single": ("measured", 1.5), "ddp": ("at most", 1.4)}
        found = [
            finding(mode=mode, speedup_basis=basis, speedup=Figure(value=value, unit="x"))
            for mode, (basis, value) in gains.items()
        ]
        text = shown(with_findings(runs.cpu_run(), *found))
        assert "single     ddp\n1. The loader starves training   1.50x  \N{LESS-THAN OR EQUAL TO}1.40x" in text


def test_the_verdict_gives_the_loader_processes_their_due() -> None:
    # 100 ms on one device, 60 ms with as many loader processes: 1.67x.
    summary = diagnosed_runs.diagnosed_run().summary
    control = standing.loader_control(summary.modes["ddp"])
    assert control is not None
    assert figures(control) == ["1.67x", "1.61", "1.72"]
    assert sentence(capital(control)) in verdict.headline(summary).detail


def test_hostile_findings_stay_text() -> None:
    found = elements(diagnosed_runs.hostile_findings())
    assert "img" not in {tag for tag, _ in found.found}
    assert not any(name.startswith("on") for _, attributes in found.found for name in attributes)
