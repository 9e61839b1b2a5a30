from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpdoctor import rundir
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import AblationRecord, Check, RankRecord, StepRecord, WindowRecord
from dpdoctor.spec import Recording
from dpdoctor.worker import conductor, report
from dpdoctor.worker.ablation_runner import AblationRunner
from dpdoctor.worker.ablations._base import Ablation, AblationContext, Precision
from dpdoctor.worker.ablations.amp import ABLATION as AMP
from dpdoctor.worker.ablations.unwatched import ABLATION as UNWATCHED
from dpdoctor.worker.base.agreement import Alone
from dpdoctor.worker.base.director import FULL, Director
from dpdoctor.worker.base.mode import Evidence, Mode, Passes
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.conductor import APART, NO_UPDATE, NOTHING_WRAPPED, UNSEEN, Conductor
from dpdoctor.worker.ending import Ending, Stop
from dpdoctor.worker.meeting import Parts
from dpdoctor.worker.modes.single import MODE as SINGLE
from dpdoctor.worker.report import Report, Sources
from dpdoctor.worker.setup import Seeding
from dpdoctor.worker.timing.exchanges import Exchanges
from dpdoctor.worker.timing.recorder import HookCost, Recorder, StepLog
from tests.builders.rig import Rig

STEP_NS = 10_000_000
BUDGET_NS = 60_000_000_000


class QuietEnding(Ending):
    """Unwinds the script, and leaves the process of the tests alone."""

    def stop(self, status: str, reason: str | None = None) -> NoReturn:
        self.status, self.reason = status, reason
        raise Stop


