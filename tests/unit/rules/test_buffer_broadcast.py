"""buffer_broadcast: counted, and timed where no rank waits for another."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import TRACE_MODE, Finding
from dpdoctor.digest import Bucket
from dpdoctor.records import HAND_WRITTEN, Collective, Conversion, Counters, Strategy
from dpdoctor.rules import CannotTell
from dpdoctor.rules.buffer_broadcast import RULE
from tests.builders.cases import OWN, ablation
from tests.builders.cases import case as untraced
from tests.builders.specs import MS
from tests.builders.traced_cases import case, digest, real_cases

COUNTERS = Counters(
    operators=100,
    collectives={
        "all_reduce": Collective(count=2, num_bytes=44_000_000),
        "broadcast": Collective(count=2, num_bytes=40_000),
    },
    inputs=(),
)

BUCKET = Bucket(order=0, num_bytes=44_000_000, ready_ns=50 * MS, end_ns=80 * MS, exposed_ns=0, tail_ns=0)


def pair(first: float = 10, second: float = 10) -> list:
    """Return two ranks whose broadcasts take so long, all of it exposed."""
    return [
        digest(rank, compute=90, exposed=round(ms), calls=[("broadcast", 40_000, ms, ms)], gpu=False)
        for rank, ms in enumerate((first, second))
    ]


FIRES = {
    "inferred": case("ddp", *pair(), counters=COUNTERS),
    "most of what the ablation gains": case("ddp", *pair(), counters=COUNTERS, ablations={"no_comm": ablation(0.11)}),
}
SILENT = {
    "short": case("ddp", *pair(1, 1), counters=COUNTERS),
    "only waiting for a slower rank": case("ddp", *pair(18, 1), counters=COUNTERS),
    "no buffers": case("ddp", digest(0, exposed=20), digest(1, exposed=20)),
    "no buffers, no trace": untraced("ddp", world_size=2),
    "the ablation gains nothing": case("ddp", *pair(), counters=COUNTERS, ablations={"no_comm": ablation(0.0, 0.02)}),
    "FSDP has none": case("fsdp", *pair(), counters=COUNTERS),
    "whoever else broadcasts": case(TRACE_MODE, *pair()),
    **real_cases(a100="a100x2_ddp_rank0_collective_args.json.gz"),
}


def test_it_cannot_tell_buffers_from_what_a_script_broadcasts_by_itself() -> None:
    own = Strategy(name=HAND_WRITTEN, facts="1 call of broadcast in a step, 40.0 kB", line="train.py:40")
    conversion = Conversion(strategies=(Strategy(name="ddp"), own))
    found = RULE.check(case("native", *pair(), counters=COUNTERS, native=OWN, conversion=conversion))
    assert isinstance(found, CannotTell)
    assert "train.py:40" in found.reason


@pytest.mark.parametrize(("buffers", "is_found"), [(0, False), (3, True), (None, True)])
def test_a_flag_that_a_library_broadcasts_in_each_step_is_no_buffer(buffers: int | None, is_found: bool) -> None:
    conversion = Conversion(strategies=(Strategy(name="ddp", buffers=buffers),))
    found = RULE.check(case("native", *pair(), counters=COUNTERS, native=OWN, conversion=conversion))
    assert isinstance(found, Finding) == is_found


def test_cost_count_and_line() -> None:
    found = RULE.check(FIRES["inferred"])
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.1)
    assert "2 broadcasts" in found.evidence[0]
    assert "40.0 kB" in found.evidence[0]


@pytest.mark.parametrize(
    ("name", "packages", "option"),
    [
        ("ddp", {"torch": "2.11.0+cu130"}, "broadcast_buffers"),
        ("ddp", {"torch": "2.13.0"}, "forward_sync_buffers"),
        ("ddp", {"torch": "3.0"}, "forward_sync_buffers"),
        ("ddp", {}, "broadcast_buffers"),
        (TRACE_MODE, {"torch": "2.13.0"}, "broadcast_buffers"),  # of the machine that reads the traces
    ],
)
def test_the_option_has_the_name_that_the_torch_of_the_run_knows(
    name: str, packages: dict[str, str], option: str
) -> None:
    digests = [replace(one, buckets=(BUCKET,)) for one in pair()]
    facts = case(name, *digests, counters=COUNTERS)
    facts = replace(facts, fingerprint=replace(facts.fingerprint, packages=packages))
    found = RULE.check(facts)
    assert isinstance(found, Finding)
    assert (found.short_remedy, found.code) == (
        f"set {option}=False",
        f"DistributedDataParallel(model, {option}=False)",
    )


def test_it_has_its_part_of_what_the_ablation_gains() -> None:
    found = RULE.check(case("ddp", *pair(), counters=COUNTERS, ablations={"no_comm": ablation(0.07)}))
    assert isinstance(found, Finding)
    assert (found.status, found.cost.value) == ("confirmed", pytest.approx(0.07))
    half = [digest(rank, compute=80, exposed=20, calls=[("broadcast", 40_000, 10, 10)], gpu=False) for rank in range(2)]
    found = RULE.check(case("ddp", *half, counters=COUNTERS, ablations={"no_comm": ablation(0.3)}))
    assert isinstance(found, Finding)
    assert (found.status, found.cost.value) == ("inferred", pytest.approx(0.15))


def test_it_cannot_tell_what_counted_broadcasts_cost_without_a_trace() -> None:
    assert isinstance(RULE.check(untraced("ddp", world_size=2, counters=COUNTERS)), CannotTell)
