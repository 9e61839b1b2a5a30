"""The digest of each device of a trace: what holds for all of them, and what real traces are known to show.

The timeline of a step is held against its budget, and against looking at every event at one moment after another.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from dpdoctor.attribution import devices as module
from dpdoctor.attribution.breakdown import activities, occupancy
from dpdoctor.attribution.device_events import Part, device_events
from dpdoctor.attribution.devices import (
    FINEST,
    MOST_STEPS,
    busy_by_phase,
    devices,
    handling,
    host_phases,
    idle_causes,
    launch_delay,
    peak_bytes,
    traced_steps,
)
from dpdoctor.attribution.digesting import digest
from dpdoctor.attribution.intervals import length
from dpdoctor.attribution.steps import host_steps
from dpdoctor.digest import HOST, IDLE_CAUSES, OPERATORS, PHASES, DeviceDigest, DeviceStep, Lane, Quantiles, TracedStep
from dpdoctor.trace.model import UNKNOWN, Kind, Trace
from dpdoctor.trace.reader import read
from tests.builders.documents import REAL, needs_real_traces
from tests.builders.kineto import RECORDED, observe
from tests.builders.traces import AUTOGRAD, GLOO, MAIN, US, Recording

ALL_REAL = sorted(str(path.relative_to(REAL)) for path in REAL.rglob("*.json.gz"))


def digests(trace: Trace) -> tuple[DeviceDigest, ...]:
    steps = host_steps(trace)
    observed = device_events(trace, steps.thread)
    host = activities(trace, observed, steps.thread)
    used = {device.index: occupancy(device) for device in observed}
    idle = {device.index: idle_causes(device, used[device.index], steps, host) for device in observed}
    return devices(trace, steps, observed, used, idle)


def share(device: DeviceDigest, cause: str) -> float:
    """Return a cause of idleness as a share of the steps."""
    return sum(step.idle_by.get(cause, 0) for step in device.steps) / sum(s.breakdown.total_ns for s in device.steps)


def test_a_small_training_run() -> None:
    recording = Recording()
    for number in range(3):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.launched(at + 100, at + 110, at + 300)
        recording.op("autograd::engine::evaluate_function: MmBackward0", at + 290, at + 400, thread=AUTOGRAD)
        recording.launched(at + 300, at + 310, at + 610, thread=AUTOGRAD)
        recording.launched(at + 320, at + 500, at + 800, "ncclDevKernel_AllReduce", thread=AUTOGRAD, stream=8)
    recording.allocated(0, 4096, 8192)
    (device,) = digests(recording.trace())
    (step,) = device.steps
    assert (device.index, device.name, device.begin_ns, device.launches) == (0, "GPU A", 110 * US, 3)
    assert (device.peak_allocated_bytes, device.peak_reserved_bytes) == (4096, 8192)
    assert (step.step, step.begin_ns, step.end_ns) == (1, 800 * US, 1800 * US)
    assert (step.breakdown.compute_ns, step.breakdown.exposed_comm_ns) == (490 * US, 190 * US)
    assert step.idle_by == {"python": 300 * US, "launch_latency": 20 * US}
    assert step.phases_ns == {"forward": 190 * US, "backward": 490 * US}
    assert device.launch_delay is not None
    assert device.launch_delay.n == 9


def test_a_graph_is_launched_once() -> None:
    recording = Recording()
    for number in range(4):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        graph = recording.call("cudaGraphLaunch", at + 100, at + 110)
        for kernel in range(20):
            recording.kernel(at + 120 + 10 * kernel, at + 125 + 10 * kernel, correlation=graph)
        recording.launched(at + 500, at + 510, at + 600)
        recording.kernel(at + 700, at + 710)  # the trace does not hold its launch
    (device,) = digests(recording.trace())
    assert device.launches / len(device.steps) == 3


def test_a_step_may_begin_before_the_device_does_anything() -> None:
    recording = Recording()
    recording.span("ProfilerStep#0", 0, 200)
    recording.launched(100, 110, 300)
    (device,) = digests(recording.trace())
    assert (device.whole.idle_ns, device.idle_by) == (0, {})
    assert device.steps[0].idle_by == {"python": 100 * US, "launch_latency": 10 * US}


def test_a_device_that_the_file_does_not_name_has_no_name() -> None:
    recording = Recording(devices=())
    recording.launched(0, 5, 10)
    (device,) = digests(recording.trace())
    assert (device.name, device.steps, device.launches) == ("", (), 0)
    assert device.whole.compute_ns == 5 * US


def test_every_device_of_one_process_has_its_digest() -> None:
    recording = Recording()
    recording.launched(0, 5, 10)
    recording.launched(0, 20, 50, device=1)
    first, second = digests(recording.trace())
    assert (first.index, first.whole.total_ns) == (0, 5 * US)
    assert (second.index, second.name, second.whole.total_ns) == (1, "GPU B", 30 * US)


def test_the_host_is_the_device_of_a_trace_without_any() -> None:
    recording = Recording()
    for number in range(3):
        at = 100 * number
        recording.span(f"ProfilerStep#{number}", at, at + 100)
        recording.op("aten::mm", at + 10, at + 40)
        recording.span("gloo:all_reduce", at + 30, at + 60, thread=GLOO)
    (host,) = digests(recording.trace())
    assert (host.index, host.launches, host.launch_delay) == (HOST, 0, None)
    (step,) = host.steps
    assert (step.step, step.breakdown.compute_ns, step.breakdown.exposed_comm_ns) == (1, 30 * US, 20 * US)
    assert step.idle_by == {"python": 50 * US}


@needs_real_traces
@pytest.mark.parametrize("name", ALL_REAL)
def test_parts_causes_and_phases_of_real_traces_add_up(name: str) -> None:
    for device in digests(read(REAL / name)):
        assert sum(device.idle_by.values()) == device.whole.idle_ns
        assert set(device.idle_by) <= set(IDLE_CAUSES)
        for step in device.steps:
            assert step.breakdown.total_ns == step.end_ns - step.begin_ns
            assert sum(step.idle_by.values()) == step.breakdown.idle_ns
            assert sum(step.phases_ns.values()) == step.breakdown.total_ns - step.breakdown.idle_ns
            assert set(step.phases_ns) <= set(PHASES)


@needs_real_traces
def test_workers_of_the_loader_take_the_wait_away() -> None:
    (without,) = digests(read(REAL / "resnet50_num_workers_0.json.gz"))
    (with_four,) = digests(read(REAL / "resnet50_num_workers_4.json.gz"))
    assert share(without, "data") > 0.3
    assert share(with_four, "data") < 0.01


@needs_real_traces
def test_many_small_kernels_are_bound_by_launching() -> None:
    (device,) = digests(read(REAL / "v100x2_ddp_rank1.json.gz"))
    assert share(device, "dispatch") > 0.3
    assert device.launch_delay is not None
    assert device.launch_delay.p50_ns < 5 * US


def test_peaks_are_of_each_device() -> None:
    recording = Recording()
    for device, allocated, reserved in ((0, 5, 20), (0, 9, 20), (1, 99, 200), (0, 7, 30)):
        recording.allocated(device, allocated, reserved)
    assert peak_bytes(recording.trace(), 0) == (9, 30)
    assert peak_bytes(recording.trace(), 1) == (99, 200)


def test_what_is_not_said_is_none_not_zero() -> None:
    recording = Recording()
    recording.allocated(0, 5, UNKNOWN)
    assert peak_bytes(recording.trace(), 0) == (5, None)
    assert peak_bytes(recording.trace(), 1) == (None, None)


def test_the_hosts_allocator_counts_only_what_it_saw() -> None:
    recording = Recording()
    recording.allocated(HOST, 5, 0)
    assert peak_bytes(recording.trace(), HOST) == (None, None)


def delay(recording: Recording) -> Quantiles | None:
    trace = recording.trace()
    return launch_delay(trace, device_events(trace, MAIN)[0])


def test_it_is_from_the_end_of_the_call_to_the_begin_of_the_kernel() -> None:
    recording = Recording()
    for number, wait in enumerate((5, 1, 3, 2, 4)):
        recording.launched(100 * number, 100 * number + 2 + wait, 100 * number + 20)
    assert delay(recording) == Quantiles(n=5, p50_ns=3 * US, p90_ns=round(4.6 * US), max_ns=5 * US)


def test_a_kernel_that_begins_before_its_call_returns_did_not_wait() -> None:
    recording = Recording()
    recording.launched(10, 11, 20)
    assert delay(recording) == Quantiles(n=1, p50_ns=0, p90_ns=0, max_ns=0)


def test_only_launches_that_are_seen_and_of_single_kernels_count() -> None:
    recording = Recording()
    recording.kernel(0, 10)
    graph = recording.call("cudaGraphLaunch", 10, 12)
    recording.kernel(20, 30, correlation=graph)
    copy = recording.call("cudaMemcpyAsync", 30, 32)
    recording.on_device(Kind.MEMCPY, "Memcpy HtoD", 40, 50, correlation=copy)
    assert delay(recording) is None


def handled(recording: Recording) -> list[list[float]]:
    """Return from when to when, in microseconds."""
    trace = recording.trace()
    (device,) = device_events(trace, MAIN)
    return (handling(trace, device, MAIN) / US).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "aten::flatten_dense_tensors",
        "torch::distributed::reducer::mul_out",
        "torch.distributed.ddp.reducer::copy_bucket_to_grad",
    ],
)
def test_operators_that_copy_for_it(name: str) -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.op(name, 20, 30, thread=AUTOGRAD)
    recording.op("aten::cat", 40, 50)
    assert handled(recording) == [[20, 30]]


def test_what_the_hooks_of_fully_shard_do_besides_copying() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.span("FSDP::all_gather (blocks.1)", 20, 40)
    recording.op("fsdp::all_gather_copy_in", 22, 25)
    recording.op("c10d::_allgather_base_", 30, 32)
    recording.span("FSDP::pre_forward (blocks.1)", 15, 45)
    assert handled(recording) == [[15, 22], [25, 45]]


def test_on_a_gpu_kernels_do_that() -> None:
    recording = Recording()
    recording.launched(0, 0, 100)
    recording.op("aten::flatten_dense_tensors", 20, 30)
    assert handled(recording) == []


NODE = "autograd::engine::evaluate_function: MmBackward0"


def phases(recording: Recording) -> dict[str, float]:
    """Return the busy microseconds of each phase on the first device."""
    trace = recording.trace()
    steps = host_steps(trace)
    device, *_ = device_events(trace, steps.thread)
    return {phase: length(spans) / US for phase, spans in busy_by_phase(trace, steps, device).items()}


def step(recording: Recording, begin: float = 0) -> Recording:
    """A step of 200 µs: forward 10, backward 20 on autograd's thread, optimizer 5."""
    recording.span(f"ProfilerStep#{begin}", begin, begin + 200)
    recording.launched(begin + 10, begin + 15, begin + 25)
    recording.op(NODE, begin + 40, begin + 60, thread=AUTOGRAD)
    recording.launched(begin + 45, begin + 50, begin + 70, thread=AUTOGRAD)
    recording.span("Optimizer.step#SGD.step", begin + 80, begin + 100)
    recording.launched(begin + 90, begin + 95, begin + 100)
    return recording


