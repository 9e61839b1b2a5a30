from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis, Finding
from dpdoctor.report.formats import terminal
from dpdoctor.report.words import clauses, verdict
from dpdoctor.report.words.advice import LONGEST_REMEDY, advice, bottleneck
from tests.builders import runs
from tests.builders.diagnosed_runs import diagnosed_run, figure, finding, unknown, with_findings
from tests.builders.figures import figures
from tests.builders.terminal import shown


def short(text: str = "set num_workers=4", **fields: object) -> Finding:
    """Return a finding of DDP whose remedy is known in few words; more fields by keyword."""
    return finding(**{"short_remedy": text, **fields})


def said(*findings: Finding, modes: tuple[str, ...] = ("ddp",)) -> str | None:
    return advice(with_findings(runs.cpu_run(), *findings).summary, modes)


def test_it_says_what_to_change_and_what_that_gives() -> None:
    assert said(short()) == "set num_workers=4: predicted 1.70x of today's throughput"


def test_it_says_whether_that_is_measured_or_the_most_there_is() -> None:
    assert said(short(speedup_basis="measured")) == "set num_workers=4: measured 1.70x of today's throughput"
    assert said(short(speedup_basis="at most")) == "set num_workers=4: at most 1.80x of today's throughput"
    unbounded = replace(figure(1.7, 0.1, "x"), high=None)
    assert said(short(speedup=unbounded, speedup_basis="at most")) == "set num_workers=4: no upper bound known"


def test_what_a_headline_begins_with_is_not_said_twice() -> None:
    found = short("train on one device", rule="parallelism_not_worth_it", title="2 devices train slower than one")
    run = with_findings(runs.cpu_run(), found).summary
    assert bottleneck(run, "ddp") is None
    assert str(advice(run, ("ddp",))).startswith("train on one device")
    assert bottleneck(with_findings(runs.cpu_run(), short()).summary, "ddp") == short().title


def test_the_costliest_finding_speaks() -> None:
    words = said(short("this one", rule="a"), short("costs less", rule="b"))
    assert words == said(short("this one"))
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
    assert said(costliest, short("of another", rule="b")) is None


def test_another_mode_may_know_the_gain() -> None:
    both = (short(speedup=None), short(mode="single"))
    words = said(*both, modes=("ddp", "single"))
    assert words == f"for single {said(short())}"


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
    assert said(short(**fields), modes=("ddp", "fsdp")) is None


class TestSeveralLeaders:
    MODES = ("single", "ddp")

    def test_one_remedy_of_all_is_told_once(self) -> None:
        both = (short(), short(mode="single", speedup=figure(1.5, 0.1, "x")))
        words = said(*both, modes=self.MODES)
        assert words is not None
        assert words.startswith("set num_workers=4: ")
        assert figures(words) == ["4", "1.50x", "1.70x"]

    @pytest.mark.parametrize("other", [(), (short("set num_workers=1", mode="single"),)])
    def test_a_remedy_of_some_names_them(self, other: tuple[Finding, ...]) -> None:
        words = said(short(), *other, modes=self.MODES)
        assert words == f"for ddp {said(short())}"


def test_a_long_name_from_the_script_is_shortened() -> None:
    words = said(short(f"take {'A' * 10_000} out of the loader"))
    assert words is not None
    assert len(words) < LONGEST_REMEDY + 60
    assert "out of the loader: " in words
    assert figures(words) == ["1.70x"]


class TestHeadline:
    def test_the_page_ends_with_it(self) -> None:
        sentence = verdict.headline(diagnosed_run().summary).sentence
        assert sentence.endswith(f"; {finding().title}; {said(short())}.")

    def test_without_a_costly_finding_it_says_where_the_time_goes(self) -> None:
        summary = runs.cpu_run().summary
        (where,) = clauses.step_time([summary.modes["ddp"]])
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
