from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis
from dpdoctor.analysis.base.traces import CommonSteps, common_steps
from dpdoctor.analysis.breakdown import spent
from dpdoctor.analysis.cross_rank import LateStep, Stragglers
from dpdoctor.digest import TIME, DeviceDigest, Digest, NotMeasured
from dpdoctor.report.blocks import Callout
from dpdoctor.report.traces import words as trace_words
from dpdoctor.report.traces.words import trace_headline
from dpdoctor.rules import diagnose
from tests.builders import traced_runs
from tests.builders.sections import build, only
from tests.builders.simulated_ranks import digests, lockstep
from tests.builders.specs import MS


class TestHeadline:
    def test_of_four_ranks(self) -> None:
        found = trace_headline(traced_runs.late_run())
        assert found.sentence == (
            "4 ranks: 46% of the step computes, 31% is exposed communication and 18% is idle "
            "(most of it waiting for data); rank 2 is late by 30.0 ms in nearly every step."
        )
        assert found.tone == "warn"
        assert found.detail.startswith("Shares of 12 whole steps on 4 devices, added up.")

    def test_of_one_rank_without_steps(self) -> None:
        found = trace_headline(traced_runs.cpu_trace())
        assert found.sentence.startswith("Rank 34 of 300: 46% of the 100 ms traced computes, ")
        assert "299 of 300 ranks have no trace here." in found.detail
        assert "all that was traced on 1 training thread" in found.detail
        assert found.tone == "plain"

    def test_why_nobody_is_blamed_is_said(self) -> None:
        first, second = traced_runs.late_rank(2, 1, num_steps=3)
        run = traced_runs.trace_run(first, second)
        found = trace_headline(run)
        (cross_rank,) = run.cross_rank.values()
        assert cross_rank.verdict.reason
        assert "late" not in found.sentence
        assert cross_rank.verdict.reason in found.detail

    def test_without_any_trace(self) -> None:
        assert trace_headline(traced_runs.unreadable()).sentence == "No trace could be read."

    def test_of_a_trace_without_events(self) -> None:
        digest = replace(traced_runs.late_rank(1, 0)[0], devices=())
        found = trace_headline(traced_runs.trace_run(digest))
        assert found.sentence == "1 rank: the traces hold neither device events nor operators."

    def test_of_a_trace_that_does_not_tell_where_the_time_went(self) -> None:
        found = trace_headline(traced_runs.trace_run(untold(traced_runs.late_rank(1, 0)[0])))
        assert found.sentence == "1 rank: the file is not whole."

    def test_what_is_not_in_the_figures_is_said(self) -> None:
        first, *others = traced_runs.late_rank(4)
        found = trace_headline(traced_runs.trace_run(first, *map(untold, others)))
        assert "Not in these figures: rank 1 and 2 other traces, as the file is not whole." in found.detail

    def test_traces_that_are_no_ranks_are_not_called_so(self) -> None:
        assert trace_headline(traced_runs.hostile_traces()).sentence.startswith("2 traces: ")


def untold(digest: Digest) -> Digest:
    return replace(digest, devices=(), not_measured=(NotMeasured(what=TIME, reason="the file is not whole"),))


LATE = Stragglers(kind="persistent", rank=2, lateness_ns=30 * MS, times=19, num_late=20, num_steps=20)


