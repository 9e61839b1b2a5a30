"""The timeline of a step, against its budget and against looking at every event at one moment after another."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from dpdoctor.attribution import traced_steps as module
from dpdoctor.attribution.digesting import digest
from dpdoctor.attribution.parts import Part
from dpdoctor.attribution.traced_steps import FINEST, MOST_STEPS, traced_steps
from dpdoctor.digest import HOST, OPERATORS, Lane, TracedStep
from dpdoctor.trace.reader import read
from tests.builders.documents import REAL, needs_real_traces
from tests.builders.kineto import RECORDED, observe
from tests.builders.traces import AUTOGRAD, US, Recording

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
    for number, length in enumerate([100, 500, 130, 90, 120, 110, 900, 100, 125, 100]):
        recording.span(f"ProfilerStep#{number}", at, at + length)
        recording.launched(at + 10, at + 11, at + length - 1)
        at += length
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