def test_phases_are_by_who_launched_not_by_when_it_ran() -> None:
    recording = step(Recording())
    recording.launched(11, 130, 145)  # a forward kernel that ran last
    assert phases(recording) == {"forward": 25, "backward": 20, "optimizer": 5, "other": 0}


def test_what_is_neither_is_other() -> None:
    recording = step(Recording())
    recording.launched(70, 110, 114)  # clipping: after the last of backward, before the optimizer
    recording.span("Optimizer.zero_grad#SGD.zero_grad", 2, 5)
    recording.launched(3, 6, 8)
    correlation = recording.call("cudaMemcpyAsync", 6, 7)
    recording.on_device(Kind.MEMCPY, "Memcpy HtoD", 8, 9, correlation=correlation)
    recording.launched(230, 230, 231)  # outside of every step
    recording.kernel(240, 241)  # launched by nobody knows whom
    assert phases(recording)["other"] == 4 + 2 + 1 + 1 + 1


def test_a_hook_between_two_nodes_of_autograd_is_backward() -> None:
    recording = step(Recording())
    recording.launched(65, 120, 130, "ncclDevKernel_AllReduce", thread=AUTOGRAD)
    assert phases(recording)["backward"] == 30


def test_accumulated_forwards_are_forward_too() -> None:
    recording = step(Recording())
    recording.launched(62, 120, 122)  # the second micro-batch
    recording.op(NODE, 70, 75, thread=AUTOGRAD)
    recording.launched(72, 130, 134, thread=AUTOGRAD)
    assert phases(recording) == {"forward": 12, "backward": 24, "optimizer": 5, "other": 0}


