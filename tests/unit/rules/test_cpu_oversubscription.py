from __future__ import annotations

import re

from msgspec.structs import asdict, replace

from dpdoctor.analysis import AblationSummary, Finding
from dpdoctor.records import CpuUse, Sample
from dpdoctor.rules import CannotTell
from dpdoctor.rules.cpu_oversubscription import FEWER_RANKS, RULE
from tests.builders import cases
from tests.builders.cases import Case


def computing(threads: int, ablation: float | AblationSummary | None = None, half: float = 0.01) -> Case:
    """Return two ranks on two cores that compute with so many threads each and have two loader processes each."""
    conversion = replace(cases.conversion(num_workers=2), num_threads=threads)
    cpu = CpuUse(cpu_s=1.0, workers_cpu_s=0.0, wall_s=1.0, involuntary_switches=300, num_threads=threads)
    found = cases.ablation(ablation, half) if isinstance(ablation, float) else ablation
    ablations = {} if found is None else {"fair_threads": found}
    return cases.case("ddp", of=cases.ranks(2, conversion=conversion, cpu=cpu), ablations=ablations)


def throttled(*numbers: int) -> Case:
    """Return one rank on two cores; how often the quota was used up, read every ten of its periods."""
    samples = [
        Sample(at_ns=at, source="host", values={"num_throttled": 7.0 + number, "num_quota_periods": 40.0 + 10 * at})
        for at, number in enumerate(numbers)
    ]
    return cases.case(of=cases.ranks(conversion=cases.conversion()), samples=samples)


FIRES = {"sixteen threads each": computing(16, 0.3), "a quota": throttled(0, 5, 8)}
SILENT = {
    "one thread each": computing(1),
    "too many, but that costs nothing": computing(16, 0.01),
    "too many, and nobody can tell": computing(16, 0.06, 0.2),
    "a quota was reached now and then": throttled(0, 2, 5),
    "no period has ended": throttled(0),
    "ranks left no record": cases.case(of=[replace(cases.ranks()[0], record=None)]),
}


def test_the_cost_is_what_fewer_threads_gain() -> None:
    found = RULE.check(FIRES["sixteen threads each"])
    assert (found.cost.value, found.status) == (0.3, "confirmed")
    counted = set(re.findall(r"\d+ \w+", found.evidence[0]))
    assert counted == {"2 cores", "32 threads", "2 ranks", "4 loader"}
    assert "600 times per second" in found.evidence[1]
    assert found.code == "torch.set_num_threads(1)"


def test_of_ranks_that_a_launcher_started_it_is_their_share() -> None:
    """Four ranks on eight cores, where dpdoctor itself would have started two with four threads each."""
    of = cases.ranks(4, conversion=replace(cases.conversion(), num_threads=8))
    case = cases.case("native", of=of, native=cases.OWN, ablations={"fair_threads": cases.ablation(0.3)})
    spec, fingerprint = replace(case.spec, threads_per_device=4), replace(case.fingerprint, cores=8)
    found = RULE.check(cases.Case(**{**asdict(case), "spec": spec, "fingerprint": fingerprint}))
    assert isinstance(found, Finding)
    assert found.code == "torch.set_num_threads(2)"
    assert any(text.startswith("With 2 threads for each rank") for text in found.evidence)


def test_without_the_ablation_it_cannot_tell() -> None:
    found = RULE.check(computing(16))
    assert isinstance(found, CannotTell)
    assert "32 threads on 2 cores" in found.reason
    skipped = RULE.check(computing(16, cases.skipped("raise --time-budget")))
    assert isinstance(skipped, CannotTell)
    assert skipped.reason == f"{found.reason}, and was not measured: raise --time-budget"


def test_more_ranks_than_cores_with_one_thread_each_are_told_as_that() -> None:
    of = cases.ranks(4, conversion=replace(cases.conversion(), num_threads=1))
    unfit = cases.skipped("torch computes with no more threads than the rank's share of the cores")
    found = RULE.check(cases.case("ddp", of=of, ablations={"fair_threads": unfit}))
    assert isinstance(found, CannotTell)
    assert found.reason == f"4 ranks of one thread each on 2 cores, and no ablation runs with fewer: {FEWER_RANKS}"


def test_what_a_quota_costs_is_not_known() -> None:
    found = RULE.check(FIRES["a quota"])
    assert "40% of its periods" in found.title
    assert found.cost.value is None
    assert (found.status, found.speedup) == ("inferred", None)
