"""Runs the modes of a RunSpec one after the other and leaves a run directory."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dpdoctor import redact, rundir
from dpdoctor.launch import folders, interruption, native, processes, sampling, watch
from dpdoctor.launch.folders import Folders
from dpdoctor.launch.interruption import Interruption
from dpdoctor.launch.processes import RankProcess
from dpdoctor.launch.progress import Progress, UntilItFails
from dpdoctor.launch.tidy import tidy
from dpdoctor.launch.watch import Hope, LaunchOutcome, Patience
from dpdoctor.records import LaunchRecord, RankRecord
from dpdoctor.spec import (
    BASELINE,
    COPIES_IN_THE_WAY,
    DISTRIBUTES_ITSELF,
    MOST_TURNS,
    OVERLAY_FULL,
    OVERLAY_IN_THE_WAY,
    WALLS,
    LoaderSetting,
    ModeSpec,
    RunHeader,
    RunSpec,
    WorkerTask,
)

PERIOD_S = 0.25
# A rank that failed makes its peers fail too; they get this long to say why before they are ended.
PEERS_GRACE_S = 3.0
# Time for faulthandler to write the stacks of a stuck rank.
STACKS_S = 1.0
# What is before the name of a launch's directory that another launch took the place of; with a number where that one
# is without the ablations with which it failed, or finds the user's files and no copies of them.
_ASIDE, _RAISED, _COPIED = "failed-", "raised", "copied-"
FAILED_WITH = "mode {} failed in its window, or before the next full one: {}"
FAILED_TWICE = "none is run any more, as mode {} failed once more in windows of ablations: {}"
_NO_SPACE = os.strerror(errno.ENOSPC)


def create(root: Path, header: RunHeader) -> None:
    """Create the run directory with its header, before anything runs.

    Raises:
        OutputError: it exists already, or cannot be written.
    """
    rundir.create(root)
    rundir.write_json(root / rundir.HEADER, header)


def begin_anew(root: Path, header: RunHeader, records: Sequence[LaunchRecord]) -> None:
    """Let a run directory be that of another run than the one whose launches these were, all of which failed.

    Raises:
        OutputError: it cannot be written.
    """
    for record in records:
        shutil.rmtree(rundir.launch_dir(root, record.mode, record.launch), ignore_errors=True)
    rundir.write_json(root / rundir.HEADER, header)


def distributes_itself(record: LaunchRecord) -> bool:
    """Return whether a launch ended because the script starts ranks of its own, or joins them."""
    return (record.reason or "").startswith(DISTRIBUTES_ITSELF)


def launch(
    root: Path, spec: RunSpec, progress: Progress, is_enough: Callable[[LaunchRecord], bool] = lambda _: False
) -> list[LaunchRecord]:
    """Run every mode `spec.repeat` times; a mode that fails does not keep the next from running.

    `is_enough`: whether to launch nothing more after this one.

    Returns the records in the order of the launches. After Ctrl-C, SIGTERM from a CI system or SIGHUP, the present
    launch, or the one that was next, is `interrupted` and the last.
    """
    records: list[LaunchRecord] = []
    with interruption.heeding():
        for number in range(1, spec.repeat + 1):
            records += launch_once(root, spec, number, progress, is_enough)
            if records[-1].status == "interrupted" or is_enough(records[-1]):
                break
    return records


def launch_once(
    root: Path,
    spec: RunSpec,
    number: int,
    progress: Progress,
    is_enough: Callable[[LaunchRecord], bool] = lambda _: False,
) -> list[LaunchRecord]:
    """Run every mode once, as the n-th of its `spec.repeat` launches; return as `launch` does."""
    records: list[LaunchRecord] = []
    with interruption.heeding():
        for mode, bare in _with_control(spec):
            if bare and any(record.mode in (rundir.BARE, BASELINE) and record.status == "failed" for record in records):
                continue  # one that failed fails again, and a baseline that did has no cost
            launch_one = _launch_bare if bare else functools.partial(_launch_mode, number=number)
            made = _launch_again(root, functools.partial(launch_one, root, spec, mode, progress), mode, bare=bare)
            records += made
            if records[-1].status == "interrupted" or is_enough(records[-1]):
                break
    return records


def _launch_again(
    root: Path, launch_one: Callable[[], list[LaunchRecord]], mode: ModeSpec, *, bare: bool
) -> list[LaunchRecord]:
    """Launch a mode, and again where what dpdoctor does to the script may have made it fail."""
    made = launch_one()
    if bare:
        return made
    if not mode.launcher and _failed_by_overlay(root, made[-1]):
        _set_aside(root, made[-1], _ASIDE)
        made = launch_one()
    while _raised_in(rundir.launch_dir(root, mode.name, made[-1].launch), made[-1]):
        _set_aside(root, made[-1], f"{_RAISED}{1 + len(_raised(root))}-")
        made = launch_one()
    return made


def _failed_by_overlay(root: Path, record: LaunchRecord) -> bool:
    """Return whether a script failed because of the kernel's overlay, which other protection does not do.

    A rank says so where its script raised. A program that it started says it in its own words; who writes to memory
    that is a file's gets a signal where there is no more; and what fills the memory may be files.
    """
    if record.status != "failed":
        return False
    if any(hint in (record.reason or "") for hint in (OVERLAY_FULL, OVERLAY_IN_THE_WAY)):
        return True
    ranks = rundir.read_launch(rundir.launch_dir(root, record.mode, record.launch), record.mode).ranks
    return any(rank.record and rank.record.protected_by == "kernel" for rank in ranks) and (
        -signal.SIGBUS in record.exit_codes
        or watch.OUT_OF_MEMORY in (record.reason or "")
        or any(_NO_SPACE in line for line in record.stderr_tail)
    )


def _set_aside(root: Path, record: LaunchRecord, prefix: str) -> None:
    """Keep what a launch left, under a name that no reader takes for a launch."""
    directory = rundir.launch_dir(root, record.mode, record.launch)
    directory.rename(_aside(directory, prefix))


def _aside(directory: Path, prefix: str) -> Path:
    return directory.with_name(f"{prefix}{directory.name}")


def _why_again(directory: Path) -> str:
    """Return why the launch that is to have this directory is not the first; empty: it is."""
    path = _aside(directory, _ASIDE) / rundir.LAUNCH
    return (rundir.read_json(path, LaunchRecord).reason or "") if path.exists() else ""


def _raised_in(directory: Path, record: LaunchRecord) -> tuple[str, ...]:
    """Return the ablations that may have made a launch fail, as its ranks say."""
    ranks = rundir.read_launch(directory, record.mode).ranks if record.status == "failed" else ()
    return tuple(dict.fromkeys(name for rank in ranks if rank.record for name in rank.record.raised_in))


def _raised(root: Path) -> list[tuple[Path, LaunchRecord]]:
    """Return the directories and records of the launches that failed with ablations, in order."""
    paths = sorted(root.glob(f"{_RAISED}[1-9]-*/{rundir.LAUNCH}"))
    return [(path.parent, rundir.read_json(path, LaunchRecord)) for path in paths]


def _why_without(directory: Path) -> str:
    """Return why the launch that is to have this directory lacks ablations that one before it had; empty: none did."""
    reasons = [record.reason for path, record in _raised(directory.parent) if path.name.endswith(f"-{directory.name}")]
    return (reasons[-1] if reasons else None) or ""


def _title(title: str, task: WorkerTask) -> str:
    """Return what progress calls a launch, with the ablations that one before it had."""
    recording = task.spec.recording
    if not _why_without(Path(task.directory)):
        return title
    is_without_any = set(recording.ablations) <= set(recording.raised)
    return f"{title}, again without {'any ablation' if is_without_any else ', '.join(recording.raised)}"


def _without_raising(root: Path, spec: RunSpec) -> RunSpec:
    """Return a run without the ablations with which a launch failed; once a second did, without any."""
    recording, raised = spec.recording, dict[str, str]()
    for directory, record in _raised(root):
        names, words = (recording.ablations, FAILED_TWICE) if raised else (_raised_in(directory, record), FAILED_WITH)
        for name in names:
            raised.setdefault(name, words.format(record.mode, record.reason))
    return replace(spec, recording=replace(recording, raised=raised)) if raised else spec


def _without_overlay(root: Path, spec: RunSpec) -> RunSpec:
    """Return a run with the next wall, once its overlay has made a mode fail."""
    for path in sorted(root.glob(f"{_ASIDE}*/{rundir.LAUNCH}")):
        record = rundir.read_json(path, LaunchRecord)
        return replace(spec, wall=WALLS[1], no_overlay=f"{record.mode} failed behind one: {record.reason}")
    return spec


def try_loaders(
    root: Path, spec: RunSpec, settings: Mapping[str, LoaderSetting], progress: Progress
) -> list[LaunchRecord]:
    """Launch modes once more, each to try another setting of its loader in turns with the script's own.

    Returns as `launch` does.
    """
    records: list[LaunchRecord] = []
    with interruption.heeding():
        for mode in spec.modes:
            if mode.name in settings:
                records.append(_launch_trial(root, spec, mode, settings[mode.name], progress))
                if records[-1].status == "interrupted":
                    break
    return records


def _launch_trial(
    root: Path, spec: RunSpec, mode: ModeSpec, setting: LoaderSetting, progress: Progress
) -> LaunchRecord:
    recording = replace(spec.recording, ablations=(), trace_steps=0, loader_trials=False, loader_setting=setting)
    spec = replace(spec, recording=recording)
    task = _task(rundir.trial_dir(root, mode.name), spec, mode)
    return _launch(task, mode.name, 1, f"{mode.name}, again to try {setting.words}", progress)


def settle_own_cost(root: Path, spec: RunSpec, is_clear: Callable[[], bool], progress: Progress) -> list[LaunchRecord]:
    """Launch the baseline watched and bare in turns, until it is clear what watching costs, or MOST_TURNS were made.

    Returns as `launch` does. One that fails is the last.
    """
    records: list[LaunchRecord] = []
    mode = next(mode for mode in spec.modes if mode.name == BASELINE)
    with interruption.heeding():
        for turn in range(MOST_TURNS):
            if is_clear():
                break
            # A machine that grows faster or slower favours what comes first, or last.
            for launch_one in (_launch_watched, _launch_bare)[:: -1 if turn % 2 else 1]:
                records += launch_one(root, spec, mode, progress)
                if records[-1].status != "ok":
                    return records
    return records


def _with_control(spec: RunSpec) -> Iterator[tuple[ModeSpec, bool]]:
    """Yield the modes in their order and, before and after the baseline and at the end, the baseline bare.

    Three of them: from how far they lie apart follows how exactly the difference to the baseline is known.
    """
    for mode in spec.modes:
        is_control = spec.control and mode.name == BASELINE
        if is_control:
            yield mode, True
        yield mode, False
        if is_control:
            yield mode, True
    if spec.control and BASELINE in {mode.name for mode in spec.modes[:-1]}:
        yield next(mode for mode in spec.modes if mode.name == BASELINE), True


def _launch_mode(root: Path, spec: RunSpec, mode: ModeSpec, progress: Progress, *, number: int) -> list[LaunchRecord]:
    """Return how a launch of a mode ended and, where one for its trace followed that was interrupted, that one, too."""
    title = mode.name if spec.repeat == 1 else f"{mode.name} (launch {number} of {spec.repeat})"
    task = _task(rundir.launch_dir(root, mode.name, number), spec, mode)
    record = _launch(task, mode.name, number, title, progress)
    for_trace = _task_for_trace(root, task) if number == 1 and record.status in ("ok", "inactive") else None
    if for_trace is None:
        return [record]
    title = f"{mode.name}, again for its trace, as training had ended before it"
    traced = _launch(for_trace, mode.name, 1, title, progress)
    return [record, traced] if traced.status == "interrupted" else [record]


def _launch_bare(root: Path, spec: RunSpec, mode: ModeSpec, progress: Progress) -> list[LaunchRecord]:
    """Launch the baseline bare, and once more without copies of files where these may have made it fail."""
    number = 1 + rundir.num_launches(root, rundir.BARE)
    directory = rundir.launch_dir(root, rundir.BARE, number)
    while True:
        copied = not any(root.glob(f"{_COPIED}*"))
        task = replace(_task(directory, spec, mode), bare=True, copied=copied)
        title = f"{mode.name}, bare" if copied else f"{mode.name}, bare, without copies of files"
        record = _launch(task, rundir.BARE, number, title, progress)
        if not copied or not (COPIES_IN_THE_WAY in (record.reason or "") or _failed_by_overlay(root, record)):
            return [record]
        _set_aside(root, record, _COPIED)


def _launch_watched(root: Path, spec: RunSpec, mode: ModeSpec, progress: Progress) -> list[LaunchRecord]:
    """Watch the baseline as long as it trains bare, with nothing else done to it."""
    number = 1 + rundir.num_launches(root, rundir.WATCHED)
    spec = replace(spec, recording=spec.recording.of_control())
    task = _task(rundir.launch_dir(root, rundir.WATCHED, number), spec, mode)
    return [_launch(task, rundir.WATCHED, number, f"{mode.name}, watched once more", progress)]


def _task_for_trace(root: Path, done: WorkerTask) -> WorkerTask | None:
    """Return the task of a launch for the trace alone, where the script, or the model's training, ended before it.

    None: there is no need, the script takes too few steps, or it was to go on to its own end: that is run once.
    """
    if done.spec.go_on:
        return None
    recording = done.spec.recording
    ranks = rundir.read_launch(Path(done.directory), done.mode.name).ranks
    has_ended = all(rank.record and rank.record.ending in ("returned", "moved on") for rank in ranks)
    if recording.explain or not has_ended or all(rank.digest for rank in ranks):
        return None
    of_trace = recording.of_trace(min(len(rank.steps) for rank in ranks))
    if of_trace is None:
        return None
    spec = replace(done.spec, recording=of_trace)
    return _task(rundir.trace_dir(root, done.mode.name), spec, done.mode)


def _task(directory: Path, spec: RunSpec, mode: ModeSpec) -> WorkerTask:
    spec = _without_raising(directory.parent, _without_overlay(directory.parent, spec))
    # Absolute: the ranks run in other directories.
    return WorkerTask(spec=spec, mode=mode, directory=str(directory.absolute()))


def _launch(task: WorkerTask, name: str, number: int, title: str, progress: Progress) -> LaunchRecord:
    """Launch the ranks of a task, wait for their end, and write how it went."""
    if task.mode.launcher:
        return _launch_command(task, name, number, title, progress)
    spec, mode, directory = task.spec, task.mode, Path(task.directory)
    directory.mkdir()
    if unused := _unused(directory.parent, mode):
        rundir.write_json(directory / rundir.UNUSED, unused)
    again, oom_kills = _why_again(directory), watch.num_oom_kills()
    progress.began(_title(f"{title}, again behind another wall" if again else title, task), directory)
    before = _folders(spec)
    begin_ns = time.monotonic_ns()
    ranks: list[RankProcess] = []
    with interruption.heeding() as heard, processes.ending(ranks, functools.partial(tidy, directory)):
        if not heard.name:
            processes.start(task, ranks)
            with sampling.sampling(directory / rundir.NODE, ranks):
                outcome = _watch(ranks, spec.timeout_s, progress, heard)
        else:
            outcome = LaunchOutcome(status="interrupted", reason=f"{heard.name} before it began")
    killed = any(rank.exit_code() == -signal.SIGKILL and not rank.ended_by_us for rank in ranks)
    if outcome.reason and killed and watch.num_oom_kills() > oom_kills:
        outcome = replace(outcome, reason=f"{outcome.reason}; {watch.OUT_OF_MEMORY}")
    if outcome.status == "ok" and mode.inactive:
        outcome = LaunchOutcome(status="inactive", reason=mode.inactive)
    record = LaunchRecord(
        mode=name,
        launch=number,
        status=outcome.status,
        reason=outcome.reason and redact.text(outcome.reason),
        failed_rank=outcome.failed_rank,
        stderr_tail=tuple(map(redact.text, outcome.stderr_tail)),
        exit_codes=tuple(None if rank.ended_by_us else rank.exit_code() for rank in ranks),
        ended_by_dpdoctor=tuple(rank.ended_by_us for rank in ranks),
        begin_ns=begin_ns,
        end_ns=time.monotonic_ns(),
        loader_setting=spec.recording.loader_setting,
        files_refused=watch.refusals(ranks),
        again=again,
        raised=_why_without(directory),
        **_changes(before, _folders(spec)),
    )
    rundir.write_json(directory / rundir.LAUNCH, record)
    progress.ended(record)
    return record


def _launch_command(task: WorkerTask, name: str, number: int, title: str, progress: Progress) -> LaunchRecord:
    """Run a command that starts its own ranks, end what it left, and write how it went."""
    directory = Path(task.directory)
    directory.mkdir()
    progress = UntilItFails(progress) if task.spec.go_on else progress
    progress.began(_title(title, task), directory)
    begin_ns, ranks = time.monotonic_ns(), list[native.SeenRank]()
    command = native.Command(task)
    try:
        with interruption.heeding() as heard, sampling.sampling(directory / rundir.NODE, ranks):
            outcome = native.run(command, ranks, task, progress, heard)
    except BaseException:
        if not task.spec.go_on:  # such a job is its owner's, whatever goes wrong in here
            command.end()
            command.leave()
        raise
    shown = command.settle()
    command.leave()
    records = [watch.record_of(rank) for rank in shown]
    record = LaunchRecord(
        mode=name,
        launch=number,
        status=outcome.status,
        reason=outcome.reason and redact.text(outcome.reason),
        failed_rank=outcome.failed_rank,
        stderr_tail=tuple(map(redact.text, outcome.stderr_tail)),
        exit_codes=(command.own_exit_code(),),
        ended_by_dpdoctor=(command.own_exit_code() is None,),
        begin_ns=begin_ns,
        end_ns=time.monotonic_ns(),
        raised=_why_without(directory),
        world_size=max([len(shown), *(record.world_size for record in records if record)]),
        other_worlds=command.others(shown),
    )
    rundir.write_json(directory / rundir.LAUNCH, record)
    progress.ended(record)
    return record


def _folders(spec: RunSpec) -> Folders:
    return Folders(unknown="the script may write") if spec.allow_writes else folders.look(spec.homes)


def _changes(before: Folders, after: Folders) -> dict[str, Any]:
    """Return what LaunchRecord says of the user's files."""
    unknown = before.unknown or after.unknown
    return {"not_compared": unknown, "files_changed": () if unknown else after.changed_since(before)}