class Meetings(Alone):
    """One process that notes what it would have told the others."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []

    def gather(self, numbers: list[int]) -> list[list[int]]:
        self.told.append(numbers)
        return super().gather(numbers)


class Refuted(Mode):
    """Mode `single`, whose proof fails."""

    summary = "for tests"
    convert = SINGLE.convert

    def checks(self, evidence: Evidence) -> list[Check]:
        return [*super().checks(evidence), Check(name="planted", ok=False, text="nothing was reduced")]


class Replicated(Mode):
    """Mode `single`, said to hold equal parameters on all ranks."""

    summary = "for tests"
    convert = SINGLE.convert
    replicates = True


class Conducted(Rig):
    """A rank in mode `single` whose steps all take STEP_NS, with a conductor that follows `recording`."""

    def __init__(
        self,
        patches: Patches,
        directory: Path,
        recording: Recording,
        *,
        has_unused: bool = False,
        ablations: dict[str, Ablation] | None = None,
        mode: Mode = SINGLE,
    ) -> None:
        super().__init__(patches, unused=("weight",) if has_unused else ())
        self.directory = directory
        self.recorder = Recorder(directory, self.clock)
        self.ending = QuietEnding(lambda *_: None, lambda: None)
        heartbeat = Heartbeat(directory, 1, self.clock)
        self.steplog = steplog = StepLog(
            self.clock, self.phases, self.tally, self.recorder, heartbeat, hook=HookCost(0, 0)
        )
        record = RankRecord(rank=0, world_size=1, pid=1, host="box", device="cpu", backend=None, status="running")
        sources = Sources(
            wrapping=self.wrapping,
            optimizers=self.optimizers,
            loaders=self.loaders,
            patches=patches,
            tally=self.tally,
            steplog=steplog,
            stage=lambda: heartbeat.stage,
            ablations=self._ablation_records,
        )
        context = AblationContext(
            mode=SINGLE,
            world_size=1,
            wrapping=self.wrapping,
            watch=self.watch,
            tally=self.tally,
            replay=self.loaders.replay,
            companion=self.loaders.companion,
            precision=Precision(),
            optimizers=self.optimizers,
            optimizer_share=lambda: None,
            hooks=self.hooks(),
        )
        self.ablation_runner = AblationRunner(ablations or {}, context, Alone(), time_budget_s=recording.time_budget_s)
        self.report = Report(directory, record, 0, sources, finds_unused=True)
        director = Director(recording, (FULL, *(ablations or {})), seed=0)
        self.meetings = Meetings()
        parts = Parts(
            mode=mode,
            directory=directory,
            clock=self.clock,
            phases=self.phases,
            steplog=steplog,
            counter=self.counter,
            watch=self.watch,
            wrapping=self.wrapping,
            loaders=self.loaders,
            recorder=self.recorder,
            heartbeat=heartbeat,
            agreement=self.meetings,
            ablation_runner=self.ablation_runner,
            director=director,
            ending=self.ending,
            report=self.report,
            seeding=Seeding(0),
            hooks=context.hooks,
        )
        self.conductor = Conductor(parts, director.first())

    def _ablation_records(self) -> tuple[AblationRecord, ...]:
        return self.ablation_runner.records()

    def on_step(self) -> None:
        self.conductor.on_step()

    def after_backward(self) -> None:
        super().after_backward()
        if self.counter.under_way:
            self.conductor.passed_in_step(BUDGET_NS * 1e-9)

    def train(self, num_steps: int, *, inside_a_module: bool = True) -> None:
        """Be the script: take so many steps, or fewer when told to stop."""
        module = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.clock.tick(STEP_NS)
            x = torch.ones(4, 3)
            (module(x) if inside_a_module else x @ module.weight.t()).mean().backward()
            self.optimizer.step()

    def windows(self) -> tuple[WindowRecord, ...]:
        return rundir.read_lines(self.directory / rundir.WINDOWS, WindowRecord)

    def steps_taken(self) -> tuple[StepRecord, ...]:
        return rundir.read_lines(self.directory / rundir.STEPS, StepRecord)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


SHORT = Recording(warmup=3, steps=5, rounds=2, trace_steps=2)


@pytest.fixture
def conducted(patches: Patches, directory: Path) -> Iterator[Conducted]:
    found = Conducted(patches, directory, SHORT)
    yield found
    found.conductor.close()


def test_a_whole_recording(conducted: Conducted) -> None:
    with pytest.raises(Stop):
        conducted.train(1000)
    assert conducted.ending.status == "ok"
    windows = conducted.windows()
    assert [(w.kind, w.num_steps, w.first_step) for w in windows] == [
        ("warmup", 3, 1),
        ("proof", 1, 4),
        ("measure", 5, 6),
        ("measure", 5, 12),
        ("trace", 2, 18),
    ]
    assert [w.end_ns - w.begin_ns for w in windows] == [w.num_steps * STEP_NS for w in windows]
    assert all(w.complete for w in windows)
    steps = conducted.steps_taken()
    assert [s.step for s in steps] == list(range(1, 20))
    assert [s.step for s in steps if not s.counted] == [5, 11, 17], "the first step after an edge"
    assert {s.duration_ns for s in steps} == {STEP_NS}
    assert (conducted.directory / rundir.TRACE).stat().st_size > 0


@pytest.mark.parametrize("wanted", [True, False])
def test_loaders_are_tried_at_the_end_where_that_is_wanted(
    patches: Patches, directory: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    found, tried = Conducted(patches, directory, replace(SHORT, loader_trials=wanted)), []
    monkeypatch.setattr(found.loaders, "measure_hand_offs", lambda: tried.append(len(found.steps_taken())))
    with pytest.raises(Stop):
        found.train(1000)
    found.conductor.close()
    assert len(tried) == wanted


def test_the_proof_settles_the_conversion_and_lets_go_of_the_inputs(conducted: Conducted) -> None:
    conducted.train(6)
    record = rundir.read_json(conducted.directory / rundir.RANK, RankRecord)
    assert [check.ok for check in record.conversion.proof] == [True]
    assert record.counters is not None
    assert [tensor.shape for tensor in record.counters.inputs] == [(4, 3)]
    assert record.counters.micro_batches == 1
    assert conducted.watch.inputs == []
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


@pytest.mark.parametrize(("issued", "told"), [(0, []), (3, [UNSEEN.format(0, "3 collectives")])])
def test_collectives_that_the_profiler_does_not_see_are_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, conducted: Conducted, issued: int, told: list[str]
) -> None:
    conducted.steplog.exchanges = exchanges = Exchanges(conducted.phases, times=False)
    numbers = count(0, issued)
    monkeypatch.setattr(exchanges, "_sequence_numbers", lambda: next(numbers))
    conducted.train(6)
    assert list(rundir.read_json(conducted.directory / rundir.RANK, RankRecord).conversion.warnings) == told


def test_a_proof_that_fails_ends_the_mode_before_anything_is_measured(patches: Patches, directory: Path) -> None:
    conducted = Conducted(patches, directory, SHORT, mode=Refuted())
    with pytest.raises(Stop):
        conducted.train(1000)
    conducted.conductor.close()
    assert (conducted.ending.status, conducted.ending.reason) == ("failed", "nothing was reduced")
    assert [window.kind for window in conducted.windows()] == ["warmup", "proof"]


@pytest.mark.parametrize(("difference", "status"), [(0, "ok"), (1, "failed")])
def test_parameters_that_differ_from_a_peers_after_the_last_window_fail_the_mode(
    patches: Patches, directory: Path, monkeypatch: pytest.MonkeyPatch, difference: int, status: str
) -> None:
    conducted = Conducted(patches, directory, replace(SHORT, trace_steps=0), mode=Replicated())

    def peer(numbers: list[int]) -> list[int]:
        """Return what a peer would say: of checks as much, of the parameters another sum."""
        return [number + difference * (number > 1) for number in numbers]

    monkeypatch.setattr(conducted.meetings, "gather", lambda numbers: [numbers, peer(numbers)])
    with pytest.raises(Stop):
        conducted.train(1000)
    conducted.conductor.close()
    assert conducted.ending.status == status
    assert (conducted.ending.reason or "").startswith(APART if difference else "")


def test_ranks_meet_between_the_start_of_the_profiler_and_the_traced_steps(conducted: Conducted) -> None:
    with pytest.raises(Stop):
        conducted.train(1000)
    assert conducted.meetings.told[-2] == [0], "after it only the end of the traced steps"


@pytest.mark.parametrize(("num_steps", "status"), [(8, "failed"), (14, "ok")])
def test_another_model_ends_the_mode_with_what_was_measured(conducted: Conducted, num_steps: int, status: str) -> None:
    conducted.train(num_steps)
    with pytest.raises(Stop):
        conducted.train(1000)
    assert conducted.ending.status == status
    if status == "failed":
        assert "the script trains another model" in (conducted.ending.reason or "")
    else:
        assert conducted.ending.reason is None
    assert len(conducted.steps_taken()) == num_steps


def test_another_model_before_the_proof_is_wrapped_too(conducted: Conducted) -> None:
    conducted.train(2)
    with pytest.raises(Stop):
        conducted.train(1000)
    assert conducted.ending.status == "ok"
    assert len(conducted.wrapping.modules) == 2
    conversion = rundir.read_json(conducted.directory / rundir.RANK, RankRecord).conversion
    assert conversion.warnings[-1].startswith("the script trains one model after another")
    assert [module.unused for module in conversion.modules] == [()] * 2


def test_how_long_a_model_trained_is_told_without_the_models_before_it(conducted: Conducted) -> None:
    conducted.train(2)
    conducted.train(13)
    with pytest.raises(Stop):
        conducted.train(1000)
    assert (conducted.ending.reason or "").startswith("after 13 steps the script trains another model")


def test_a_script_that_ends_in_a_window_leaves_what_it_trained_and_not_what_it_did_after(conducted: Conducted) -> None:
    conducted.train(15)
    conducted.clock.tick(1000 * STEP_NS)
    assert conducted.conductor.script_returned() == ("ok", None)
    cut = conducted.windows()[-1]
    assert (cut.kind, cut.num_steps, cut.end_ns - cut.begin_ns) == ("measure", 4, 4 * STEP_NS)
    # On a machine with a GPU it is not known when the device was done.
    assert cut.complete is not torch.cuda.is_available()


def test_a_window_of_very_few_steps_is_not_complete(conducted: Conducted) -> None:
    conducted.train(13)
    assert conducted.conductor.script_returned() == ("ok", None)
    assert [w.complete for w in conducted.windows()] == [True, True, True, False]


@pytest.mark.parametrize(
    ("num_steps", "said"), [(0, "without a training step"), (2, "ended after 2 steps"), (8, "ended after 8 steps")]
)
def test_a_script_that_ends_too_soon_says_so(conducted: Conducted, num_steps: int, said: str) -> None:
    conducted.train(num_steps)
    status, reason = conducted.conductor.script_returned()
    assert status == "failed"
    assert said in (reason or "")


def test_a_script_whose_optimizer_takes_no_step_is_told_that_it_ran_backward_passes(
    conducted: Conducted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SINGLE, "passes", Passes(num_ended=12))
    _, reason = conducted.conductor.script_returned()
    assert reason == NO_UPDATE.format("12 backward passes")


class Often(torch.optim.SGD):
    """Evaluates its closure many times in one step."""

    def step(self, closure: Callable[[int], None]) -> None:  # type: ignore[override]
        for number in range(300):
            closure(number)


@pytest.mark.parametrize(
    "passes_in",
    [lambda _: 1, lambda number: int(number > 0), lambda number: 1 - number % 2, lambda _: 2],
    ids=["each", "all but the first", "every second", "two in each"],
)
@pytest.mark.parametrize("is_over", [True, False])
def test_a_step_that_does_not_return_is_ended_by_its_own_time_whatever_its_evaluations_run(
    conducted: Conducted, passes_in: Callable[[int], int], is_over: bool
) -> None:
    weight = nn.Parameter(torch.ones(()))
    optimizer = Often([weight], lr=0.1)
    conducted.clock.tick(10 * BUDGET_NS)

    def closure(number: int) -> None:
        for _ in range(passes_in(number)):
            conducted.clock.tick(BUDGET_NS // (90 if is_over else 1000))
            weight.backward()

    with pytest.raises(Stop) if is_over else contextlib.nullcontext():
        optimizer.step(closure)
    assert conducted.ending.status == ("failed" if is_over else None)
    assert not is_over or "has run 100 backward passes" in (conducted.ending.reason or "")


@pytest.mark.parametrize("is_over", [True, False])
def test_ranks_leave_a_step_that_does_not_return_together_by_the_clock_of_the_first(
    conducted: Conducted, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(conducted.meetings, "gather", lambda mine: asked.extend(mine) or [[int(is_over)], mine])
    for num_passes in (1, 99, 101, 100):
        conducted.counter.num_passes = num_passes
        with pytest.raises(Stop) if is_over and num_passes == 100 else contextlib.nullcontext():
            conducted.conductor.passed_in_step(time_budget_s=60)
    assert (conducted.ending.status, asked) == ("failed" if is_over else None, [0])


def test_a_script_without_a_module_fails_at_the_first_edge(conducted: Conducted) -> None:
    with pytest.raises(Stop):
        conducted.train(10, inside_a_module=False)
    assert (conducted.ending.status, conducted.ending.reason) == ("failed", NOTHING_WRAPPED)
    assert conducted.conductor.script_returned() == ("failed", NOTHING_WRAPPED)


@pytest.mark.parametrize(("threads", "is_told"), [(1, False), (4, True)])
def test_where_no_window_fits_threads_beyond_the_cores_are_named(
    monkeypatch: pytest.MonkeyPatch, patches: Patches, directory: Path, threads: int, is_told: bool
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    conducted = Conducted(patches, directory, Recording(time_budget_s=0.02))
    with pytest.raises(Stop):
        conducted.train(1000)
    conducted.conductor.close()
    assert (conducted.ending.reason or "").startswith("--time-budget was over before a window could be measured")
    assert ("4 threads" in (conducted.ending.reason or "")) == is_told


@pytest.mark.parametrize("has_unused", [True, False])
def test_the_record_says_to_the_end_what_the_mode_was_told(patches: Patches, directory: Path, has_unused: bool) -> None:
    conducted = Conducted(patches, directory, SHORT, has_unused=has_unused)
    with pytest.raises(Stop):
        conducted.train(1000)
    conducted.report.write("ok", None, "stopped")
    conducted.conductor.close()
    record = rundir.read_json(directory / rundir.RANK, RankRecord)
    assert record.conversion.find_unused_parameters is has_unused
    assert (record.status, record.ending, record.stage) == ("ok", "stopped", "trace")
    assert record.conversion.optimizers == ("SGD",)
    assert record.conversion.modules[0].num_parameters == 4


@pytest.mark.parametrize(("num_steps", "measured"), [(9, 0), (10, 1), (17, 2)])
def test_the_record_says_what_the_measured_windows_took_of_the_cores(
    conducted: Conducted, num_steps: int, measured: int
) -> None:
    begin = time.monotonic()
    # The window under way has not come to its end.
    with contextlib.suppress(Stop):
        conducted.train(num_steps)
    elapsed_s = time.monotonic() - begin
    conducted.conductor.close()
    conducted.report.write("ok")
    cpu = rundir.read_json(conducted.directory / rundir.RANK, RankRecord).cpu
    assert sum(window.kind == "measure" for window in conducted.windows()) == measured
    if not measured:
        assert cpu is None
    else:
        assert cpu is not None
        assert 0 < cpu.wall_s < elapsed_s
        assert cpu.num_threads >= 1


def test_steadiness_is_recorded(patches: Patches, directory: Path) -> None:
    conducted = Conducted(patches, directory, Recording(rounds=1, steps=4, trace_steps=0))
    with pytest.raises(Stop):
        conducted.train(1000)
    conducted.report.write("ok")
    conducted.conductor.close()
    assert conducted.windows()[-1].kind == "measure"
    assert rundir.read_json(directory / rundir.RANK, RankRecord).warmup_steady is True


def test_explain_takes_two_steps(patches: Patches, directory: Path) -> None:
    conducted = Conducted(patches, directory, Recording(explain=True))
    with pytest.raises(Stop):
        conducted.train(1000)
    conducted.conductor.close()
    assert conducted.ending.status == "ok"
    assert len(conducted.steps_taken()) == 2


def test_beside_a_shorter_loader_an_epoch_is_as_long_as_that_one(conducted: Conducted) -> None:
    long, short = (DataLoader(TensorDataset(torch.ones(n, 3)), batch_size=size) for n, size in ((20, 4), (3, 1)))
    module = nn.Linear(3, 1)
    conducted.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(4):
        for (x,), (y,) in zip(long, short, strict=False):
            conducted.clock.tick(STEP_NS)
            module(torch.cat((x, y))).mean().backward()
            conducted.optimizer.step()
    conducted.report.write("running")
    assert rundir.read_json(conducted.directory / rundir.RANK, RankRecord).steps_per_epoch == 3


@pytest.mark.parametrize(("accumulate", "expected"), [(1, 5), (2, 2)])
def test_the_steps_of_an_epoch_are_counted(conducted: Conducted, accumulate: int, expected: int) -> None:
    module = nn.Linear(3, 1)
    conducted.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        for number, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(20, 3)), batch_size=4), 1):
            conducted.clock.tick(STEP_NS)
            module(x).mean().backward()
            if number % accumulate == 0:
                conducted.optimizer.step()
    conducted.report.warn("once")
    conducted.report.warn("once")
    conducted.report.write("running")
    record = rundir.read_json(conducted.directory / rundir.RANK, RankRecord)
    assert record.steps_per_epoch == expected
    assert record.conversion.warnings == ("once",)
    assert [(loader.num_batches, loader.batch_size) for loader in record.conversion.loaders] == [(5, 4)]


def test_only_devices_that_this_process_uses_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda index: 1 << 20 if index == 1 else 0)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    conductor.synchronise()
    assert waited == [1]
    assert report._peaks_of_devices() == [None, 1 << 20, None]


@pytest.mark.parametrize(("num_steps", "seen"), [(26, "----++++++++----++++------"), (6, "---+++"), (1, "-")])
def test_steps_take_turns_in_passing_unwatched(num_steps: int, seen: str, patches: Patches, directory: Path) -> None:
    recording = Recording(warmup=20, steps=num_steps, rounds=2, trace_steps=0)
    conducted = Conducted(patches, directory, recording, ablations={"unwatched": UNWATCHED})
    with contextlib.suppress(Stop):
        conducted.train(200)
    conducted.conductor.close()
    assert not conducted.phases.lets_pass
    windows = {window.window: window for window in conducted.windows() if window.kind == "measure"}
    assert sorted(window.ablation for window in windows.values()) == ["full", "full", "unwatched", "unwatched"]
    assert all(window.complete and window.num_steps == num_steps for window in windows.values())
    steps = conducted.steps_taken()
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    for number, window in windows.items():
        counted = [step for step in steps if step.window == number and step.counted]
        assert [step.step for step in counted] == list(range(window.first_step, window.first_step + num_steps))
        assert [step.duration_ns for step in counted] == [STEP_NS] * num_steps
        watched = [step.watched for step in counted]
        assert watched == ([True] * num_steps if window.ablation == "full" else [one == "+" for one in seen])
        assert [step.samples_entered for step in counted] == [4 * is_watched for is_watched in watched]
        assert [step.micro_batches for step in counted] == [int(is_watched) for is_watched in watched]
    assert conducted.ablation_runner.records() == (AblationRecord(name="unwatched", skipped=None),)


def test_gradients_keep_their_places_in_the_proof_and_until_a_window_of_an_ablation_is_counted(
    patches: Patches, directory: Path
) -> None:
    found = []

    class Noted(Conducted):
        def on_step(self) -> None:
            conductor = self.conductor
            begun, is_held = conductor._segment, bool(conductor._gradient_places)
            found.append((begun.kind, begun.ablation, conductor._done < begun.skip, is_held))
            super().on_step()

    recording = Recording(warmup=3, steps=4, rounds=2, trace_steps=0, ablations=("amp",))
    with contextlib.suppress(Stop):
        Noted(patches, directory, recording, ablations={"amp": AMP}).train(60)
    assert {(kind, ablation, is_held) for kind, ablation, _, is_held in found} >= {
        ("proof", "full", True),
        ("measure", "full", False),
        ("measure", "amp", True),
        ("measure", "amp", False),
    }
    for kind, ablation, is_skipped, is_held in found:
        assert is_held == (kind == "proof" or (ablation != FULL and is_skipped)), (kind, ablation, is_skipped)
