from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor.attribution.breakdown import occupancy
from dpdoctor.attribution.collective_calls import MAX_CALLS, calls, local_causes
from dpdoctor.attribution.devices import idle_causes
from dpdoctor.attribution.host_activity import activities
from dpdoctor.attribution.steps import step_windows
from dpdoctor.digest import Calls
from tests.builders.documents import needs_real_traces
from tests.builders.kineto import GLOO_A, US, WITH_COLLECTIVES, Kineto, Observed, of_two_ranks, real, recorded, shapes


def calls_of(observed: Observed) -> Calls:
    host = activities(observed.trace, observed.devices, observed.steps.thread)
    causes = {}
    for device in observed.devices:
        used = occupancy(device)
        idle = idle_causes(device, used, observed.steps, host)
        causes[device.index] = local_causes(device, used, idle, host, observed.steps.thread)
    windows = {device.index: step_windows(observed.steps, device) for device in observed.devices}
    return calls(observed.found, windows, causes)


def causes_of(found: Calls) -> list[str]:
    return [found.causes[index] for index in found.segment_cause]


def test_columns_are_those_of_the_trace(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.steps(0, 100, 200, 300)
    metadata = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 25, "Process Group Name": "0"}
    for begin, seq in ((10, 3), (110, 4), (210, 5)):
        kineto.kernel("gemm", begin - 5, begin + 2, called=begin - 8)
        kineto.kernel("ncclDevKernel_AllReduce", begin, begin + 10, called=begin - 4, **metadata, Seq=seq)
    found = calls_of(kineto.observe(tmp_path))
    assert [found.names[index] for index in found.operation] == ["all_reduce"] * 3
    assert [found.names[index] for index in found.group] == ["0"] * 3
    assert found.seq == (3, 4, 5)
    assert found.num_bytes == (100, 100, 100)
    assert found.begin_ns == (10 * US, 110 * US, 210 * US)
    assert found.end_ns == (20 * US, 120 * US, 220 * US)
    assert found.exposed_ns == (8 * US, 8 * US, 8 * US)
    assert found.step == (-1, 1, -1)  # the first and last step are not whole
    assert found.num_dropped == 0


def test_a_device_is_blamed_for_what_it_did_before_a_call(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 210, 290)
    kineto.kernel("ncclDevKernel_AllReduce", 0, 10, called=0)
    kineto.kernel("gemm", 10, 90, called=1)
    kineto.kernel("ncclDevKernel_AllReduce", 100, 110, called=2)  # after computing
    kineto.kernel("ncclDevKernel_AllReduce", 110, 200, called=3)  # at once
    kineto.kernel("ncclDevKernel_AllReduce", 300, 310, called=299)  # after the loader
    kineto.op("aten::add", 330, 390)
    kineto.kernel("ncclDevKernel_AllReduce", 400, 410, called=399)  # after operators that launch nothing
    kineto.kernel("ncclDevKernel_AllReduce", 500, 510, called=499)  # after nothing that is seen
    assert causes_of(calls_of(kineto.observe(tmp_path))) == ["none", "compute", "none", "data", "dispatch", "python"]


def test_a_host_is_blamed_for_what_its_training_thread_did(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.steps(0, 500)
    kineto.op("aten::mm", 0, 9)
    for begin in (10, 100, 200, 300):
        kineto.span("gloo:all_reduce", begin, begin + 10, thread=GLOO_A, **shapes(8))
    kineto.op("aten::mm", 20, 80)
    kineto.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 110, 190)
    kineto.op("aten::stack", 115, 185)  # of the loader
    kineto.op("aten::mm", 210, 230)  # and then asleep
    assert causes_of(calls_of(kineto.observe(tmp_path))) == ["none", "compute", "data", "python"]


def test_the_segment_begins_when_all_earlier_calls_are_done(tmp_path: Path) -> None:
    kineto = Kineto(**of_two_ranks())
    kineto.op("aten::mm", 0, 100)
    kineto.span("gloo:all_reduce", 100, 300, thread=GLOO_A, **shapes(8))
    kineto.span("gloo:all_reduce", 110, 120, thread=GLOO_A, **shapes(8))
    kineto.op("aten::mm", 121, 290)  # beside the first call
    kineto.span("gloo:all_reduce", 350, 360, thread=GLOO_A, **shapes(8))
    assert causes_of(calls_of(kineto.observe(tmp_path))) == ["none", "none", "python"]


def test_calls_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    kineto = Kineto()
    for begin in range(MAX_CALLS + 7):
        kineto.kernel("ncclDevKernel_AllReduce", begin, begin + 0.5, called=begin)
    found = calls_of(kineto.observe(tmp_path))
    assert len(found.begin_ns) == len(found.segment_cause) == len(found.step) == MAX_CALLS
    assert found.num_dropped == 7
    assert found.begin_ns[-1] == (MAX_CALLS - 1) * US


def test_a_rank_that_never_communicates(tmp_path: Path) -> None:
    kineto = Kineto()
    kineto.kernel("gemm", 0, 10, called=0)
    found = calls_of(kineto.observe(tmp_path))
    assert (found.begin_ns, found.names, found.causes, found.num_dropped) == ((), (), (), 0)


def test_recorded_calls_of_whole_steps_are_alike() -> None:
    found = calls_of(recorded("gloo_fsdp_rank0.json.gz"))
    assert sorted(found.step) == [-1] * 16 + [2] * 8 + [3] * 8
    assert set(causes_of(found)) <= {"compute", "python", "optimizer", "data", "none"}


@needs_real_traces
@pytest.mark.parametrize("name", WITH_COLLECTIVES)
def test_calls_of_real_traces_lie_in_their_steps(name: str) -> None:
    observed = real(name)
    found = calls_of(observed)
    (device,) = observed.devices
    windows = step_windows(observed.steps, device)
    spans = dict(zip(windows.numbers.tolist(), windows.spans.tolist(), strict=True))
    assert len(found.begin_ns) == len(observed.found)
    for begin, step in zip(found.begin_ns, found.step, strict=True):
        inside = [number for number, (first, last) in spans.items() if first <= begin < last]
        assert [step] == (inside or [-1])
