"""device_idle: idle time that no other finding tells of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Finding
from dpdoctor.digest import Replay
from dpdoctor.rules import CannotTell
from dpdoctor.rules.device_idle import OVER_GLOO, REMEDIES, WORDS
from dpdoctor.rules.diagnose import ask
from dpdoctor.rules.rule import Said
from tests.builders.cases import Case, figure, ranks
from tests.builders.cases import case as untraced
from tests.builders.traced_cases import case, digest, real_cases


def idling(delay_us: float = 3_000, *, gpu: bool = True, step_s: float | None = None, **idle_by: int) -> Case:
    """Return one rank whose step of 100 ms idles so long by cause; at such a delay it is not launch-bound."""
    compute = 100 - sum(idle_by.values())
    fields = {} if step_s is None else {"step": figure(step_s, 0.001)}
    one = digest(world_size=1, compute=compute, idle_by=idle_by, delay_us=delay_us, gpu=gpu)
    return case("single", one, **fields)


FIRES = {
    "kernels that wait for others": idling(dependency=40),
    "several causes": idling(dependency=15, python=15),
    **real_cases(a100x16="a100x16_sendrecv_rank0.json.gz"),
}
SILENT = {
    "a little": idling(dependency=20),
    "launch-bound, which has its own finding": idling(8, dispatch=40),
    "starved, which has its own finding": idling(data=40),
    "only the profiler made it idle": idling(dependency=40, step_s=0.061),
    "on the CPU": idling(dependency=40, gpu=False),
}


def said(of: Case) -> Said:
    """Return what the rule says beside what the others find."""
    return ask(of)["device_idle"]


def finding(of: Case) -> Finding:
    found = said(of)
    assert isinstance(found, Finding)
    return found


def test_one_cause_is_named_with_what_to_do() -> None:
    found = finding(FIRES["kernels that wait for others"])
    assert (found.cost.value, found.severity) == (pytest.approx(0.4), "warning")
    assert (found.cause, found.remedy) == (WORDS["dependency"], REMEDIES["dependency"])


def test_of_several_causes_each_is_told_and_none_is_the_cause() -> None:
    found = finding(FIRES["several causes"])
    assert found.cause is None
    assert [text.startswith("in 15% of a step") for text in found.evidence[:2]] == [True, True]


@pytest.mark.parametrize(("backend", "remedy"), [("gloo", OVER_GLOO), ("nccl", None)])
def test_what_is_on_gpus_is_not_for_gloo(backend: str, remedy: str | None) -> None:
    waiting = digest(world_size=1, compute=60, idle_by={"comm_wait": 40}, delay_us=3_000, backend=backend)
    found = finding(case("native", waiting))
    assert (found.cause, found.remedy) == (WORDS["comm_wait"], remedy)


def test_what_another_finding_tells_of_is_not_counted() -> None:
    assert finding(idling(dependency=30, data=40)).cost.value == pytest.approx(0.3)


@pytest.mark.parametrize(("without", "told"), [(85, 0.4), (65, 0.25), (60, None)])
def test_what_hides_without_the_waits_of_host_sync_is_not_counted(without: int, told: float | None) -> None:
    """Of 100 ms the GPU idles 20 for waits, 40 while the host runs operators; without waits a step is so long."""
    of = Replay(num_steps=10, host_times=(1.0,), step_ns=(100_000_000,), without_ns=(without * 1_000_000,))
    idle_by = {"sync": 20, "dispatch": 40}
    found = said(case("single", digest(world_size=1, compute=40, idle_by=idle_by, delay_us=3_000, replay=of)))
    assert (found.cost.value if isinstance(found, Finding) else found) == (told and pytest.approx(told))
    if told == 0.25:
        assert isinstance(found, Finding)
        assert found.evidence[-1] == "without the waits of the finding host_sync it is 15% of a step less"


def test_what_hides_is_the_mean_over_ranks_as_idle_time_is() -> None:
    """Rank 0 alone waits, 20 of its 100 ms, and hides 40 more; both idle 40 ms while the host runs operators."""
    of = Replay(num_steps=10, host_times=(1.0,), step_ns=(100_000_000,), without_ns=(40_000_000,))
    waits = digest(compute=40, idle_by={"sync": 20, "dispatch": 40}, delay_us=3_000, replay=of)
    found = said(case("ddp", waits, digest(1, compute=60, idle_by={"dispatch": 40}, delay_us=3_000)))
    # Of 40% on both the mean hides (60% + 0) / 2, less the 10% that waits.
    assert found is None
    waits = replace(waits, replay=replace(of, without_ns=(55_000_000,)))
    found = said(case("ddp", waits, digest(1, compute=60, idle_by={"dispatch": 40}, delay_us=3_000)))
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.4 - (0.45 / 2 - 0.1))


def test_it_cannot_tell_without_a_trace() -> None:
    assert isinstance(said(untraced("single", of=ranks(device="cuda:0"))), CannotTell)