@pytest.mark.parametrize(
    ("verdict", "clause"),
    [
        (LATE, "rank 2 is late by 30.0 ms in nearly every step"),
        (
            replace(LATE, times=13, cause="gc"),
            "rank 2 is late by 30.0 ms in most steps after collecting garbage",
        ),
        (
            replace(LATE, kind="rotating", rank=None),
            "in most steps a rank is late by 30.0 ms, now one and now another",
        ),
        (
            replace(LATE, kind="periodic", period=5, rank=None),
            "a rank, not always the same, is late by 30.0 ms every 5 steps",
        ),
        (
            Stragglers(
                kind="single",
                rank=1,
                lateness_ns=130 * MS,
                events=(LateStep(step=12, rank=1, lateness_ns=130 * MS, cause="gc"),),
            ),
            "rank 1 is late by 130 ms in step 12 (after collecting garbage)",
        ),
        (
            Stragglers(
                kind="single",
                rank=1,
                lateness_ns=9 * MS,
                events=(
                    LateStep(step=8, rank=1, lateness_ns=9 * MS, cause="python"),
                    LateStep(step=11, rank=1, lateness_ns=7 * MS, cause=None),
                    LateStep(step=12, rank=0, lateness_ns=8 * MS, cause="gc"),
                ),
            ),
            "rank 1 is late by 9.00 ms in step 8 (after Python between operators), by 7.00 ms in step 11 "
            "and rank 0 by 8.00 ms in step 12 (after collecting garbage)",
        ),
        (
            Stragglers(
                kind="single",
                rank=1,
                lateness_ns=9 * MS,
                events=tuple(LateStep(step=n, rank=1, lateness_ns=9 * MS, cause=None) for n in range(4)),
            ),
            "rank 1 is late in 4 single steps, by 9.00 ms",
        ),
        (Stragglers(kind="none"), "in the trace no rank keeps another waiting"),
        (Stragglers(kind="unknown", reason="?"), None),
    ],
)
def test_who_is_late(verdict: Stragglers, clause: str | None) -> None:
    assert trace_words.lateness(verdict) == clause


def common(devices: list[DeviceDigest]) -> CommonSteps:
    """Return the steps that count for the devices of one rank."""
    return common_steps([replace(traced_runs.late_rank(1, 0)[0], devices=tuple(devices))])


class TestSpent:
    def test_whole_steps_are_added_up_and_other_devices_left_out(self) -> None:
        busy = traced_runs.device(0, steps=2, of=traced_runs.breakdown(80, 20, comm=40))
        found = spent(of := [busy, traced_runs.device(1, steps=0)], common(of))
        assert (found.num_steps, found.total_ns, found.ratio("compute")) == (2, 200 * MS, 0.8)
        assert found.overlap_ratio == 0.5
        assert found.phases_ns == {"forward": 40 * MS, "backward": 52 * MS}

    def test_without_a_whole_step_it_is_the_whole_trace(self) -> None:
        found = spent(of := [traced_runs.device(steps=0)], common(of))
        assert (found.num_steps, found.total_ns) == (0, 100 * MS)
        assert sum(found.idle_by.values()) == found.parts_ns["idle"]

    def test_nothing_has_no_shares(self) -> None:
        with pytest.raises(ValueError, match="nothing took any time"):
            spent([traced_runs.device(steps=0, of=traced_runs.breakdown(0))], CommonSteps(steps=()))


def test_a_cause_is_the_largest_only_with_more_than_half() -> None:
    assert trace_words.largest_cause({"data": 6, "sync": 4}) == "data"
    assert trace_words.largest_cause({"data": 5, "sync": 5}) is None
    assert trace_words.largest_cause({}) is None


class TestWhoCameLast:
    """One step: a fact, and no verdict."""

    def one_step(self) -> Analysis:
        """Return four ranks of which rank 2 comes 30 ms later than the others to each of eight calls of one step."""
        segments = np.full((8, 4), 60 * MS)
        segments[:, 2] += 30 * MS
        made = digests(lockstep(segments, [10 * MS] * 8, per_step=8, numbered=False))
        device = traced_runs.device(steps=1)
        return traced_runs.trace_run(*(replace(digest, has_device=True, devices=(device,)) for digest in made))

    def test_the_first_screen_has_the_fact(self) -> None:
        found = trace_headline(self.one_step())
        assert "rank 2 came last to 8 of 8 collectives, which waited 210 ms for it" in found.sentence
        assert "Whether it is so in most steps cannot be told" in found.detail
        assert found.tone == "plain"

    def test_the_section_of_ranks_has_it_with_what_is_missing(self) -> None:
        (callout, *_) = only(Callout, build("ranks", self.one_step()))
        assert callout.title == "One rank came last to most"
        assert "5 whole steps are needed, 1 is here" in callout.text

    def test_the_rule_of_stragglers_names_it_and_does_not_judge(self) -> None:
        summary = diagnose(self.one_step()).summary
        assert "straggler" not in {finding.rule for finding in summary.findings}
        (said,) = [item.reason for item in summary.inconclusive if item.rule == "straggler"]
        assert "rank 2 came last to 8 of 8 collectives" in said