def _watch(ranks: list[RankProcess], timeout_s: float, progress: Progress, heard: Interruption) -> LaunchOutcome:
    """Wait until all ranks have ended, one has failed or makes no progress for too long, or somebody interrupts."""
    hope = Hope(timeout_s, time.monotonic)
    leaving = Patience(min(watch.MOST_LEAVING_S, timeout_s), time.monotonic)
    while any(rank.exit_code() is None for rank in ranks):
        processes.wait_for_one(ranks, PERIOD_S)
        if heard.name:
            processes.end(ranks)
            return LaunchOutcome(status="interrupted", reason=f"{heard.name} {watch.where(ranks[0])}")
        beats = {rank.rank: watch.beat_of(rank) for rank in ranks}
        progress.moved([beats[rank.rank] for rank in ranks])
        if any(watch.has_failed(rank) for rank in ranks):
            _wait(ranks, PEERS_GRACE_S)
            break
        running = [rank for rank in ranks if rank.exit_code() is None]
        silent = hope.lost_in({rank.rank: beats[rank.rank] for rank in running}, lambda rank: ranks[rank].log_bytes())
        if silent:
            return _stuck(ranks, silent, timeout_s)
        done = {rank.rank: True for rank in running if (beat := beats[rank.rank]) and beat.stage == "done"}
        if len(done) == len(running) and leaving.exhausted_by(dict(done)):
            break
    processes.end(ranks)
    return watch.outcome_of(ranks)


def _wait(ranks: list[RankProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(rank.exit_code() is None for rank in ranks):
        time.sleep(0.05)


def _stuck(ranks: list[RankProcess], silent: list[int], timeout_s: float) -> LaunchOutcome:
    for rank in ranks:
        if rank.exit_code() is None:
            rank.send(signal.SIGUSR1)
    time.sleep(STACKS_S)
    outcome = watch.outcome_of_hang(ranks, silent, timeout_s)
    processes.end(ranks)
    return outcome


def _unused(root: Path, mode: ModeSpec) -> tuple[str, ...]:
    """Return the parameters that got no gradient in the baseline, for modes that must know before they convert."""
    if mode.name == BASELINE:
        return ()
    path = rundir.rank_dir(rundir.launch_dir(root, BASELINE), 0) / rundir.RANK
    if not path.exists():
        return ()
    record = rundir.read_json(path, RankRecord)
    return tuple(name for unit in record.conversion.modules for name in unit.unused)
