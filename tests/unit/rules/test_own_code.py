"""own_code: time outside of the phases of a step in which nothing computes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Finding
from dpdoctor.records import Conversion, LineShare, WrappedModule
from dpdoctor.rules import CannotTell
from dpdoctor.rules.own_code import RULE
from tests.builders import cases
from tests.builders.cases import Case, case_of
from tests.builders.traced_cases import case, digest

LINES = (LineShare(line="/a/train.py:88", share=0.9), LineShare(line="/a/train.py:90", share=0.06))


def loop(
    other_ms: int, idle_ms: int, cause: str = "script", *, seen: dict[str, Any] | None = None, **fields: Any
) -> Case:
    """Return one rank with so much of a step of 100 ms outside of its phases, of which so much computes nothing.

    `seen`: fields of the LineShares.
    """
    trace = digest(world_size=1, compute=100 - idle_ms, idle_by={cause: idle_ms}, gpu=False)
    lines = tuple(replace(line, **(seen or {})) for line in LINES)
    return case("single", trace, phases_s={"other": other_ms / 1000}, record={"own_code": lines}, **fields)


def ranks(*idle_ms: int) -> Case:
    """Return ranks with 30 ms of a step outside of their phases, of which these compute nothing."""
    traces = [
        digest(place, world_size=len(idle_ms), compute=100 - ms, idle_by={"script": ms}, gpu=False)
        for place, ms in enumerate(idle_ms)
    ]
    return case("ddp", *traces, phases_s={"other": 0.03})


FIRES = {
    "code of the loop": loop(30, 40),
    "in a span that it named": loop(30, 30, "annotation"),
    "on all ranks": ranks(30, 20),
    "beside a loss": loop(30, 40, seen={"training": 0.4}),
}
SILENT = {
    "a little": loop(4, 4),
    "it computes meanwhile": loop(30, 4),
    "between the operators of the phases": loop(30, 30, "python"),
    "one of two ranks": ranks(30, 0),
    "a loss that is computed outside of the model": loop(30, 40, seen={"training": 0.9}),
    "nothing": cases.case(),
}


def test_a_forward_that_nobody_saw_is_not_told_as_code_of_the_loop() -> None:
    found = RULE.check(loop(100, 60))
    assert isinstance(found, CannotTell)
    assert "no forward of the model was seen" in found.reason


def test_the_smaller_of_clock_and_trace_counts() -> None:
    for other_ms, idle_ms, cost in ((30, 40, 0.3), (40, 30, 0.3)):
        found = RULE.check(loop(other_ms, idle_ms))
        assert isinstance(found, Finding)
        assert found.cost.value == pytest.approx(cost)
        assert found.speedup is not None
        assert found.speedup.value == pytest.approx(1 / (1 - cost))


def test_the_profiler_makes_steps_longer_but_not_what_waits_in_them() -> None:
    found = RULE.check(loop(40, 20, step=cases.figure(0.08)))
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.25)


def test_what_lies_between_forward_and_update_is_training() -> None:
    found = RULE.check(loop(30, 40, seen={"training": 0.4}))
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.18)
    mostly = RULE.check(loop(30, 40, seen={"training": 0.6}))
    assert isinstance(mostly, Finding)
    assert (mostly.line, mostly.short_remedy, mostly.speedup, mostly.severity) == (None, None, None, "info")


def test_nothing_is_advised_that_would_change_the_training() -> None:
    found = RULE.check(FIRES["code of the loop"])
    assert isinstance(found, Finding)
    assert found.code is None


UPDATED_BY_HAND = Conversion(
    modules=(WrappedModule(name="net", line="/a/train.py:80", num_parameters=1, trainable_bytes=4),)
)


def test_an_update_that_no_torch_optimizer_makes_is_not_blamed() -> None:
    found = RULE.check(loop(30, 40, conversion=UPDATED_BY_HAND))
    assert isinstance(found, CannotTell)
    assert "update" in found.reason
    trained = replace(UPDATED_BY_HAND, optimizers=("Adam",))
    assert isinstance(RULE.check(loop(30, 40, conversion=trained)), Finding)


def test_forward_passes_that_are_not_seen_are_not_blamed() -> None:
    found = RULE.check(loop(30, 40, conversion=Conversion(optimizers=("Adam",), made_anew="Around is made anew")))
    assert isinstance(found, CannotTell)
    assert found.reason == "Around is made anew"


def without_loader() -> Case:
    """Return the loop of a rank whose steps no loader feeds."""
    made = loop(30, 40)
    ((launch,),) = made.analysis.run.modes.values()
    (rank,) = launch.ranks
    fed_by_none = tuple(replace(step, samples_drawn=0) for step in rank.steps)
    launch = replace(launch, ranks=(replace(rank, steps=fed_by_none),))
    run = replace(made.analysis.run, modes={made.name: (launch,)})
    return case_of(replace(made.analysis, run=run), made.name)


def test_the_remedy_fits_where_the_line_lies() -> None:
    said = {
        "every few hundred steps only": loop(30, 40),
        "in the data set or in collate_fn": loop(30, 40, seen={"preparing": 0.9}),
        "let a DataLoader with workers": without_loader(),
        "callbacks": loop(30, 40, seen={"library": "Bar.on_step_end (lightfast)"}),
    }
    for words, of in said.items():
        found = RULE.check(of)
        assert isinstance(found, Finding)
        assert found.remedy is not None
        assert [other for other in said if other in found.remedy] == [words]
        assert (
            (found.speedup is None)
            == (found.short_remedy is None)
            == (words in {"callbacks", "let a DataLoader with workers"})
        )


def test_where_a_library_runs_the_loop_its_callback_is_named_and_no_line() -> None:
    found = RULE.check(loop(30, 40, seen={"library": "Bar.on_step_end (lightfast)"}))
    assert isinstance(found, Finding)
    assert found.line is None
    assert found.cause is not None
    assert found.cause.startswith("Bar.on_step_end (lightfast) has")
    assert "train.py" not in " ".join(found.evidence)


def test_the_line_that_has_most_of_it_is_named() -> None:
    found = RULE.check(FIRES["code of the loop"])
    assert isinstance(found, Finding)
    assert found.line == "/a/train.py:88"
    assert found.cause is not None
    assert found.line in found.cause
    assert "90%" in found.cause
    # It may run where an epoch begins, where such steps are the usual ones.
    assert found.short_remedy == "look at what train.py:88 does between the steps"
    assert not any("train.py:90" in text for text in found.evidence), "6% is too little"


def test_of_ranks_that_all_have_it_the_least_counts() -> None:
    found = RULE.check(FIRES["on all ranks"])
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.2)


def test_without_a_trace_it_cannot_tell() -> None:
    found = RULE.check(cases.case(phases_s={"other": 0.03}))
    assert isinstance(found, CannotTell)
    assert "30% of each step" in found.reason


@pytest.mark.parametrize("kind", ["checkpoint", "evaluation", "gc", "compile"])
def test_what_other_rules_tell_of_is_left_to_them(kind: str) -> None:
    (rank,) = cases.ranks()
    eventful = cases.eventful(rank, kind, 1, 0.025)
    assert isinstance(RULE.check(cases.case(of=[rank], phases_s={"other": 0.03})), CannotTell)
    assert RULE.check(cases.case(of=[eventful], phases_s={"other": 0.03})) is None
