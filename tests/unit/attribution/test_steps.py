from __future__ import annotations

import numpy as np
import pytest

from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.digesting import digest
from dpdoctor.attribution.steps import StepWindows, host_steps, step_windows, training_thread
from dpdoctor.trace.model import UNKNOWN, Kind
from dpdoctor.trace.reader import read
from tests.builders.documents import REAL, needs_real_traces
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


NODE = "autograd::engine::evaluate_function: MmBackward0"


def test_optimizers_of_one_class_that_update_after_one_backward_pass_make_one_step() -> None:
    recording = Recording()
    for at in (100, 200, 300):
        recording.op(NODE, at - 70, at - 60, thread=AUTOGRAD)
        recording.span("Optimizer.step#Adam.step", at - 50, at - 40)
        recording.span("Optimizer.step#Adam.step", at - 10, at)
    assert (host_steps(recording.trace()).spans // US).tolist() == [[100, 200], [200, 300]]


def test_closures_that_run_the_backward_pass_in_the_update_leave_steps_apart() -> None:
    recording = Recording()
    for at in (100, 200, 300):
        recording.span("Optimizer.step#LBFGS.step", at - 50, at)
        recording.op(NODE, at - 40, at - 30, thread=AUTOGRAD)
    assert (host_steps(recording.trace()).spans // US).tolist() == [[100, 200], [200, 300]]


def test_updates_of_single_parameters_in_the_backward_pass_are_no_steps() -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    for at in range(20, 90, 10):
        recording.op("torch::autograd::AccumulateGrad", at, at + 9, thread=AUTOGRAD)
        recording.span("Optimizer.step#SGD.step", at + 2, at + 5, thread=AUTOGRAD)
    steps = host_steps(recording.trace())
    assert (steps.source, steps.thread) == ("none", MAIN)


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


def windows(recording: Recording, index: int = 0) -> StepWindows:
    trace = recording.trace()
    steps = host_steps(trace)
    return step_windows(steps, device_events(trace, steps.thread)[index])


def in_us(found: StepWindows) -> list[list[float]]:
    return (found.spans / US).tolist()


def run_ahead(num: int, lag: float = 250) -> Recording:
    """Host steps of 100 µs, whose two kernels of 40 µs run `lag` later."""
    recording = Recording()
    for step in range(num):
        begin = 100 * step
        recording.span(f"ProfilerStep#{step}", begin, begin + 100)
        recording.launched(begin + 20, begin + lag + 20, begin + lag + 60)
        recording.launched(begin + 60, begin + lag + 60, begin + lag + 95, thread=AUTOGRAD)
    return recording


def test_a_step_ends_with_the_last_kernel_launched_in_it_however_late_that_runs() -> None:
    found = windows(run_ahead(5))
    assert found.numbers.tolist() == [1, 2, 3]
    assert in_us(found) == [[345, 445], [445, 545], [545, 645]]


@pytest.mark.parametrize(("num", "kept"), [(0, []), (1, [0]), (2, [1]), (3, [1]), (4, [1, 2])])
def test_the_first_and_the_last_are_left_out_where_a_step_remains(num: int, kept: list[int]) -> None:
    recording = run_ahead(num)
    recording.launched(900, 1500, 1501)
    assert windows(recording).numbers.tolist() == kept


def test_the_first_step_begins_with_the_host_or_the_end_of_what_ran_before() -> None:
    assert in_us(windows(run_ahead(1))) == [[0, 345]]
    recording = run_ahead(1)
    recording.kernel(10, 130, correlation=3)  # launched before the recording
    assert in_us(windows(recording)) == [[130, 345]]


def test_a_copy_after_the_last_kernel_is_of_the_next_step() -> None:
    # The loader's next batch is copied ahead on a stream of its own.
    recording = run_ahead(3)
    correlation = recording.call("cudaMemcpyAsync", 190, 195)
    recording.on_device(Kind.MEMCPY, "Memcpy HtoD", 400, 480, correlation=correlation, stream=8)
    assert in_us(windows(recording)) == [[345, 445]]


def test_a_kernel_that_outlasts_its_step_on_another_stream_keeps_windows_disjoint() -> None:
    recording = run_ahead(4)
    recording.launched(170, 350, 600, "ncclDevKernel_AllReduce", stream=9)  # of step 1, ends after step 2's
    assert in_us(windows(recording)) == [[345, 600]]  # nothing is left for step 2


def test_the_last_kernel_to_end_need_not_be_the_last_launched() -> None:
    recording = run_ahead(3)
    recording.launched(130, 360, 450, "ncclDevKernel_AllReduce", stream=9)
    assert in_us(windows(recording)) == [[345, 450]]


def test_a_step_without_a_kernel_on_the_device_is_none_of_its_steps() -> None:
    recording = run_ahead(4)
    recording.launched(120, 500, 510, device=1)
    found = windows(recording, 1)
    assert (found.numbers.tolist(), in_us(found)) == ([1], [[100, 510]])


def test_without_known_launches_there_are_no_steps_on_a_device() -> None:
    recording = Recording()
    for step in range(4):
        recording.span(f"ProfilerStep#{step}", 100 * step, 100 * step + 100)
        recording.kernel(100 * step, 100 * step + 10)
    assert in_us(windows(recording)) == []


def test_on_the_host_they_are_its_own() -> None:
    recording = Recording()
    for step in range(4):
        recording.span(f"ProfilerStep#{step}", 100 * step, 100 * step + 99)
        recording.op("aten::mm", 100 * step, 100 * step + 10)
    assert in_us(windows(recording)) == [[100, 199], [200, 299]]


@needs_real_traces
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("v100x2_ddp_rank1.json.gz", [3, 4, 5]),
        ("a100x8_rank3.json.gz", [1010, 1011, 1012, 1013]),
        ("a100x16_sendrecv_rank0.json.gz", [551, 552, 553]),
        ("resnet50_num_workers_4.json.gz", [6, 7, 8, 9]),
        ("two_ranks_of_128/rank-0.json.gz", [552]),
        ("gloo_world300_rank34.json.gz", [551]),
        ("a100_alexnet.json.gz", []),
    ],
)
def test_windows_of_real_traces_tile_time_and_last_as_long_as_the_hosts_steps(name: str, numbers: list[int]) -> None:
    trace = read(REAL / name)
    steps = host_steps(trace)
    (device,) = device_events(trace, steps.thread)
    found = step_windows(steps, device)
    assert found.numbers.tolist() == numbers
    assert np.array_equal(found.spans[1:, 0], found.spans[:-1, 1])
    on_host = steps.spans[np.isin(steps.numbers, numbers)]
    assert np.diff(found.spans).sum() == pytest.approx(np.diff(on_host).sum(), rel=0.02)


def test_steps_that_lack_a_kernel_and_those_after_them_are_not_whole() -> None:
    recording = Recording()
    for number in range(8):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.launched(at + 100, at + 110, at + 300)
        correlation = recording.call("cudaLaunchKernel", at + 200, at + 202)
        if number not in (3, 7):  # in the last one the recording ended
            recording.kernel(at + 300, at + 600, correlation=correlation)
    assert windows(recording).numbers.tolist() == [1, 2, 5, 6]
    (note,) = digest(recording.trace()).notes
    assert note.startswith("1 kernel that the host launched is not in the trace")


def test_what_is_captured_for_a_graph_is_no_lost_kernel() -> None:
    recording = Recording()
    for number in range(4):
        at = 1000 * number
        recording.span(f"ProfilerStep#{number}", at, at + 1000)
        recording.launched(at + 100, at + 110, at + 300)
    recording.call("cudaStreamBeginCapture", 1310, 1312)
    recording.call("cudaLaunchKernel", 1320, 1322)
    recording.call("cudaStreamEndCapture", 1330, 1332)
    assert windows(recording).numbers.tolist() == [1, 2]
    assert digest(recording.trace()).notes == ()
