"""Where it is unknown what ranks communicate nothing is computed from it, and every output says so."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.analysis import Analysis, analyse
from dpdoctor.analysis.base.traces import MAY_HOLD, Traces, why_unknown
from dpdoctor.analysis.breakdown import breakdown_shares, trace_breakdown
from dpdoctor.analysis.communication import exposed_calls_share, exposed_share
from dpdoctor.analysis.comparison import compare
from dpdoctor.analysis.waterfall import rotating_wait
from dpdoctor.digest import Breakdown, Digest
from dpdoctor.records import Rank
from dpdoctor.rules import diagnose
from tests.builders import runs, traced_cases, traced_runs
from tests.builders.simulated_ranks import digest as rank_of
from tests.builders.specs import mode_spec, run

REASON = "no kernel is known to communicate"


def traces(analysis: Analysis) -> list[Digest]:
    return [rank.digest for rank in analysis.run.modes["trace"][0].ranks if rank.digest]


def silent(rank: int, *, world_size: int | None = None) -> Digest:
    """Return a rank with a device that computes, of which no call is known."""
    device = traced_runs.device(of=traced_runs.breakdown(80, idle=20))
    made = replace(rank_of(rank, ()), world_size=world_size, has_device=True, devices=(device,))
    return replace(made, kernels=traced_runs.late_rank(1, 0)[0].kernels)


class TestBudget:
    def test_what_was_taken_for_communication_may_be_compute(self) -> None:
        known = traced_runs.breakdown(46, 31, 4, 1, 18, comm=62)
        unknown = known.without_communication()
        assert (unknown.exposed_comm_ns, unknown.comm_ns) == (None, None)
        assert unknown.compute_ns == known.compute_ns + (known.exposed_comm_ns or 0)
        assert unknown.total_ns == known.total_ns

    def test_of_communication_all_or_nothing_is_known(self) -> None:
        with pytest.raises(ValueError, match="only a part"):
            Breakdown(compute_ns=1, exposed_comm_ns=None, h2d_ns=0, copy_ns=0, idle_ns=0, comm_ns=5)

    def test_a_digest_keeps_it(self) -> None:
        found = traced_runs.late_rank()[0].without_communication(REASON)
        assert msgspec.json.decode(rundir.encode(found), type=Digest) == found
        assert found.calls.begin_ns == found.collectives == ()


class TestFigures:
    found = traced_runs.unknown_communication()
    partly = traced_runs.partly_unknown_communication()

    @pytest.mark.parametrize("analysis", [found, partly])
    def test_they_are_unknown_with_the_reason(self, analysis: Analysis) -> None:
        digests = traces(analysis)
        reason = why_unknown(digests)
        budget, shares = trace_breakdown(Traces(digests)), breakdown_shares(Traces(digests))
        assert budget is not None
        assert reason is not None
        assert reason.startswith("rank 0")
        figures = (budget.exposed_comm, budget.comm, shares["exposed_comm"], exposed_share(Traces(digests)))
        assert {(figure.value, figure.reason) for figure in figures} == {(None, reason)}
        for figure in (budget.compute, shares["compute"]):
            assert figure.value is not None
            assert str(figure.reason).startswith(MAY_HOLD)
        assert rotating_wait(analysis.cross_rank["trace"], Traces(digests)).value is None or analysis is self.partly

    def test_run_json_has_no_figure_for_it(self) -> None:
        trace = json.loads(rundir.encode(self.found.summary))["modes"]["trace"]["traces"][0]
        assert trace["unknown_communication"] == REASON
        assert [(d["exposed_comm_s"], d["comm_s"]) for d in trace["devices"]] == [(None, None)]

    def test_rules_say_that_they_cannot_tell(self) -> None:
        summary = diagnose(self.found).summary
        assert [finding.rule for finding in summary.findings] == ["data_starved"]
        told = {item.rule for item in summary.inconclusive if REASON in item.reason}
        assert {"exposed_communication", "no_overlap", "small_collectives", "buffer_broadcast", "straggler"} <= told

    def test_who_is_late_is_unknown_for_that_reason(self) -> None:
        verdict = self.found.cross_rank["trace"].verdict
        assert (verdict.kind, REASON in str(verdict.reason)) == ("unknown", True)
        (note,) = self.partly.cross_rank["trace"].notes
        assert "unknown of rank 0" in note

    def test_compare_sets_compute_that_may_hold_communication_against_nothing(self) -> None:
        mode = compare([traced_runs.late_run(), self.found]).modes["trace"]
        for part in ("compute", "exposed_comm"):
            assert mode.budget[part].figures[1].value is None
            assert mode.budget[part].changes[0].verdict == "unknown"
        assert mode.budget["idle"].figures[1].value == pytest.approx(0.18)

    def test_a_mode_whose_trace_does_not_tell_it_is_judged_by_its_ablation_alone(self) -> None:
        found = traced_runs.traced_profile()
        (launch,) = found.run.modes["ddp"]
        ranks = tuple(
            replace(rank, digest=rank.digest.without_communication(REASON)) for rank in launch.ranks if rank.digest
        )
        modes = {**found.run.modes, "ddp": (replace(launch, ranks=ranks),)}
        again = diagnose(analyse(replace(found.run, modes=modes))).summary
        assert {"exposed_communication", "no_overlap"} <= {item.rule for item in again.inconclusive}
        assert "exposed_communication" not in {finding.rule for finding in again.findings}


class TestTracesWithoutHeaders:
    """None of them says that there are others; all together do."""

    def test_two_ranks_of_which_neither_is_known_to_communicate(self) -> None:
        found = traces(traced_runs.trace_run(silent(0), silent(1)))
        for digest in found:
            assert "one of 2 ranks" in str(digest.unknown_communication)
            assert "gemm (36.0 ms)" in str(digest.unknown_communication)

    def test_not_two_traces_of_nobody_knows_which_rank(self) -> None:
        unnumbered = replace(silent(0), rank=None)
        found = traces(traced_runs.trace_run(unnumbered, unnumbered, silent(0)))
        assert [digest.unknown_communication for digest in found] == [None] * 3

    def test_not_one_device_beside_traces_of_another_job(self) -> None:
        found = traces(traced_runs.trace_run(silent(0), *traced_runs.late_rank()[1:]))
        assert [digest.unknown_communication for digest in found] == [None] * 4

    def test_one_that_is_known_to_communicate_stays_as_it_is(self) -> None:
        first, second = (replace(digest, world_size=None) for digest in traced_runs.late_rank(2, 1))
        found = traces(traced_runs.trace_run(first, second, silent(2)))
        assert [digest.unknown_communication is None for digest in found] == [True, True, False]

    def test_files_of_a_run_are_left_alone(self) -> None:
        ranks = [Rank(index=0, record=None, steps=(), windows=(), events=(), trace=None, digest=None)]
        launch = runs.launch(*ranks, mode="trace")
        assert analyse(run({mode_spec("trace", 1): [launch]})).run.modes["trace"][0].ranks == tuple(ranks)


class TestSteps:
    def test_those_count_for_calls_of_which_every_call_is_kept(self) -> None:
        calls = [("all_reduce", 4_000, 1.0, 1.0)] * 20
        whole = [traced_cases.digest(rank, exposed=20, calls=calls) for rank in range(2)]
        # The last that is kept is the first of the sixth step.
        cut = [with_kept(one, 101) for one in whole]
        assert Traces(whole).with_calls == Traces(whole).common
        assert [steps[0].step for steps in Traces([whole[0], cut[1]]).with_calls.steps] == [0, 1, 2, 3, 4]
        assert Traces(cut).with_calls.left_out == "of 10 traced steps 5 have all calls kept"
        for traces in (Traces(whole), Traces(cut)):
            assert exposed_calls_share(traces, lambda *_: True).value == pytest.approx(0.2)

    def test_of_one_step_of_too_many_calls_none(self) -> None:
        (digest,) = [traced_cases.digest(exposed=20, calls=[("all_reduce", 4_000, 1.0, 1.0)] * 20)]
        cut = Traces([with_kept(digest, 7)])
        assert cut.common.steps
        found = exposed_calls_share(cut, lambda *_: True)
        assert (found.value, found.reason) == (None, "of 10 traced steps 0 have all calls kept")


def with_kept(digest: Digest, num: int) -> Digest:
    """Return the digest of a trace with more calls than are kept."""
    calls = msgspec.structs.asdict(digest.calls)
    kept = {name: column[:num] for name, column in calls.items() if name not in ("names", "causes", "num_dropped")}
    return replace(digest, calls=replace(digest.calls, **kept, num_dropped=len(calls["seq"]) - num))
