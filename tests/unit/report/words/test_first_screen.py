"""The first screen: assembled once, laid out on the page and in the terminal."""

from __future__ import annotations

import shlex

import pytest
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import AblationSummary, Analysis, Figure, Inconclusive
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.machine import OTHERS_USED
from dpdoctor.records import Conversion
from dpdoctor.report.blocks import Answer, BarTable, Block, Callout, Card, Columns, Fold, Limits, Paragraph, Ranking
from dpdoctor.report.words.first_screen import LONGER, UNTOLD, FirstScreen, _of_other_modes, first_screen
from dpdoctor.rules.cpu_oversubscription import FEWER_RANKS
from dpdoctor.rules.diagnose import MAY_BE_NOTHING, OURS
from tests.builders import runs, traced_runs
from tests.builders.cases import OWN
from tests.builders.diagnosed_runs import diagnosed_run, figure, finding, unknown, with_findings
from tests.builders.figures import figures
from tests.builders.sections import VIEWS, build, only
from tests.builders.terminal import shown


def screen(analysis: Analysis) -> FirstScreen:
    return first_screen(analysis.summary)


def with_mode(name: str, **changes: object) -> Analysis:
    found = runs.cpu_run()
    modes = {**found.summary.modes, name: replace(found.summary.modes[name], **changes)}
    return replace(found, summary=replace(found.summary, modes=modes))


def columns(analysis: Analysis) -> list[Block]:
    return [inner for block in only(Columns, build("overview", analysis)) for inner in block.blocks]


class TestLayout:
    def test_answer_troubles_modes_and_opportunities_limits(self) -> None:
        blocks: list[Block] = list(VIEWS["overview"].build(diagnosed_run()))
        kinds = [type(block) for block in blocks if not isinstance(block, Paragraph)]
        assert kinds == [Answer, Callout, Columns, Fold]
        assert [type(block) for block in columns(diagnosed_run())] == [BarTable, Ranking, Limits]

    def test_without_anything_costly_nothing_is_ranked(self) -> None:
        assert [type(block) for block in columns(runs.cpu_run())] == [BarTable, Limits]

    @pytest.mark.parametrize("run", [runs.failed_run, runs.rankless_run, runs.empty_run])
    def test_without_a_figure_there_are_no_bars(self, run: object) -> None:
        assert columns(run()) == []

    def test_a_run_made_of_traces_is_ranked_too(self) -> None:
        late = traced_runs.late_run()
        (mode,) = late.summary.modes
        (ranked,) = only(Ranking, build("traces", with_findings(late, finding("straggler", mode))))
        assert [step.title for step in ranked.advice] == ["Straggler"]


