"""find_unused_parameters: the search in the trace."""

from __future__ import annotations

import pytest

from dpdoctor.analysis import Conversion, Finding
from dpdoctor.digest import NamedTime
from dpdoctor.records import WrappedModule
from dpdoctor.rules import CannotTell
from dpdoctor.rules.find_unused_parameters import RULE, SEARCH
from tests.builders.cases import case as untraced
from tests.builders.specs import MS
from tests.builders.traced_cases import STEPS, case, digest

ON = Conversion(
    modules=(
        WrappedModule(name="Net", line="train.py:9", num_parameters=9, trainable_bytes=36, unused=("head.bias",)),
    ),
    find_unused_parameters=True,
)


def pair(ms: int, idle: int = 20, **fields: bool) -> list:
    """Return two ranks whose steps of 100 ms search for so long, and whose GPUs idle meanwhile or later."""
    operators = (NamedTime(name=SEARCH, count=STEPS, total_ns=STEPS * ms * MS, self_ns=MS),) if ms else ()
    idle_by = {"dispatch": idle} if idle else {}
    return [digest(rank, compute=100 - idle, idle_by=idle_by, operators=operators, **fields) for rank in range(2)]


FIRES = {
    "wrapped with it": case("ddp", *pair(12), conversion=ON),
    "in the trace of a script of its own": case("trace", *pair(12)),
    "without a GPU": case("ddp", *pair(12, idle=0, gpu=False), conversion=ON),
}
SILENT = {
    "the GPU computes meanwhile": case("ddp", *pair(12, idle=2), conversion=ON),
    "short": case("ddp", *pair(1), conversion=ON),
    "the search is not among the operators": case("ddp", *pair(0), conversion=ON),
    "off": case("ddp", *pair(0)),
    "off, no trace": untraced("ddp", world_size=2),
}


def test_cost_and_names() -> None:
    found = RULE.check(FIRES["wrapped with it"])
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.12)
    assert any("head.bias" in text for text in found.evidence)
    assert found.line == "train.py:9"


def test_a_gpu_waits_no_longer_for_the_search_than_it_idles() -> None:
    found = RULE.check(case("ddp", *pair(12, idle=8), conversion=ON))
    assert isinstance(found, Finding)
    assert (found.cost.value, found.speedup_basis) == (pytest.approx(0.08), "at most")
    assert found.evidence[:2] == (
        "in the trace the search takes 12% of the time, before each backward",
        "the GPU idles 8.0% of a step, and waits no longer",
    )


def test_it_cannot_tell_without_a_trace() -> None:
    assert isinstance(RULE.check(untraced("ddp", world_size=2, conversion=ON)), CannotTell)
