"""Steps replayed without waits: as a plain simulation has them, and as a GPU ran them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from dpdoctor.attribution import replay as module
from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.replay import HOST_TIMES, replay
from dpdoctor.attribution.steps import host_steps
from dpdoctor.digest import Replay
from dpdoctor.trace.model import Kind
from tests.builders.kineto import recorded
from tests.builders.traces import AUTOGRAD, MAIN, US, Recording

STEPS = 8
CALL = 2.0  # µs that a call of the runtime takes
COPY = 1.0
TO_HOST = "Memcpy DtoH (Device -> Pinned)"
TO_DEVICE = "Memcpy HtoD (Pageable -> Device)"
SYNC = "cudaStreamSynchronize"

# What one step does, one after the other: ("host", µs), ("kernel", µs), ("item", 0), ("all", 0) for synchronize(),
# ("to_device", µs), a copy that the host waits for, and ("large", µs), one whose call waits by itself.
Program = Sequence[tuple[str, float]]


@dataclass
class Simulation:
    """A host and one stream in plain Python; what happens is recorded."""

    recording: Recording
    host: float = 0.0
    device: float = 0.0
    factor: float = 1.0
    waits: bool = True

    def run(self, program: Program) -> None:
        for what, length in program:
            if what == "host":
                self.host += length * self.factor
            elif what == "kernel":
                self.launch("cudaLaunchKernel", Kind.KERNEL, "gemm", length)
            elif what == "item":
                self.launch("cudaMemcpyAsync", Kind.MEMCPY, TO_HOST, COPY)
                self.wait(SYNC, can_go=True)
            elif what == "to_device":
                self.launch("cudaMemcpyAsync", Kind.MEMCPY, TO_DEVICE, length)
                self.wait(SYNC, can_go=False)
            elif what == "large":
                called, begin = self.host, max(self.host, self.device)
                self.host = self.device = begin + length
                correlation = self.recording.call("cudaMemcpyAsync", called, self.host)
                self.recording.on_device(Kind.MEMCPY, TO_DEVICE, begin, self.device, correlation=correlation)
            else:
                self.wait("cudaDeviceSynchronize", can_go=True)

    def launch(self, call: str, kind: Kind, name: str, length: float) -> None:
        called = self.host
        self.host += CALL * self.factor
        begin = max(self.host, self.device)
        self.device = begin + length
        correlation = self.recording.call(call, called, self.host)
        self.recording.on_device(kind, name, begin, self.device, correlation=correlation)

    def wait(self, call: str, *, can_go: bool) -> None:
        if can_go and not self.waits:
            return
        begin, self.host = self.host, max(self.host, self.device)
        self.recording.call(call, begin, self.host)


def recorded_steps(program: Program) -> Recording:
    """Return the trace of STEPS steps."""
    simulation = Simulation(Recording())
    for number in range(STEPS):
        begin = simulation.host
        simulation.run(program)
        simulation.recording.span(f"ProfilerStep#{number}", begin, simulation.host)
    return simulation.recording


def simulated_us(program: Program, factor: float, *, waits: bool) -> float:
    """Return the length of a step once the host is ahead, on a host that takes `factor` of its time."""
    simulation = Simulation(Recording())
    simulation.run(program)
    simulation.factor, simulation.waits = factor, waits
    through = []
    for _ in range(2):
        for _ in range(STEPS - 2):
            simulation.run(program)
        through.append(max(simulation.host, simulation.device))
    return (through[1] - through[0]) / (STEPS - 2)


def replayed(recording: Recording) -> Replay | None:
    trace = recording.trace()
    steps = host_steps(trace)
    return replay(trace, steps, device_events(trace, steps.thread))


def of(program: Program) -> tuple[float, float]:
    """Return the replayed step in µs: as it was, and without waits."""
    found = replayed(recorded_steps(program))
    assert found is not None
    return found.step_ns[0] / US, found.without_ns[0] / US


def test_loading_hides_behind_kernels_without_a_wait() -> None:
    # 300 µs of loading, two calls, and 1,001 µs on the device; without waiting the device is all that counts.
    step, without = of([("host", 300), ("kernel", 1000), ("item", 0)])
    assert step == pytest.approx(1303)
    assert without == pytest.approx(1001)


def test_a_host_that_is_slower_than_the_device_gains_no_more_than_it_waits() -> None:
    step, without = of([("host", 300), ("kernel", 100), ("all", 0)])
    assert (step, without) == (pytest.approx(402), pytest.approx(302, abs=17))  # the last kernel ends after the host


def test_a_copy_that_the_host_waits_for_keeps_it_from_running_ahead() -> None:
    # After the copy nothing is queued, with or without item(): loading lies between it and the kernel.
    step, without = of([("to_device", 20), ("host", 300), ("kernel", 1000), ("item", 0)])
    assert step == pytest.approx(1325)
    assert without == pytest.approx(step, rel=0.01)


def test_work_that_is_put_off_beyond_the_last_step_is_no_gain() -> None:
    step, without = of([("kernel", 1000), ("item", 0)])
    assert without == pytest.approx(step, rel=0.01)


@pytest.mark.parametrize("seed", range(40))
def test_it_is_as_a_plain_simulation_has_it(seed: int) -> None:
    rng = random.Random(seed)
    kinds = rng.choices(("host", "kernel", "kernel", "item", "all", "to_device", "large"), k=rng.randint(3, 15))
    program = [("kernel", 50.0), *((kind, float(rng.randint(12, 300))) for kind in kinds), ("item", 0.0)]
    found = replayed(recorded_steps(program))
    assert found is not None
    assert (found.num_steps, found.host_times) == (STEPS - 2, HOST_TIMES)
    for factor, step, without in zip(HOST_TIMES, found.step_ns, found.without_ns, strict=True):
        assert step / US == pytest.approx(simulated_us(program, factor, waits=True), abs=1)
        assert without / US == pytest.approx(simulated_us(program, factor, waits=False), abs=1)


def one_wait(call: str = SYNC, *, copy: str | None = None, inside: str = "", thread: int = MAIN) -> Recording:
    """Return three steps, of which each launches a kernel, may copy, and waits for that, perhaps in an operator."""
    recording = Recording()
    for number in range(3):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.launched(at + 100, at + 102, at + 600)
        if copy is not None:
            correlation = recording.call("cudaMemcpyAsync", at + 110, at + 112, thread=thread)
            recording.on_device(Kind.MEMCPY, copy, at + 600, at + 601, correlation=correlation)
        recording.call(call, at + 120, at + 602, thread=thread)
        if inside:
            recording.op(inside, at + 109, at + 610, thread=thread)
    return recording


@pytest.mark.parametrize(
    "recording",
    [
        one_wait(copy=TO_HOST, inside="aten::item"),
        one_wait(),
        one_wait("cudaDeviceSynchronize"),
        one_wait("hipDeviceSynchronize"),
    ],
    ids=["value", "stream", "device", "ROCm"],
)
def test_waits_that_can_be_left_out(recording: Recording) -> None:
    found = replayed(recording)
    assert found is not None
    assert found.without_ns[0] < found.step_ns[0]


@pytest.mark.parametrize(
    "recording",
    [
        one_wait(copy=TO_DEVICE, inside="aten::copy_"),
        one_wait("cudaEventSynchronize"),
        one_wait(copy=TO_HOST, inside="c10d::allreduce_"),
        one_wait(inside="aten::unknown"),
        one_wait(copy=TO_HOST, thread=AUTOGRAD),
        one_wait("cudaMalloc"),
    ],
    ids=["copy to the device", "event", "collective", "operator", "other thread", "none"],
)
def test_other_waits_stay(recording: Recording) -> None:
    assert replayed(recording) is None


def test_a_copy_into_pageable_memory_waits_by_itself() -> None:
    recording = Recording()
    for number in range(4):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.launched(at + 300, at + 302, at + 900)
        correlation = recording.call("cudaMemcpyAsync", at + 310, at + 910)
        recording.on_device(
            Kind.MEMCPY, "Memcpy DtoH (Device -> Pageable)", at + 900, at + 902, correlation=correlation
        )
    found = replayed(recording)
    assert found is not None
    # 400 µs of the host in place of 1,000; 600 µs of the device.
    assert (found.step_ns[0], found.without_ns[0]) == (1000 * US, pytest.approx(600 * US, rel=0.1))


def test_where_the_script_asks_to_wait_after_a_copy_to_the_device_it_need_not() -> None:
    recording = Recording()
    for number in range(3):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        correlation = recording.call("cudaMemcpyAsync", at + 110, at + 112, external=1)
        recording.on_device(Kind.MEMCPY, TO_DEVICE, at + 112, at + 602, correlation=correlation)
        recording.call(SYNC, at + 120, at + 602, external=2)
    assert replayed(recording) is not None


def test_what_holds_up_the_device_goes_on_doing_so() -> None:
    recording = Recording()
    for number in range(STEPS):
        at = 500 * number
        recording.span(f"ProfilerStep#{number}", at, at + 500)
        recording.launched(at, at + 2, at + 12)
        recording.launched(at + 10, at + 12, at + 22)
        recording.launched(at + 20, at + 322, at + 422)  # 300 µs later than it might
        recording.call("cudaDeviceSynchronize", at + 22, at + 422)
    found = replayed(recording)
    assert found is not None
    assert (found.step_ns[0], found.without_ns[0]) == (500 * US, 420 * US)


def test_what_waited_for_another_stream_still_does() -> None:
    recording = Recording()
    for number in range(STEPS):
        at = 910 * number
        recording.span(f"ProfilerStep#{number}", at, at + 910)
        recording.launched(at + 300, at + 302, at + 802, stream=20)
        recording.launched(at + 304, at + 802, at + 902)
        recording.call("cudaDeviceSynchronize", at + 306, at + 902)
    found = replayed(recording)
    assert found is not None
    assert (found.step_ns[0], found.without_ns[0]) == (910 * US, 600 * US)


@pytest.mark.parametrize("num_events", [16_384, 40_000])
def test_devices_stay_apart_whatever_else_was_recorded(num_events: int) -> None:
    recording = Recording()
    for number in range(num_events - 2 * STEPS):
        recording.kernel(-1 - number, -0.5 - number)
    for number in range(STEPS):
        at = 1300 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1300)
        recording.launched(at + 290, at + 292, at + 1292, device=4)
        recording.launched(at + 294, at + 296, at + 306)
        recording.call("cudaDeviceSynchronize", at + 298, at + 1292)
    found = replayed(recording)
    assert found is not None
    assert (found.step_ns[0], found.without_ns[0]) == (1300 * US, 1000 * US)


def test_of_many_launches_only_the_first_steps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = [("host", 300.0), ("kernel", 1000.0), ("item", 0.0)]
    monkeypatch.setattr(module, "MOST_LAUNCHES", 5)
    found = replayed(recorded_steps(program))
    assert found is not None
    assert (found.num_steps, found.without_ns[0]) == (2, pytest.approx(1001 * US))


def test_what_the_replay_does_not_get_right_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_OFF", -0.01)
    assert replayed(one_wait()) is None


def test_a_lost_launch_is_not_guessed() -> None:
    recording = one_wait()
    recording.kernel(1700, 1800)
    assert replayed(recording) is None


def test_the_profilers_own_waits_are_not_the_scripts() -> None:
    recording = Recording()
    for number in range(3):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.launched(at + 100, at + 102, at + 600)
    recording.call("cudaDeviceSynchronize", 2120, 2602)
    assert replayed(recording) is None


def test_what_a_gpu_ran() -> None:
    # An H100 with 16 calls of item() a step: its kernels take 8.6 ms of 14 ms, and the host waits for most of the rest.
    seen = recorded("h100_item_rank0.json.gz")
    found = replay(seen.trace, seen.steps, seen.devices)
    assert found is not None
    gain = [1 - without / step for step, without in zip(found.step_ns, found.without_ns, strict=True)]
    assert 0.1 < gain[0] < max(gain) < 0.3
    assert min(found.without_ns) > 8.5e6