class TestAnswer:
    def test_what_bounds_the_run_is_said_for_each_mode(self) -> None:
        single = finding(mode="single", cost=figure(0.30, 0.02, "ratio"))
        found = screen(with_findings(runs.cpu_run(), finding(), single))
        assert (found.bound_by, found.tone) == ("Input-bound", "bad")
        assert figures(found.answer) == ["42%", "39%"], "as drawn beside it"

    def test_what_takes_little_bounds_nothing(self) -> None:
        little = finding("no_overlap", cost=figure(0.08, 0.01, "ratio"), severity="warning")
        found = screen(with_findings(runs.cpu_run(), little))
        assert (found.bound_by, found.tone) == ("", "warn")
        assert figures(found.answer) == ["8.0%"]

    def test_what_comes_now_and_then_and_takes_little_bounds_nothing(self) -> None:
        little = finding("data_starved", cost=figure(0.06, 0.01, "ratio"), severity="warning", share_of="epoch")
        assert screen(with_findings(runs.cpu_run(), little)).bound_by == ""

    def test_an_interval_whose_sides_differ_is_no_plus_minus(self) -> None:
        even = Figure(value=100.0, low=90.0, high=110.0, n=10, unit="samples/s")
        for figure_, told in ((even, "\N{PLUS-MINUS SIGN}10%"), (replace(even, high=150.0), "90.0")):
            found = screen(with_mode("ddp", throughput=figure_))
            assert next(row.interval for row in found.modes if row.name == "ddp").startswith(told)

    def test_what_comes_now_and_then_is_no_share_of_each_step_of_another_mode(self) -> None:
        single = finding(mode="single", cost=figure(0.12, 0.01, "ratio"), share_of="epoch")
        assert figures(screen(with_findings(runs.cpu_run(), finding(), single)).answer) == ["42%"]

    def test_where_nothing_is_known_of_the_leading_mode_that_is_said(self) -> None:
        found = with_findings(with_mode("ddp", phases={}), finding(mode="single"))
        assert screen(found).answer == f"{UNTOLD}."

    def test_without_a_finding_the_longest_part_is_told(self) -> None:
        found = screen(runs.cpu_run())
        assert found.bound_by == ""
        longest = max(found.modes[2].parts, key=lambda part: part.share)
        assert units.share(longest.share) in found.answer

    def test_what_could_not_be_told_from_nothing_is_not_called_nothing(self) -> None:
        def answer(*doubtful: tuple[str, str]) -> str:
            why = MAY_BE_NOTHING.format("24% (-46 to 94)")
            said = tuple(Inconclusive(rule=rule, mode=mode, reason=why) for rule, mode in doubtful)
            found = runs.cpu_run()
            return screen(replace(found, summary=replace(found.summary, inconclusive=said))).answer

        assert answer(("gc_pauses", "ddp"), ("data_starved", "ddp")).startswith(
            "Whether data wait, 42% of a step under ddp, costs anything could not be told: measure longer"
        )
        assert "(Garbage collection holds up training)" in answer(("gc_pauses", "ddp"))
        assert answer(("data_starved", "single")).startswith("Nothing was found")

    @pytest.mark.parametrize("is_traced", [False, True])
    def test_what_was_not_looked_at_or_not_told_by_traces_is_not_called_nothing(self, is_traced: bool) -> None:
        traced = traced_runs.traced_profile().summary.modes["ddp"].breakdown
        breakdown = replace(traced, exposed_comm=unknown("no kernel is known to communicate"))

        def answer(mode: str, reason: str, *warnings: str) -> str:
            of_trace = breakdown if is_traced else None
            found = with_mode(mode, breakdown=of_trace, conversion=Conversion(num_threads=1, warnings=warnings))
            said = (Inconclusive(rule="exposed_communication", mode=mode, reason=reason),)
            return screen(replace(found, summary=replace(found.summary, inconclusive=said))).answer

        told = "What communication costs under ddp was not measured"
        remark = "--time-budget of 10.0 s is too little for a trace. A step takes 1.00 s; give --time-budget 29"
        assert answer("ddp", "no trace shows it", remark).startswith(f"{told}: give --time-budget 29; ")
        assert answer("ddp", "no trace shows it").startswith(f"{told}; ")
        assert answer("single", "no trace shows it").startswith("Nothing was found")
        assert answer("ddp", OURS.format("5.0%")).startswith("No finding stands clear")

    def test_threads_beyond_the_cores_whose_cost_nobody_measured_are_not_called_nothing(self) -> None:
        def answer(*rules: str) -> str:
            why = "an ablation would tell, and was not measured: raise --time-budget"
            said = tuple(Inconclusive(rule=rule, mode="ddp", reason=why) for rule in rules)
            found = runs.cpu_run()
            return screen(replace(found, summary=replace(found.summary, inconclusive=said))).answer

        told = f"more threads than cores cost under ddp was not measured: {LONGER}; "
        assert answer("cpu_oversubscription").startswith(f"What {told}")
        both = answer("exposed_communication", "cpu_oversubscription")
        assert both.startswith(f"What communication and {told}")

    def test_each_cause_that_nobody_measured_is_told_of_its_own_modes_with_its_own_way_out(self) -> None:
        def answer(*checks: tuple[str, str, str]) -> str:
            found = runs.cpu_run()
            modes = {**found.summary.modes, "fsdp": found.summary.modes["ddp"]}
            said = tuple(Inconclusive(rule=rule, mode=mode, reason=reason) for rule, mode, reason in checks)
            return screen(replace(found, summary=replace(found.summary, modes=modes, inconclusive=said))).answer

        communication, threads = "exposed_communication", "cpu_oversubscription"
        apart = answer((communication, "ddp", "no trace"), (threads, "fsdp", "raise --time-budget"))
        told = (
            "What communication costs under ddp was not measured; what more threads than cores cost under fsdp was not"
        )
        assert apart.startswith(f"{told} measured: {LONGER}; ")
        both = [(rule, mode, "raise --time-budget") for mode in ("ddp", "fsdp") for rule in (threads, communication)]
        told = f"What communication and more threads than cores cost under ddp and fsdp was not measured: {LONGER}; "
        assert answer(*both).startswith(told)
        withheld = answer((communication, "ddp", "no trace"), (communication, "fsdp", f"{OURS} --time-budget"))
        assert withheld.startswith("What communication costs under ddp was not measured; ")
        ranks = answer((threads, "ddp", f"4 ranks on 2 cores: {FEWER_RANKS}"))
        assert ranks.startswith(f"What more ranks than cores cost under ddp was not measured: {FEWER_RANKS}; ")

    def test_of_the_part_that_bounds_the_largest_share_comes_first_though_another_rule_tells_what_to_do(self) -> None:
        found = runs.cpu_run()
        modes = {**found.summary.modes, "fsdp": found.summary.modes["ddp"]}
        alike = replace(found, summary=replace(found.summary, modes=modes))
        fact = finding("small_collectives", cost=figure(0.36, 0.01, "ratio"), severity="info")
        costly = finding("small_collectives", mode="fsdp", cost=figure(0.25, 0.01, "ratio"))
        told = screen(with_findings(alike, costly, fact)).answer
        assert told == "Many small collectives take 36% of each step under ddp, 25% under fsdp."

    def test_a_mode_that_is_slower_than_one_device_is_said_to_be(self) -> None:
        slower = Figure(value=0.48, low=0.45, high=0.51, n=10, unit="x")
        assert screen(with_mode("ddp", speedup=slower)).answer.startswith("ddp (0.480x) is slower than one device.")
        assert "slower" not in screen(runs.cpu_run()).answer

    @pytest.mark.parametrize("name", ["ddp", "single"])
    def test_a_mode_whose_throughput_is_unknown_is_said_to_be_first(self, name: str) -> None:
        rate = stats.unknown("samples/s", "samples could not be counted")
        told = f"Samples per second of {name} are unknown. "
        assert screen(with_mode(name, throughput=rate)).answer.startswith(f"{told}Nothing was found")
        assert screen(with_findings(with_mode(name, throughput=rate), finding(mode="single"))).answer.startswith(told)
        assert "unknown" not in screen(runs.cpu_run()).answer

    def test_what_to_do_first_is_what_gains_for_certain(self) -> None:
        perhaps = finding("evaluation_share", speedup=figure(1.2, 0.3, "x"))
        found = screen(with_findings(runs.cpu_run(), perhaps, finding(short_remedy="set num_workers=4")))
        assert "num_workers=4" in found.do_first
        assert screen(with_findings(runs.cpu_run(), perhaps)).do_first == ""

    def test_what_others_took_of_the_cores_is_told_with_what_to_do_first(self) -> None:
        taken = f"{OTHERS_USED} 1.0 of 2 cores while"
        change = finding(short_remedy="set num_workers=4")
        single = finding(mode="single", short_remedy="set it", evidence=("41%", f"{taken} this was measured"))
        withheld = stats.unknown("x", f"{taken} single was measured")
        assert screen(with_findings(runs.cpu_run(), single)).do_first.endswith(f"; but {taken} this was measured.")
        told = screen(with_findings(with_mode("ddp", speedup=withheld), change)).do_first
        assert told.endswith(f" under ddp; but {taken} single was measured.")
        for speedup in (figure(1.5, 0.1, "x"), stats.unknown("x", "the baseline failed")):
            assert "but" not in screen(with_findings(with_mode("ddp", speedup=speedup), change)).do_first

    def test_a_gain_that_is_told_as_none_is_not_what_to_do_first(self) -> None:
        for value, is_told in ((1.004, False), (1.006, True)):
            gain = finding(short_remedy="set num_workers=4", speedup=figure(value, 0.001, "x"))
            assert bool(screen(with_findings(runs.cpu_run(), gain)).do_first) is is_told

    def test_what_to_do_first_is_for_the_modes_that_the_answer_is_about(self) -> None:
        single = finding(mode="single", speedup=figure(2.0, 0.1, "x"), short_remedy="set num_workers=2")
        bound = finding("exposed_communication", speedup=figure(1.2, 0.1, "x"), short_remedy="train on twice the batch")
        assert screen(with_findings(runs.cpu_run(), single, bound)).do_first.startswith("Train on twice the batch")
        unknown_gain = replace(bound, speedup=None)
        assert "num_workers=2" in screen(with_findings(runs.cpu_run(), single, unknown_gain)).do_first

    def test_what_a_step_gains_without_the_loader_is_told_beside_a_wait_that_is_less(self) -> None:
        waited = screen(with_findings(runs.cpu_run(), finding(cost=figure(0.01, 0.001, "ratio")))).answer
        assert "shorter" not in waited
        found = screen(with_findings(runs.cpu_run(), finding(cost=figure(0.9, 0.01, "ratio"))))
        assert found.answer == f"{waited.removesuffix('.')}; without the loader's work a step under ddp is 90% shorter."
        assert found.bound_by == "Input-bound"

    def test_what_is_known_to_cost_much_of_an_epoch_comes_first(self) -> None:
        twice = finding("exposed_communication", speedup=figure(2.5, 0.1, "x"), short_remedy="train on twice the batch")
        same = finding(
            "unsharded_data",
            title="2 ranks train on the same samples",
            cost=figure(0.5, 0.0, "ratio"),
            share_of="epoch",
            speedup=figure(2.0, 0.0, "x"),
            short_remedy="give each rank samples of its own",
        )
        found = screen(with_findings(runs.cpu_run(), twice, same))
        assert (found.answer, found.tone) == ("2 ranks train on the same samples (ddp).", "bad")
        assert found.do_first.startswith("Give each rank samples of its own")
        supposed = replace(same, status="inferred", severity="warning")
        assert "the same samples" not in screen(with_findings(runs.cpu_run(), twice, supposed)).answer

    @pytest.mark.parametrize(("of_one", "first"), [(2.1, "Train on one device"), (1.8, "Give each rank samples")])
    def test_what_is_done_first_stands_first_and_leaves_no_mode_slower_than_one_device(
        self, of_one: float, first: str
    ) -> None:
        larger = finding("exposed_communication", speedup=figure(2.5, 0.1, "x"), short_remedy="train on twice")
        one = finding(
            "parallelism_not_worth_it",
            speedup=figure(of_one, 0.3, "x"),
            speedup_basis="measured",
            short_remedy="train on one device",
        )
        same = finding(
            "unsharded_data",
            cost=figure(0.5, 0.0, "ratio"),
            share_of="epoch",
            speedup=figure(2.0, 0.0, "x"),
            speedup_basis="at most",
            short_remedy="give each rank samples of its own",
        )
        found = screen(with_findings(runs.cpu_run(), larger, one, same))
        assert found.do_first.startswith(first)
        assert found.do_first.count(units.times(found.opportunities[0].gain.value)) == 1

    def test_what_makes_training_wrong_comes_before_what_makes_it_slow(self) -> None:
        slow = finding(speedup=figure(1.5, 0.1, "x"), short_remedy="set num_workers=4")
        wrong = finding(
            "unsynchronised",
            title="2 ranks exchange nothing",
            cost=unknown("ratio"),
            speedup=None,
            short_remedy="average gradients over the ranks",
        )
        found = screen(with_findings(runs.cpu_run(), slow, wrong))
        assert found.answer == "2 ranks exchange nothing (ddp)."
        assert found.do_first == "Average gradients over the ranks (train.py:30): ranks train different models."


