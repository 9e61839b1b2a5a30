"""no_overlap: what computing could hide, on a GPU only."""

from __future__ import annotations

import pytest

from dpdoctor.analysis import TRACE_MODE, Finding
from dpdoctor.digest import Bucket, ShardUnit
from dpdoctor.records import Conversion, CpuUse
from dpdoctor.rules import CannotTell
from dpdoctor.rules.no_overlap import RULE
from tests.builders import cases
from tests.builders.cases import Case, ablation, ranks
from tests.builders.cases import case as untraced
from tests.builders.specs import MS
from tests.builders.traced_cases import case, digest, real_cases

ONE_BUCKET = (Bucket(order=0, num_bytes=10_000_000, ready_ns=50 * MS, end_ns=80 * MS, exposed_ns=0, tail_ns=0),)
SMALL_BUCKETS = tuple(
    Bucket(order=number, num_bytes=2_000_000, ready_ns=50 * MS, end_ns=80 * MS, exposed_ns=0, tail_ns=0)
    for number in range(2)
)
# As of a cap of 20 KB and one large parameter.
ONE_LARGE = tuple(
    Bucket(order=number, num_bytes=size, ready_ns=50 * MS, end_ns=80 * MS, exposed_ns=0, tail_ns=0)
    for number, size in enumerate((20_000, 20_000, 30_000_000, 20_000, 4_000))
)
PHASES = {"forward": 20, "backward": 80}


def unit(name: str, prefetched: float) -> ShardUnit:
    """Return a wrap unit whose all-gathers are so often early."""
    return ShardUnit(
        name=name,
        all_gathers=2.0,
        reduce_scatters=1.0,
        gathered_bytes=None,
        scattered_bytes=None,
        exposed_ns=1e6,
        prefetched=prefetched,
    )


def pair(**fields: object) -> list:
    """Return two ranks with 20 ms of exposed communication beside 80 ms of compute."""
    return [digest(rank, **{"compute": 80, "exposed": 20, **fields}) for rank in range(2)]


def own(share: float, *, in_backward: bool = False, of_gradients: bool = True, **ablations: object) -> Case:
    """Return a job whose script exchanges gradients by itself, which takes this share of each step on the clock."""
    of = [cases.waiting(rank, share) for rank in ranks(2)]
    conversion = cases.by_hand(in_backward=in_backward, of_gradients=of_gradients)
    return untraced("native", of=of, native=cases.OWN, conversion=conversion, ablations=ablations)


def own_on_gpus(share: float, *, traced: bool = True, **ablations: object) -> Case:
    """Return the same on GPUs, whose hosts are in the calls for 1% of a step; the trace shows the share."""
    exposed = round(100 * share)
    fields = {"native": cases.OWN, "conversion": cases.by_hand(), "ablations": ablations}
    if not traced:
        of = [cases.waiting(rank, 0.01) for rank in ranks(2, device="cuda:0")]
        return untraced("native", of=of, **fields)
    return case("native", *pair(compute=100 - exposed, exposed=exposed), **fields)


FIRES = {
    "by hand, on GPUs": own_on_gpus(0.3),
    "by hand, on GPUs without a trace": own_on_gpus(0.3, traced=False, no_comm=ablation(0.28)),
    "by hand, after the backward pass": own(0.3),
    "by hand, confirmed": own(0.3, no_comm=ablation(0.28)),
    "DDP with one bucket": case(TRACE_MODE, *pair(buckets=ONE_BUCKET, phases=PHASES)),
    "DDP with one bucket, by default": case("ddp", *pair(buckets=ONE_BUCKET, phases=PHASES)),
    "DDP with small buckets": case("ddp", *pair(buckets=SMALL_BUCKETS, phases=PHASES)),
    "FSDP as one unit": case("fsdp", *pair(shard_units=(unit("root", 0.0),))),
    "FSDP without forward prefetch": case("fsdp", *pair(shard_units=(unit("root", 0.0), unit("layers.0", 0.5)))),
    "confirmed": case("ddp", *pair(buckets=ONE_BUCKET, phases=PHASES), ablations={"no_comm": ablation(0.2)}),
    **real_cases(v100="v100x2_ddp_rank1.json.gz"),
}
SILENT = {
    "by hand, while the backward pass goes on": own(0.3, in_backward=True, no_comm=ablation(0.28)),
    "by hand, of activations": own(0.3, of_gradients=False, no_comm=ablation(0.28)),
    "by hand, and without it nothing is gained": own(0.3, no_comm=ablation(0.0, 0.02)),
    "by hand, and next to nothing": own(0.01),
    "by hand, on GPUs, and next to nothing": own_on_gpus(0.01),
    "well hidden": case("ddp", *pair(hidden=40)),
    "nothing to hide it behind": case("ddp", *pair(compute=2, exposed=98)),
    "nothing in the backward to hide it behind": case(
        "ddp", *pair(buckets=ONE_BUCKET, phases={"forward": 78, "backward": 22})
    ),
    "on the CPU both share the cores": case("ddp", *pair(gpu=False)),
    "the ablation gains nothing": case("ddp", *pair(), ablations={"no_comm": ablation(0.0, 0.02)}),
    "nothing communicates": case("single", digest(world_size=1)),
    **real_cases(mostly_hidden="a100x8_rank3.json.gz"),
}