def test_a_step_without_backward_is_forward() -> None:
    recording = step(Recording())
    recording.span("ProfilerStep#7", 200, 300)
    recording.launched(250, 255, 265)
    assert phases(recording)["forward"] == 20


def test_files_of_2021_have_only_the_nodes_names() -> None:
    recording = Recording()
    recording.op("ProfilerStep#1", 0, 200)
    recording.launched(10, 15, 25)
    recording.op("NllLossBackward", 40, 60, thread=AUTOGRAD)
    recording.launched(45, 50, 70, thread=AUTOGRAD)
    assert phases(recording) == {"forward": 10, "backward": 20, "optimizer": 0, "other": 0}


def test_on_the_host_a_collective_belongs_to_the_phase_that_queued_it() -> None:
    recording = Recording()
    recording.span("ProfilerStep#1", 0, 200)
    recording.op("aten::mm", 10, 20)
    recording.op(NODE, 40, 60)
    recording.op("c10d::allreduce_", 50, 52)
    recording.span("gloo:all_reduce", 65, 75, thread=GLOO)
    recording.span("Optimizer.step#SGD.step", 80, 100)
    recording.op("aten::add_", 90, 95)
    assert phases(recording) == {"forward": 10, "backward": 30, "optimizer": 5, "other": 0}