class TestModes:
    def test_parts_add_up_to_the_step(self) -> None:
        for run in (runs.cpu_run(), diagnosed_run(), runs.gpu_run(), runs.repeated_run()):
            for row in screen(run).modes:
                assert not row.parts or sum(part.share for part in row.parts) == pytest.approx(1)

    def test_bars_are_on_one_scale(self) -> None:
        (table,) = only(BarTable, columns(runs.cpu_run()))
        lengths = {row.cells[0].text: sum(piece.share for piece in row.pieces) for row in table.rows}
        modes = runs.cpu_run().summary.modes
        assert lengths["ddp"] == pytest.approx(1, abs=0.02)
        assert lengths["single"] == pytest.approx(modes["single"].step.value / modes["ddp"].step.value, abs=0.02)

    def test_a_mode_without_figures_says_why_in_its_row(self) -> None:
        rows = {row.name: row for row in screen(runs.cpu_run()).modes}
        assert (rows["dp"].status, rows["dp"].note) == ("inactive", "there is no accelerator")
        assert rows["fsdp"].status == "failed"
        assert rows["fsdp"].throughput is None

    def test_the_baseline_is_compared_with_nothing(self) -> None:
        rows = {row.name: row for row in screen(runs.cpu_run()).modes}
        assert (rows["single"].speedup, rows["single"].note) == (None, "baseline")
        assert rows["ddp"].speedup == runs.cpu_run().summary.modes["ddp"].speedup