def finding(of: Case) -> Finding:
    found = RULE.check(of)
    assert isinstance(found, Finding)
    return found


def test_the_cost_is_what_compute_can_hide() -> None:
    # The backward computes 30 of its 50 busy ms, which is less than is exposed.
    found = finding(case("ddp", *pair(compute=60, exposed=40, buckets=ONE_BUCKET, phases={"backward": 70})))
    assert found.cost.value == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("which", "cause", "code"),
    [
        ("DDP with one bucket", "one bucket", "bucket_cap_mb=5"),
        ("DDP with small buckets", "", "bucket_cap_mb=1"),
        ("FSDP as one unit", "one unit", "fully_shard"),
        ("FSDP without forward prefetch", "", "set_modules_to_forward_prefetch"),
    ],
)
def test_the_reason_is_how_the_module_was_wrapped(which: str, cause: str, code: str) -> None:
    found = finding(FIRES[which])
    assert cause in (found.cause or "")
    assert code in (found.code or "")


def test_a_bucket_that_a_cap_would_not_split_is_not_to_be_smaller() -> None:
    found = finding(FIRES["DDP with one bucket, by default"])
    assert "one bucket" in (found.cause or "")
    assert (found.code, "less often" in (found.remedy or "")) == (None, True)


def test_the_cap_that_is_told_is_below_the_one_there_is() -> None:
    """Else small_collectives asks for larger buckets, and this rule for a larger cap to have smaller ones."""
    found = finding(case("native", *pair(buckets=ONE_LARGE, phases=PHASES), native=cases.OWN))
    assert (found.code, "less often" in (found.remedy or "")) == (None, True)


def test_it_cannot_tell_without_a_trace() -> None:
    on_gpus = untraced("ddp", world_size=2, of=ranks(2, device="cuda:0"))
    assert isinstance(RULE.check(on_gpus), CannotTell)
    assert RULE.check(untraced("ddp", world_size=2)) is None


def test_what_a_script_exchanges_by_itself_is_named_with_its_line_and_confirmed_by_the_ablation() -> None:
    alone, with_ablation = finding(own(0.3)), finding(own(0.3, no_comm=ablation(0.28)))
    assert (alone.status, with_ablation.status) == ("inferred", "confirmed")
    assert alone.cost.value == pytest.approx(0.3)
    assert with_ablation.cost.value == pytest.approx(0.28)
    assert alone.line == "train.py:40"
    assert "async_op=True" in (alone.code or "")


def test_no_more_is_promised_than_the_backward_pass_can_hide() -> None:
    of = [cases.waiting(rank, 0.6) for rank in ranks(2)]
    short = {"backward": 0.25 * cases.STEP_S}
    found = finding(untraced("native", of=of, native=cases.OWN, conversion=cases.by_hand(), phases_s=short))
    assert found.cost.value == pytest.approx(0.6)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1 / 0.75)


@pytest.mark.parametrize(("busy_s", "threads", "most"), [(0.8, 1, 0.2), (0.8, 4, 0.6), (0.3, 1, 0.6), (1.1, 1, 0.0)])
def test_no_more_is_promised_than_the_cores_have_idle(busy_s: float, threads: int, most: float) -> None:
    cpu = CpuUse(cpu_s=busy_s, workers_cpu_s=0.0, wall_s=1.0, involuntary_switches=5, num_threads=threads)
    of = [cases.waiting(rank, 0.6) for rank in ranks(2, cpu=cpu, conversion=Conversion(num_threads=threads))]
    found = finding(untraced("native", of=of, native=cases.OWN, conversion=cases.by_hand()))
    assert found.cost.value == pytest.approx(0.6)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1 / (1 - most))
    assert any("the cores are" in text for text in found.evidence) is (threads == 1)


def test_on_a_gpu_the_trace_says_what_exchanges_by_hand_take_and_not_the_clock_of_the_calls() -> None:
    found = finding(own_on_gpus(0.3))
    assert found.cost.value == pytest.approx(0.3)
    assert "in the trace they take 30% of a step" in found.evidence
    assert not any("on the host's clock" in text or "the backward pass takes" in text for text in found.evidence)
    assert isinstance(RULE.check(own_on_gpus(0.3, traced=False)), CannotTell)
