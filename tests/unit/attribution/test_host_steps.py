from __future__ import annotations

import numpy as np
import pytest

from dpdoctor.attribution.host_steps import host_steps, training_thread
from dpdoctor.trace.columns import UNKNOWN
from tests.builders.traces import AUTOGRAD, MAIN, US, Recording


def test_the_profilers_steps_come_first() -> None:
    recording = Recording()
    for number, begin in ((8, 110), (7, 10)):
        recording.span(f"ProfilerStep#{number}", begin, begin + 99)
        recording.span("Optimizer.step#SGD.step", begin + 50, begin + 60)
    steps = host_steps(recording.trace())
    assert (steps.source, steps.thread, steps.numbers.tolist()) == ("ProfilerStep", MAIN, [7, 8])
    assert (steps.spans // US).tolist() == [[10, 109], [110, 209]]


def test_steps_that_overlap_are_cut_where_the_next_begins() -> None:
    recording = Recording()
    recording.span("ProfilerStep#1", 0, 30)
    recording.span("ProfilerStep#2", 20, 40)
    assert (host_steps(recording.trace()).spans // US).tolist() == [[0, 20], [20, 40]]


def test_files_of_2021_call_them_operators() -> None:
    recording = Recording()
    recording.op("ProfilerStep#3", 0, 100)
    assert host_steps(recording.trace()).numbers.tolist() == [3]


def test_else_a_step_is_from_update_to_update_of_the_optimizer_that_steps_most() -> None:
    recording = Recording()
    for at in (100, 200, 300, 400):
        recording.span("Optimizer.step#SGD.step", at - 10, at)
    recording.span("Optimizer.step#Adam.step", 240, 250)
    steps = host_steps(recording.trace())
    assert (steps.source, steps.numbers.tolist()) == ("Optimizer.step", [0, 1, 2])
    assert (steps.spans // US).tolist() == [[100, 200], [200, 300], [300, 400]]


def test_of_two_optimizers_alike_the_later_ends_the_step() -> None:
    recording = Recording()
    for at in (100, 200, 300):
        recording.span("Optimizer.step#D.step", at - 50, at - 40)
        recording.span("Optimizer.step#G.step", at - 10, at)
    assert (host_steps(recording.trace()).spans // US).tolist() == [[100, 200], [200, 300]]


@pytest.mark.parametrize("name", ["ProfilerStep", "ProfilerStep#", "ProfilerStep#1 again", f"ProfilerStep#{9**99}"])
def test_there_may_be_none(name: str) -> None:
    recording = Recording()
    recording.op(name, 0, 100)
    steps = host_steps(recording.trace())
    assert (steps.source, len(steps.spans)) == ("none", 0)
    assert steps.of(np.array([5])).tolist() == [-1]


def test_a_time_is_in_one_step_or_none() -> None:
    recording = Recording()
    recording.span("ProfilerStep#0", 10, 20)
    recording.span("ProfilerStep#1", 22, 30)
    times = np.array([0, 10, 19, 20, 22, 29, 30]) * US
    assert host_steps(recording.trace()).of(times).tolist() == [-1, 0, 0, -1, 1, 1, -1]


def test_the_training_thread_has_the_steps_not_most_operators() -> None:
    recording = Recording()
    for at in range(9):
        recording.op("aten::add", at, at + 1, thread=MAIN)
    recording.span("Optimizer.step#SGD.step", 3, 4, thread=AUTOGRAD)
    assert training_thread(recording.trace()) == AUTOGRAD


def test_without_steps_it_is_the_main_thread_of_the_process() -> None:
    recording = Recording()
    for at in range(9):
        recording.op("aten::add", at, at + 1, thread=AUTOGRAD)
    assert training_thread(recording.trace()) == AUTOGRAD
    recording.op("aten::add", 0, 1, thread=MAIN)  # its thread id is the process id
    assert training_thread(recording.trace()) == MAIN


def test_a_trace_of_a_device_alone_has_no_thread() -> None:
    recording = Recording()
    recording.kernel(0, 1)
    assert training_thread(recording.trace()) == UNKNOWN
    assert training_thread(Recording().trace()) == UNKNOWN