class TestOpportunities:
    def test_an_opportunity_has_what_a_reader_acts_on(self) -> None:
        found = screen(diagnosed_run()).opportunities[0]
        assert (found.line, found.code) == ("train.py:30", "DataLoader(..., num_workers=4)")
        assert found.gain == finding().speedup
        assert found.basis == "estimated"

    def test_it_leads_to_the_whole_finding(self) -> None:
        analysis = diagnosed_run()
        whole = {card.anchor: card for card in only(Card, build("findings", analysis))}
        assert all(whole[found.anchor].points for found in screen(analysis).opportunities)

    def test_every_finding_has_an_address_of_its_own(self) -> None:
        addresses = [card.anchor for card in only(Card, build("findings", diagnosed_run()))]
        assert sorted(addresses) == [f"finding-{place}" for place in range(1, 5)]

    def test_an_unknown_gain_is_none(self) -> None:
        found = finding(cost=unknown("too few steps", "ratio"), speedup=unknown("no simulation", "x"))
        (shown,) = screen(with_findings(runs.cpu_run(), found)).opportunities
        assert (shown.gain, shown.basis, shown.modes) == (None, "confirmed", ("ddp: confirmed",))

    def test_of_an_upper_bound_the_upper_end_is_shown(self) -> None:
        bound = finding(speedup=figure(1.4, 0.1, "x"), speedup_basis="at most")
        (shown,) = screen(with_findings(runs.cpu_run(), bound)).opportunities
        assert (shown.gain.value, shown.gain.low) == (1.5, None)
        assert shown.basis == "upper bound"

    def test_a_measured_gain_without_an_upper_end_is_shown_with_its_lower_one(self) -> None:
        unbounded = replace(figure(1.4, 0.1, "x"), high=None)
        measured = finding(speedup=unbounded, speedup_basis="measured", short_remedy="set num_workers=4")
        found = screen(with_findings(runs.cpu_run(), measured))
        assert found.do_first.endswith(": measured 1.40x (at least 1.30x) under ddp.")

    def test_of_what_nothing_bounds_no_number_is_shown_as_a_bound(self) -> None:
        unbounded = replace(figure(1.4, 0.1, "x"), high=None)
        fields = {"speedup": unbounded, "speedup_basis": "at most", "short_remedy": "set num_workers=4"}
        found = screen(with_findings(runs.cpu_run(), finding(**fields), finding(mode="single", **fields)))
        (shown,) = found.opportunities
        assert (shown.gain, shown.basis) == (None, "no upper bound known")
        assert dict(shown.gains) == {"ddp": "no bound", "single": "no bound"}
        assert all("no upper bound known" in chip for chip in shown.modes)
        assert found.do_first.endswith(": no upper bound known under ddp, no bound on one device.")

    def test_a_mode_whose_gain_is_unknown_is_told_apart_from_one_without_the_bottleneck(self) -> None:
        (shown,) = screen(with_findings(runs.cpu_run(), finding(speedup=None))).opportunities
        assert dict(shown.gains) == {"ddp": "unknown"}

    def test_of_many_the_first_are_shown_and_the_others_counted(self) -> None:
        many = with_findings(runs.cpu_run(), *(finding(f"rule_{place}", title=f"number {place}") for place in range(6)))
        found = screen(many)
        assert [each.title for each in found.opportunities] == [f"Number {place}" for place in range(3)]
        assert found.num_more == 3

    def test_one_issue_of_several_modes_is_one_opportunity_with_the_largest_gain(self) -> None:
        single = finding(mode="single", speedup=figure(3.0, 0.1, "x"))
        (found,) = screen(with_findings(runs.cpu_run(), finding(), single)).opportunities
        assert found.gain == single.speedup
        assert [text.partition(":")[0] for text in found.modes] == ["ddp", "single"]

    @pytest.mark.parametrize("of_ddp", [1.2, 1.4])
    def test_a_remedy_that_is_the_same_in_few_words_is_told_once_as_it_suits_all(self, of_ddp: float) -> None:
        twice = "train on twice the batch"
        fsdp = finding("exposed_communication", mode="fsdp", speedup=figure(1.3, 0.1, "x"), short_remedy=twice)
        fsdp = replace(fsdp, remedy=f"{twice}: half as much communication")
        ddp = replace(
            fsdp,
            mode="ddp",
            speedup=figure(of_ddp, 0.1, "x"),
            remedy=f"{twice}, or accumulate: half as much communication",
        )
        (told,) = screen(with_findings(with_mode("fsdp", status="ok"), ddp, fsdp)).opportunities
        assert told.remedy == "Train on twice the batch: half as much communication."
        assert not any(twice in chip for chip in told.modes)

    def test_what_helps_one_mode_is_not_said_of_another(self) -> None:
        single = finding(mode="single", speedup=figure(3.0, 0.1, "x"), remedy="set it", short_remedy="set it")
        ddp = finding(remedy="accumulate under no_sync()", short_remedy="accumulate")
        (found,) = screen(with_findings(runs.cpu_run(), ddp, single)).opportunities
        assert found.remedy == "On one device: set it."
        assert ["accumulate" in text for text in found.modes] == [True, False]
        both = with_findings(with_mode("fsdp", status="ok"), ddp, single, replace(single, mode="fsdp"))
        assert screen(both).opportunities[0].remedy == "On one device and under fsdp: set it."
        (alike,) = screen(with_findings(runs.cpu_run(), finding(), finding(mode="single"))).opportunities
        assert "one device" not in alike.remedy
        assert not any("(" in text.partition(":")[2].replace("(1.", "") for text in alike.modes)

    def test_a_part_of_the_step_has_one_figure_on_the_screen(self) -> None:
        found = screen(with_findings(runs.cpu_run(), finding(cost=figure(0.77, 0.02, "ratio"))))
        (row,) = (row for row in found.modes if row.name == "ddp")
        drawn = next(units.share(part.share) for part in row.parts if part.key == "data")
        assert drawn != units.share(0.77)
        assert drawn in found.answer
        assert drawn in found.opportunities[0].modes[0]

    @pytest.mark.parametrize(
        ("cost", "fields", "said"),
        [
            (0.1, {"speedup": figure(1.08, 0.01, "x"), "speedup_basis": "at most"}, "1.09x, a step up to 8.3% shorter"),
            (0.10, {"status": "inferred", "speedup": figure(1.08, 0.01, "x")}, ""),
            (0.10, {}, ", without it a step is 10% shorter"),
            (0.42, {"speedup": figure(1.7, 0.1, "x"), "speedup_basis": "at most"}, ""),
            (0.10, {"share_of": "epoch"}, ""),
        ],
    )
    def test_what_a_gain_comes_to_is_told_where_the_share_says_another(
        self, cost: float, fields: dict[str, object], said: str
    ) -> None:
        found = finding(cost=figure(cost, 0.01, "ratio"), **fields)
        (chip,) = screen(with_findings(runs.cpu_run(), found)).opportunities[0].modes
        assert chip.endswith(said)
        assert ("shorter" in chip) == bool(said)

    def test_a_part_that_is_itself_what_a_step_gains_has_no_second_gain(self) -> None:
        gains = AblationSummary(gain=figure(0.033, 0.001), share=figure(0.33, 0.01, "ratio"), step=figure(0.067, 0.001))
        exposed = finding("exposed_communication", cost=figure(0.23, 0.01, "ratio"))
        gained = with_mode("ddp", ablations={"no_comm": gains})
        (chip,) = screen(with_findings(gained, exposed)).opportunities[0].modes
        assert "33% of a step" in chip
        assert "shorter" not in chip

    def test_the_size_of_a_bound_is_the_one_that_is_shown(self) -> None:
        bound = finding(mode="single", speedup=figure(1.3, 0.6, "x"), speedup_basis="at most")
        (found,) = screen(with_findings(runs.cpu_run(), finding(), bound)).opportunities
        assert (found.gain, found.basis) == (bound.gain, "upper bound")

    def test_a_failed_mode_is_left_out(self) -> None:
        (found,) = screen(with_findings(runs.cpu_run(), finding(), finding(mode="fsdp"))).opportunities
        assert [text.partition(":")[0] for text in found.modes] == ["ddp"]


