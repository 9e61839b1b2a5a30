"""Where traced steps of some ranks are missing, everything that says a share of a step says the same one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor import rundir, units
from dpdoctor.analysis import Analysis
from dpdoctor.analysis.base.traces import NO_STEPS, NONE_IN_COMMON, Traces, why_unknown
from dpdoctor.analysis.breakdown import PARTS, breakdown_shares, parts
from dpdoctor.analysis.communication import exposed_share
from dpdoctor.analysis.comparison import compare
from dpdoctor.digest import Digest
from dpdoctor.report.blocks import Table
from dpdoctor.report.comparison.rows import budget_rows, share_words
from dpdoctor.report.formats import markdown
from dpdoctor.report.traces.traced import traced_modes
from dpdoctor.report.traces.words import FIRST_FIGURE, device_rows
from dpdoctor.rules import diagnose
from tests.builders import sections, terminal, traced_runs
from tests.builders.markdown import seen

MODE = "trace"
STEPS = range(8)
# By rank the numbers of the steps that its trace lacks.
Missing = Sequence[frozenset[int]]


def ranks(num_ranks: int) -> list[Digest]:
    """Return ranks whose steps all differ: a share depends on which of them it is of."""
    draw = random.Random(6)
    return [_varied(digest, draw) for digest in traced_runs.late_rank(num_ranks, 0, num_steps=len(STEPS))]


def _varied(digest: Digest, draw: random.Random) -> Digest:
    device = traced_runs.device(steps=len(STEPS))
    steps = tuple(
        replace(step, breakdown=of, idle_by={"data": of.idle_ns})
        for step in device.steps
        for of in [traced_runs.breakdown(*(draw.randint(10, 99) for _ in PARTS), comm=200)]
    )
    return replace(digest, devices=(replace(device, steps=steps),))


def without(digests: Sequence[Digest], missing: Missing) -> list[Digest]:
    """Return the traces without these steps."""
    return [
        replace(
            digest,
            devices=tuple(
                replace(device, steps=tuple(step for step in device.steps if step.step not in gone))
                for device in digest.devices
            ),
        )
        for digest, gone in zip(digests, missing, strict=True)
    ]


def true_shares(digests: Sequence[Digest]) -> dict[str, Fraction]:
    """Return the shares by definition: of the steps that all ranks with any hold; of all that was traced without."""
    held = [{step.step: step.breakdown for step in device.steps} for digest in digests for device in digest.devices]
    common = frozenset.intersection(*(frozenset(steps) for steps in held if steps)) if any(held) else frozenset()
    budgets = [steps[number] for steps in held if steps for number in common]
    budgets = budgets or [device.whole for digest in digests for device in digest.devices]
    total = sum(budget.total_ns for budget in budgets)
    return {part: Fraction(sum(parts(budget)[part] for budget in budgets), total) for part in PARTS}


def of_run_json(analysis: Analysis) -> dict[str, float]:
    """Return what run.json says: the budget of a step or, where it says why there is none, of the whole traces."""
    mode = json.loads(rundir.encode(analysis.summary))["modes"][MODE]
    budget = mode["breakdown"]
    if budget is not None and budget["step"]["value"] is not None:
        return {part: budget[part]["value"] / budget["step"]["value"] for part in PARTS}
    if budget is not None:
        assert budget["compute"]["reason"] == NONE_IN_COMMON
    devices = [device for trace in mode["traces"] for device in trace["devices"]]
    total = sum(device["total_s"] for device in devices)
    return {part: sum(device[f"{part}_s"] for device in devices) / total for part in PARTS}


def of_comparison(analysis: Analysis) -> dict[str, float]:
    """Return what `compare` says, as its rows have it."""
    made = budget_rows(MODE, compare([analysis, analysis]).modes[MODE])
    said = {row.what: row.compared.figures[0].value for row in made}
    return {part: said.get(share_words(part)) or 0.0 for part in PARTS}


def of_page(analysis: Analysis) -> dict[str, float]:
    """Return what the page's table of devices says, put together."""
    (table,) = sections.only(Table, sections.build("breakdown", analysis))
    # Devices that hold no step that counts stand below the others with their whole trace.
    rows = [row for row in table.rows if "mean of" in row[1].note] or table.rows
    lengths = [row[1].sort for row in rows]
    cells = range(2, 2 + len(PARTS))
    shares = [sum(row[c].sort * length for row, length in zip(rows, lengths, strict=True)) for c in cells]
    return dict(zip(PARTS, (share / sum(lengths) for share in shares), strict=True))


MISSING = st.lists(st.frozensets(st.sampled_from(STEPS)), min_size=2, max_size=3)