def step_of(recording: Recording) -> DeviceStep:
    """Return the only step, on the host."""
    (device,) = digests(recording.trace())
    (step,) = device.steps
    return step


def recorded() -> Recording:
    """A step of 200 µs: it waits 20 for data, forward takes 50, backward 80, and 15 are between them."""
    recording = Recording()
    recording.span("ProfilerStep#0", 0, 200)
    recording.op("aten::mm", 30, 40)
    recording.span("dpdoctor: data_wait", 0, 20)
    recording.span("dpdoctor: forward", 25, 75)
    recording.span("dpdoctor: backward", 90, 170)
    return recording


def test_what_no_phase_holds_is_other() -> None:
    step = step_of(recorded())
    assert {phase: ns / US for phase, ns in step.host_phases_ns.items()} == {
        "data_wait": 20,
        "forward": 50 + 15,
        "backward": 80,
        "other": 35,
    }
    assert sum(step.host_phases_ns.values()) == step.breakdown.total_ns


def test_a_forward_inside_of_the_optimizer_is_forward() -> None:
    recording = recorded()
    recording.span("dpdoctor: optimizer", 20, 180)
    found = step_of(recording).host_phases_ns
    assert (found["forward"], found["backward"], found["optimizer"]) == (50 * US, 80 * US, 30 * US)


def test_what_lies_between_two_phases_is_as_the_clock_of_the_phases_has_it() -> None:
    recording = recorded()
    recording.span("dpdoctor: data_wait", 80, 83)
    recording.span("dpdoctor: optimizer", 180, 190)
    found = step_of(recording).host_phases_ns
    assert {phase: ns / US for phase, ns in found.items()} == {
        "data_wait": 23,
        "forward": 50 + 12,
        "backward": 80,
        "optimizer": 10 + 10,
        "other": 5 + 10,
    }


def test_a_gap_from_one_step_to_the_next_is_of_no_phase() -> None:
    recording = recorded()
    recording.span("ProfilerStep#1", 200, 300)
    recording.span("dpdoctor: backward", 250, 260)
    trace = recording.trace()
    steps = host_steps(trace)
    (device,) = device_events(trace, steps.thread)
    assert length(host_phases(trace, steps, device)["backward"]) == 90 * US


def test_a_phase_of_another_thread_is_none_of_the_step() -> None:
    recording = recorded()
    recording.span("dpdoctor: optimizer", 0, 200, thread=AUTOGRAD)
    assert "optimizer" not in step_of(recording).host_phases_ns