class TestLimits:
    def test_an_unknown_figure_has_its_reason_once(self) -> None:
        lacking = stats.unknown("s", "no loader with a length fed the steps")
        told = screen(with_mode("ddp", epoch_s=lacking)).hints
        assert sum("no loader with a length fed the steps" in text for text in told) == 1

    @pytest.mark.parametrize(
        ("reason", "is_told"), [("the baseline failed", True), (f"{OTHERS_USED} 1.0 of 2 cores", False)]
    )
    def test_why_a_speedup_is_unknown_is_told_beside_a_caveat_that_does_not_say_so(
        self, reason: str, is_told: bool
    ) -> None:
        found = with_mode("ddp", speedup=stats.unknown("x", reason)).summary
        told = first_screen(replace(found, caveat="the machine did not keep its pace")).limits
        assert any(reason in text for text in told) == is_told

    def test_intervals_of_one_launch_are_told_and_those_of_several_not(self) -> None:
        assert any("--repeat" in text for text in screen(runs.cpu_run()).hints)
        assert not any("--repeat" in text for text in screen(runs.repeated_run()).hints)

    @pytest.mark.parametrize(("world_size", "is_told"), [(1, True), (2, False)])
    def test_a_launcher_that_started_no_second_rank_is_told(self, world_size: int, is_told: bool) -> None:
        found = runs.cpu_run().summary
        single, ddp = found.modes["single"], found.modes["ddp"]
        native = replace(ddp, native=OWN, world_size=world_size)
        modes = {"single": replace(single, native=OWN), "native": native}
        told = first_screen(replace(found, modes=modes)).limits
        assert any(shlex.join(OWN.launcher) in text for text in told) == is_told

    @pytest.mark.parametrize(
        ("launcher", "world_size", "is_told"),
        [
            ("accelerate launch --num_processes 2", 1, True),
            ("torchrun --nproc-per-node=2", 1, True),
            ("accelerate launch --num_processes 2", 2, False),
            ("accelerate launch --num_processes 1", 1, False),
            ("torchrun --nproc-per-node gpu", 1, False),
            ("python", 1, False),
        ],
    )
    def test_also_without_a_baseline(self, launcher: str, world_size: int, is_told: bool) -> None:
        found = runs.cpu_run().summary
        own = replace(OWN, launcher=tuple(launcher.split()))
        native = replace(found.modes["ddp"], native=own, world_size=world_size)
        told = first_screen(replace(found, modes={"native": native})).limits
        assert any(text == f"native is one rank: `{launcher}` started no second one." for text in told) == is_told

    def test_batches_that_differ_by_a_last_one_are_not(self) -> None:
        batch = runs.cpu_run().summary.modes["single"].batch
        for size, is_told in ((1.005, False), (1.05, True)):
            found = runs.cpu_run()
            of = {
                "single": replace(batch, global_=64.0),
                "ddp": replace(batch, global_=64.0 * size),
            }
            modes = {name: replace(found.summary.modes[name], batch=of[name]) for name in of}
            run = replace(found, summary=replace(found.summary, modes=modes))
            assert any("time to accuracy" in text for text in screen(run).limits) is is_told

    def test_different_batches_are_told(self) -> None:
        (told,) = [text for text in screen(runs.cpu_run()).limits if "time to accuracy" in text]
        assert figures(told) == ["32", "64"]


