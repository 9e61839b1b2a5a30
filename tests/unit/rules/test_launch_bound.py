"""launch_bound: idle for the host, at delays of microseconds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Finding
from dpdoctor.digest import DataParallelCost, NamedTime
from dpdoctor.rules import CannotTell
from dpdoctor.rules.launch_bound import RULE
from tests.builders.cases import case as untraced
from tests.builders.cases import figure, ranks
from tests.builders.traced_cases import case, digest, real_cases


def one(dispatch: int, *, delay_us: float | None = 8, gpu: bool = True, cause: str = "dispatch") -> list:
    """Return one rank whose step of 100 ms idles so long."""
    return [digest(world_size=1, compute=100 - dispatch, idle_by={cause: dispatch}, delay_us=delay_us, gpu=gpu)]


FIRES = {
    "launch-bound": case("single", *one(40)),
    **real_cases(a100="a100x2_ddp_rank0_collective_args.json.gz", mi250="mi250_minitoy.json.gz"),
}
SILENT = {
    "a little idle": case("single", *one(6)),
    "the host is ahead": case("single", *one(40, delay_us=3_000)),
    "idle for data": case("single", *one(40, cause="data")),
    "only the profiler made it idle": case("single", *one(40), step=figure(0.061, 0.001)),
    "on the CPU": case("single", *one(40, gpu=False)),
    **real_cases(resnet50="resnet50_num_workers_4.json.gz"),
}


def test_the_idle_share_is_that_of_the_step_without_a_profiler() -> None:
    # 60 ms of work in a step of 75 ms: 15 ms idle, all of it the host's.
    found = RULE.check(case("single", *one(40), step=figure(0.075, 0.001)))
    assert isinstance(found, Finding)
    assert found.cost.value == pytest.approx(0.2)


def test_all_ranks_wait_for_the_one_that_idles_longest() -> None:
    """Without the 60 ms in which rank 0 launches a step takes 40; with the mean of both it would seem to take 60."""
    uneven = (
        digest(compute=40, idle_by={"dispatch": 60}),
        digest(1, compute=40, exposed=40, idle_by={"dispatch": 20}),
    )
    found = RULE.check(case("ddp", *uneven))
    assert isinstance(found, Finding)
    assert (found.cost.value, found.speedup and found.speedup.value) == (pytest.approx(0.6), pytest.approx(2.5))
    assert "on the rank where that is longest" in found.evidence[0]
    # Without a profiler 10 ms less: 40 of 90 are work of rank 0, and the rest is its host's.
    untraced = RULE.check(case("ddp", *uneven, step=figure(0.09, 0.001)))
    assert isinstance(untraced, Finding)
    assert untraced.cost.value == pytest.approx(50 / 90)


def test_it_cannot_tell_without_a_trace_or_launches() -> None:
    assert isinstance(RULE.check(case("single", *one(40, delay_us=None))), CannotTell)
    assert isinstance(RULE.check(untraced("single", of=ranks(device="cuda:0"))), CannotTell)


def test_what_the_script_does_already_is_not_advised() -> None:
    def remedy(*names: str) -> tuple[str | None, str | None]:
        operators = tuple(NamedTime(name=name, count=1, total_ns=1, self_ns=1) for name in names)
        found = RULE.check(case("single", *(replace(one_of, operators=operators) for one_of in one(40))))
        assert isinstance(found, Finding)
        return found.remedy, found.code

    plain, code = remedy("aten::add")
    assert "fused optimizer" in str(plain)
    assert "torch.compile" in str(code)
    compiled, code = remedy("CompiledFunctionBackward", "aten::_fused_adam_")
    assert "fused optimizer" not in str(compiled)
    assert "torch.compile" not in str(compiled)
    assert code is None


def test_of_data_parallel_it_is_the_replicas_threads() -> None:
    own = DataParallelCost(scatter_ns=1, replicate_ns=1, parallel_apply_ns=1, gather_ns=1, reduce_ns=1, device_ns={})
    found = RULE.check(case("dp", *(replace(one_of, data_parallel=own) for one_of in one(40))))
    assert isinstance(found, Finding)
    assert (found.short_remedy, found.code) == ("use DistributedDataParallel", "DistributedDataParallel(model)")