def test_handling_is_of_the_phase_in_which_it_happens_on_any_thread() -> None:
    recording = recorded()
    recording.op("aten::flatten_dense_tensors", 50, 60)
    recording.op("torch::distributed::reducer::mul_out", 100, 130, thread=AUTOGRAD)
    recording.span("gloo:all_reduce", 110, 115, thread=GLOO)
    recording.op("aten::flatten_dense_tensors", 165, 175)
    found = step_of(recording).comm_host_ns
    assert {phase: ns / US for phase, ns in found.items()} == {"forward": 10, "backward": 30, "other": 5}


def test_on_a_gpu_the_host_is_not_what_computes() -> None:
    recording = recorded()
    recording.launched(30, 40, 50)
    trace = recording.trace()
    steps = host_steps(trace)
    (device,) = device_events(trace, MAIN)
    assert host_phases(trace, steps, device) == {}


OURS = sorted(RECORDED.rglob("*.json.gz"))
THEIRS = sorted(REAL.rglob("*.json.gz")) if REAL.is_dir() else []
WHAT = {"compute": Part.COMPUTE, "comm": Part.COMM, "h2d": Part.H2D, "copy": Part.COPY}


def lasted(step: TracedStep, what: str, device: int) -> int:
    return sum(
        sum(lane.spans_ns[1::2]) - sum(lane.spans_ns[::2])
        for lane in step.lanes
        if (lane.what, lane.device) == (what, device)
    )


def covers(step: TracedStep, what: str, device: int, time_ns: int) -> bool:
    return any(
        begin <= time_ns - step.begin_ns < end
        for lane in step.lanes
        if (lane.what, lane.device) == (what, device)
        for begin, end in zip(lane.spans_ns[::2], lane.spans_ns[1::2], strict=True)
    )