def test_what_would_gain_without_a_fault_is_ranked_but_bounds_nothing() -> None:
    faster = finding(
        "amp_unused",
        "single",
        short_remedy="run forward in bfloat16",
        speedup_basis="measured",
        speedup=figure(1.5, 0.1, "x"),
    )
    found = screen(with_findings(runs.cpu_run(), faster))
    assert found.answer == "49% of a step under ddp is forward and backward, with communication."
    assert found.do_first.startswith("Run forward in bfloat16")
    assert [one.basis for one in found.opportunities] == ["measured"]


def test_what_to_do_first_tells_what_it_gives_in_each_mode_that_it_helps() -> None:
    gains = {"single": 1.5, "ddp": 1.2}
    found = [
        finding(
            "amp_unused",
            mode,
            short_remedy="run forward in bfloat16",
            speedup_basis="measured",
            speedup=figure(gain, 0.1, "x"),
        )
        for mode, gain in gains.items()
    ]
    told = screen(with_findings(runs.cpu_run(), *found)).do_first
    assert told.endswith("1.20x (1.10–1.30) under ddp, 1.50x on one device.")


def test_what_takes_most_of_a_step_bounds_it_and_of_what_takes_as_much_what_gives_more() -> None:
    small = finding("straggler", "ddp", cost=figure(0.2, 0.01, "ratio"), speedup=figure(1.5, 0.1, "x"))
    large = finding("small_collectives", "ddp", cost=figure(0.5, 0.01, "ratio"), speedup=figure(1.1, 0.05, "x"))
    assert screen(with_findings(runs.cpu_run(), small, large)).bound_by == "Communication-bound"
    about_as_large = replace(small, cost=figure(0.45, 0.01, "ratio"))
    assert screen(with_findings(runs.cpu_run(), about_as_large, large)).bound_by == "Straggler"