@given(missing=MISSING)
@settings(max_examples=30, deadline=None)
def test_whichever_steps_are_missing_all_say_the_same(missing: Missing) -> None:
    digests = without(ranks(len(missing)), missing)
    analysis, truth = diagnose(traced_runs.trace_run(*digests)), true_shares(digests)
    for said in (of_run_json(analysis), of_comparison(analysis), of_page(analysis)):
        assert said == pytest.approx({part: float(share) for part, share in truth.items()}, abs=1e-12)
    exposed = units.share(float(truth["exposed_comm"]))
    sentence = f"{exposed} is exposed communication"
    on_terminal, in_markdown = terminal.shown(analysis, width=400), seen(markdown.comment(analysis))
    assert sentence in on_terminal
    assert sentence in in_markdown
    for finding in analysis.summary.findings:
        if finding.rule == "exposed_communication":
            assert f"exposed communication is {exposed} of a step" in finding.evidence[0]
    (mode,) = traced_modes(analysis)
    (table,) = sections.only(Table, sections.build("breakdown", analysis))
    shown = [[cell.text for cell in row[2 : 2 + len(PARTS)]] for row in table.rows]
    assert [[*row[FIRST_FIGURE : FIRST_FIGURE + len(PARTS)]] for row in device_rows(mode)] == shown


def test_four_steps_of_one_rank_are_missing() -> None:
    # The finding is there: the test above held it, too.
    digests = without(ranks(2), [frozenset(), frozenset(range(4))])
    analysis = diagnose(traced_runs.trace_run(*digests))
    (finding,) = [found for found in analysis.summary.findings if found.rule == "exposed_communication"]
    reason = "of 8 traced steps the 4 count that every device holds whole: rank 1 did not hold all"
    assert reason in finding.evidence[0]
    assert analysis.summary.modes[MODE].breakdown.exposed_comm.reason == reason
    assert {row.compared.figures[0].reason for row in budget_rows(MODE, compare([analysis] * 2).modes[MODE])} == {
        reason
    }
    for text in (terminal.shown(analysis, width=400), seen(markdown.comment(analysis))):
        assert reason.removeprefix("of") in text


def test_without_a_common_step_nothing_is_found() -> None:
    digests = without(ranks(2), [frozenset(range(4)), frozenset(range(4, 8))])
    analysis = diagnose(traced_runs.trace_run(*digests))
    budget = analysis.summary.modes[MODE].breakdown
    assert (budget.step.value, budget.step.reason) == (None, NONE_IN_COMMON)
    assert not [found for found in analysis.summary.findings if found.rule == "exposed_communication"]
    assert f"{NONE_IN_COMMON[1:]}: shares are of all that was traced" in terminal.shown(analysis, width=400)


def test_a_rank_without_any_whole_step_is_named() -> None:
    digests = without(ranks(3), [frozenset(), frozenset(STEPS), frozenset()])
    analysis = diagnose(traced_runs.trace_run(*digests))
    assert analysis.summary.modes[MODE].breakdown.step.reason == "not counted, for lack of a whole step: rank 1"
    none = diagnose(traced_runs.trace_run(*without(ranks(2), [frozenset(STEPS)] * 2)))
    assert none.summary.modes[MODE].breakdown is None
    assert f"{NO_STEPS[1:]}: shares are of all that was traced" in terminal.shown(none, width=400)


@pytest.mark.parametrize(
    "missing",
    [[()] * 3, [STEPS, (), ()], [range(4), (), range(4, 8)]],
    ids=["none missing", "none of the rank that does not tell it", "none in common"],
)
def test_what_one_rank_communicates_is_unknown(missing: Sequence[Sequence[int]]) -> None:
    gone, (first, *others) = [frozenset(numbers) for numbers in missing], ranks(3)
    truth = true_shares(without([first, *others], gone))
    digests = without([first.without_communication("no kernel is known"), *others], gone)
    analysis, found = diagnose(traced_runs.trace_run(*digests)), breakdown_shares(Traces(digests))
    busy = truth["compute"] + truth["exposed_comm"]
    assert found["exposed_comm"].value is None
    assert found["compute"].value == pytest.approx(float(busy))
    assert sum(found[part].value or 0.0 for part in PARTS) == pytest.approx(1)
    assert exposed_share(Traces(digests)).reason == found["exposed_comm"].reason == why_unknown(digests)
    assert not [one for one in analysis.summary.findings if one.rule in ("exposed_communication", "no_overlap")]
    budget = analysis.summary.modes[MODE].breakdown
    assert budget is not None
    assert budget.exposed_comm.value is None
    if budget.step.value is not None:
        assert (budget.compute.value or 0.0) / budget.step.value == pytest.approx(float(busy))
    for text in (terminal.shown(analysis, width=400), seen(markdown.comment(analysis))):
        assert f"communication is unknown; {units.share(float(busy))} of" in text
        assert "is exposed communication" not in text