@pytest.fixture
def undivided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no gap be filled."""
    monkeypatch.setattr(module, "FINEST", 10**18)


@pytest.mark.parametrize("path", [*OURS, *THEIRS], ids=lambda path: path.name)
@pytest.mark.usefixtures("undivided")
def test_a_step_adds_up_to_its_budget(path: Path) -> None:
    found = digest(read(path))
    steps = {(device.index, step.step): step for device in found.devices for step in device.steps}
    for step in found.traced_steps:
        for device in found.devices:
            if (whole := steps.get((device.index, step.step))) is None:
                continue
            assert lasted(step, "compute", device.index) == whole.breakdown.compute_ns
            if whole.breakdown.comm_ns is not None:
                assert lasted(step, "comm", device.index) == whole.breakdown.comm_ns
            for phase, phase_ns in whole.host_phases_ns.items():
                assert phase not in {lane.what for lane in step.lanes} or lasted(step, phase, HOST) == phase_ns


@needs_real_traces
@pytest.mark.parametrize("name", ["v100x2_ddp_rank1.json.gz", "a100x8_rank3.json.gz", "mi300_resnet_rccl.json.gz"])
@pytest.mark.usefixtures("undivided")
def test_at_any_moment_it_shows_what_runs_then(name: str) -> None:
    seen = observe(read(REAL / name))
    drawn, moments, checked = traced_steps(seen.trace, seen.steps, seen.devices), random.Random(0), set()
    for step in drawn:
        for device in seen.devices:
            spans = {(part, begin, end) for part, (begin, end) in zip(device.part, device.events.spans, strict=True)}
            ends = [end for lane in step.lanes if lane.device == device.index for end in lane.spans_ns]
            for _ in range(100):
                time_ns = step.begin_ns + moments.randrange(min(ends), max(ends))
                running = {part for part, begin, end in spans if begin <= time_ns < end}
                for what, part in WHAT.items():
                    assert covers(step, what, device.index, time_ns) == (part in running)
                    checked |= {(what, part in running)}
    assert {("compute", True), ("compute", False), ("comm", True)} <= checked


def test_host_and_device_lie_on_one_axis() -> None:
    recording = Recording()
    for number in range(5):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.span("dpdoctor: forward", at + 100, at + 300)
        recording.span("dpdoctor: backward", at + 300, at + 500)
        recording.launched(at + 150, at + 160, at + 400)
        recording.launched(at + 310, at + 400, at + 700, "ncclDevKernel_AllReduce", thread=AUTOGRAD, stream=8)
    seen = observe(recording.trace())
    steps = traced_steps(seen.trace, seen.steps, seen.devices)
    assert [step.step for step in steps] == [1, 2, 3]
    step = steps[1]
    # The device is through with the step before at 1700; the host begins its step at 2000.
    assert step.begin_ns == 1700 * US
    assert step.duration_ns == 1300 * US
    spans = {(lane.device, lane.what): [at // US for at in lane.spans_ns] for lane in step.lanes}
    assert spans == {
        (HOST, "forward"): [400, 600],
        (HOST, "backward"): [600, 800],
        (HOST, "other"): [300, 400, 800, 1300],
        (0, "compute"): [460, 700],
        (0, "comm"): [700, 1000],
    }


def test_a_trace_without_our_phases_shows_when_the_host_runs_operators() -> None:
    recording = Recording()
    for number in range(3):
        recording.span(f"ProfilerStep#{number}", 1000 * number, 1000 * number + 1000)
        recording.op("aten::mm", 1000 * number + 100, 1000 * number + 300)
        recording.launched(1000 * number + 150, 1000 * number + 160, 1000 * number + 400)
    seen = observe(recording.trace())
    (step,) = traced_steps(seen.trace, seen.steps, seen.devices)
    assert {lane.what for lane in step.lanes} == {OPERATORS, "compute"}


def test_the_steps_nearest_to_the_median_are_kept_by_number() -> None:
    recording, at = Recording(), 0
    for number, lasts in enumerate([100, 500, 130, 90, 120, 110, 900, 100, 125, 100]):
        recording.span(f"ProfilerStep#{number}", at, at + lasts)
        recording.launched(at + 10, at + 11, at + lasts - 1)
        at += lasts
    seen = observe(recording.trace())
    numbers = [step.step for step in traced_steps(seen.trace, seen.steps, seen.devices)]
    assert len(numbers) == MOST_STEPS
    assert numbers == sorted(numbers)
    assert not {1, 6} & set(numbers)


def test_what_no_screen_shows_is_joined() -> None:
    recording = Recording()
    recording.span("ProfilerStep#0", 0, 100_000)
    for number in range(5_000):
        recording.launched(20 * number, 20 * number + 1, 20 * number + 11)
    seen = observe(recording.trace())
    (step,) = traced_steps(seen.trace, seen.steps, seen.devices)
    assert step.finest_ns == step.duration_ns // FINEST
    assert [len(lane.spans_ns) for lane in step.lanes if lane.what == "compute"] == [2]


def test_without_steps_there_is_none() -> None:
    recording = Recording()
    recording.launched(0, 5, 10)
    seen = observe(recording.trace())
    assert traced_steps(seen.trace, seen.steps, seen.devices) == ()


def test_communication_that_is_unknown_counts_as_compute() -> None:
    lanes = (
        Lane(device=0, what="compute", spans_ns=(0, 10, 30, 40)),
        Lane(device=0, what="comm", spans_ns=(5, 20, 50, 60)),
        Lane(device=1, what="comm", spans_ns=(1, 2)),
    )
    step = TracedStep(step=1, begin_ns=0, duration_ns=60, finest_ns=0, lanes=lanes).without_communication()
    assert {(lane.device, lane.what, lane.spans_ns) for lane in step.lanes} == {
        (0, "compute", (0, 20, 30, 40, 50, 60)),
        (1, "compute", (1, 2)),
    }


def test_joining_is_the_union() -> None:
    draw = np.random.default_rng(1)
    for _ in range(200):
        lanes = []
        for _ in range(2):
            edges = np.unique(draw.integers(0, 60, 2 * draw.integers(0, 8)))
            lanes.append(Lane(device=0, what="compute", spans_ns=tuple(edges[: len(edges) // 2 * 2].tolist())))
        left, right = (
            {t for b, e in zip(x.spans_ns[::2], x.spans_ns[1::2], strict=True) for t in range(b, e)} for x in lanes
        )
        joined = lanes[0].joined(lanes[1]).spans_ns
        assert {t for b, e in zip(joined[::2], joined[1::2], strict=True) for t in range(b, e)} == left | right
        assert list(joined) == sorted(set(joined))