def test_modes_that_need_another_change_are_told_beside_the_first() -> None:
    changes = {"single": "set num_workers=2", "ddp": "make Decode cheaper; num_workers=2 is slower: measured 0.9x"}
    found = [
        finding(
            "data_starved",
            mode,
            short_remedy=change,
            remedy=change,
            speedup_basis="measured",
            speedup=figure(1.5 if mode == "single" else 1.1, 0.05, "x"),
        )
        for mode, change in changes.items()
    ]
    do_first = screen(with_findings(runs.cpu_run(), *found)).do_first
    assert do_first.endswith("1.10x (1.05–1.15) under ddp; on one device: set num_workers=2 (1.50x).")
    both = _of_other_modes([found[1], replace(found[1], mode="fsdp", speedup_basis="at most")])
    assert both == "; under ddp and fsdp: make Decode cheaper (1.10x and \N{LESS-THAN OR EQUAL TO}1.15x)"
    same = [replace(one, short_remedy=changes["ddp"].replace("0.9x", f"0.{n}x")) for n, one in enumerate(found)]
    do_first = screen(with_findings(runs.cpu_run(), *same)).do_first
    assert "; under" not in do_first.partition(": ")[2].partition("(")[0]
    assert do_first.endswith("; num_workers=2 is slower: measured 0.1x under ddp.")


def test_what_our_own_cost_may_be_is_no_finding_and_is_told() -> None:
    found = runs.cpu_run()
    ours = Inconclusive(rule="exposed_communication", mode="ddp", reason=OURS.format("7%"))
    other = Inconclusive(rule="checkpoint_share", mode="ddp", reason="no checkpoint was seen")
    with_both = replace(found, summary=replace(found.summary, inconclusive=(ours, other)))
    assert "No finding stands clear of dpdoctor's own cost" in screen(with_both).answer
    (told,) = [text for text in screen(with_both).limits if "watching the script" in text]
    assert "Exposed communication (ddp)" in told
    assert "heckpoint" not in told


def test_why_there_is_no_remedy_is_told_where_no_mode_has_one() -> None:
    bare = {"remedy": None, "short_remedy": None, "code": None, "no_remedy": "its workers are not seen from inside"}
    single, ddp = (finding("data_starved", mode, speedup=figure(1.5, 0.1, "x"), **bare) for mode in ("single", "ddp"))
    run = with_findings(runs.cpu_run(), single, ddp)
    (told,) = screen(run).opportunities
    assert (told.remedy, told.no_remedy) == ("", "No remedy: its workers are not seen from inside.")
    (ranked,) = only(Ranking, build("overview", run))
    assert ranked.advice[0].text == told.no_remedy
    assert f"1. {told.no_remedy}" in shown(run, width=400)
    with_one = replace(ddp, remedy="cache it", speedup=figure(1.2, 0.1, "x"))
    (told,) = screen(with_findings(runs.cpu_run(), single, with_one)).opportunities
    assert (told.remedy, told.no_remedy, told.gain) == ("Under ddp: cache it.", "", with_one.speedup)
    unpredicted = replace(with_one, mode="single", speedup=None)
    (told,) = screen(with_findings(runs.cpu_run(), ddp, unpredicted)).opportunities
    assert (told.remedy, told.gain) == ("On one device: cache it.", None)


def test_each_mode_has_its_own_reason_why_there_is_no_remedy() -> None:
    why = {"ddp": "its workers are not seen", "single": "a fetch mostly waits", "fsdp": None}
    bare = [finding("data_starved", mode, remedy=None, no_remedy=reason) for mode, reason in why.items()]
    (told,) = screen(with_findings(with_mode("fsdp", status="ok"), *bare)).opportunities
    assert told.no_remedy == ("No remedy: under ddp: its workers are not seen; on one device: a fetch mostly waits.")
