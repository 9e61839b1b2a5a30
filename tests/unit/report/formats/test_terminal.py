from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from dpdoctor.analysis import Analysis, Figure, analyse
from dpdoctor.records import Check
from dpdoctor.report.formats import terminal
from dpdoctor.report.words import verdict
from dpdoctor.report.words.first_screen import first_screen
from tests.builders import records, runs, traced_runs
from tests.builders.diagnosed_runs import figure, finding, with_findings, with_modes
from tests.builders.figures import figures
from tests.builders.terminal import shown

WHOLE = """\
dpdoctor  train.py
Nothing was found that would be worth a change; 49% of a step under ddp is forward and backward, with
communication.

mode    samples/s  speedup            eff.    step  data  comp     comm  other
single        316  baseline              —  101 ms   39%   51%        —   9.9%
ddp           447  1.41x (1.39–1.44)   71%  143 ms   42%  ≤49%  unknown   9.5%
dp: there is no accelerator

fsdp failed: FSDP shards parameters; train.py line 88 calls deepcopy.
  Traceback (most recent call last):
  RuntimeError: deepcopy

LIMITS
! Global batches differ (single 32 and ddp 64 samples per step): throughput is not time to accuracy.
! ddp: Every rank reads the whole iterable dataset.
! Intervals are within one launch; --repeat 3 shows how much launches differ."""


def test_the_whole_of_a_run() -> None:
    assert shown(runs.cpu_run(), width=110) == WHOLE


def test_no_line_ends_in_blanks() -> None:
    for run in (runs.cpu_run(), runs.failed_run()):
        console = Console(width=80, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(terminal.summary(run))
        assert [line for line in capture.get().splitlines() if line != line.rstrip()] == []


def test_a_run_without_figures_begins_with_the_reason() -> None:
    first, second, *_ = filter(None, shown(runs.failed_run(), width=400).splitlines())
    assert first.startswith("dpdoctor")
    assert "the disk is full" in second


def test_it_says_what_the_page_says() -> None:
    for run in (runs.cpu_run(), runs.gpu_run(), runs.failed_run(), runs.repeated_run()):
        assert first_screen(run.summary).answer in shown(run, width=400)


def test_opportunities_of_four_modes_have_room() -> None:
    gain = {"speedup": replace(figure(1.4, 0.1, "x"), high=None), "speedup_basis": "at most"}
    names = ("single", "dp", "ddp", "fsdp")
    found = [finding("inference_share", mode, **gain) for mode in names]
    run = runs.cpu_run()
    modes = dict.fromkeys(names, run.summary.modes["ddp"])
    told = shown(with_findings(with_modes(run, **modes), *found), width=400)
    (row,) = (line for line in told.splitlines() if line.startswith("1. "))
    assert len(row) == 80
    assert row.split("  ")[1:] == ["no bound"] * 4


def test_markup_in_a_run_is_shown_not_obeyed() -> None:
    assert "</script><script>alert(2)</script>" in shown(runs.hostile_run())


@pytest.mark.parametrize("run", [runs.rankless_run, runs.failed_run, runs.empty_run, runs.hostile_run])
def test_every_run_has_a_summary(run: object) -> None:
    assert shown(run(), width=80)


def with_mode(name: str, **changes: object) -> Analysis:
    """Return the run on the CPU with one mode changed."""
    found = runs.cpu_run()
    modes = {**found.summary.modes, name: replace(found.summary.modes[name], **changes)}
    return replace(found, summary=replace(found.summary, modes=modes))


def test_on_eighty_columns_nothing_is_cut() -> None:
    throughput = Figure(value=12_204, low=12_100, high=12_307, n=10, unit="samples/s")
    speedup = Figure(value=0.980, low=0.871, high=1.09, n=10, unit="x")
    text = shown(with_mode("ddp", throughput=throughput, speedup=speedup), width=80)
    assert "…" not in text
    (row,) = re.findall(r"^ddp .*?^dp:", text, re.DOTALL | re.MULTILINE)
    assert {"12,204", "0.980x", "(0.871\N{EN DASH}1.09)", "71%", "143"} <= set(row.split())


def test_why_a_mode_has_no_figures_is_said() -> None:
    found = with_mode("ddp", throughput=Figure(value=None, unit="samples/s", reason="no window was complete"))
    (said,) = verdict.limits(found.summary)
    assert said in shown(found, width=400)


def test_a_reason_to_fail_is_given_once() -> None:
    for reason in ("the disk is full", "gradients were not synchronised"):
        assert shown(runs.failed_run()).count(reason) == 1


def test_a_run_cannot_command_the_terminal() -> None:
    found = with_mode("fsdp", reason="\x1b[2Jgone", stderr_tail=("\x1b]0;title\x07", "\ttab"))
    text = shown(found)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "gone" in text
    assert "[2J" not in text
    assert "\N{REPLACEMENT CHARACTER}]0;title" in text


def test_a_mode_that_was_skipped_is_told_with_its_reason() -> None:
    reason = "the run ended before this mode began"
    found = with_mode("fsdp", status="skipped", reason=reason, stderr_tail=())
    assert f"\nfsdp was skipped: {reason}.\n" in shown(found)


def test_a_mode_that_changed_nothing_is_told_where_no_other_has_figures() -> None:
    found = runs.cpu_run()
    modes = {name: found.summary.modes[name] for name in ("dp", "fsdp")}
    alone = replace(found, summary=replace(found.summary, modes=modes))
    assert "\ndp: there is no accelerator\n" in shown(alone)


@pytest.mark.parametrize(("number", "shown_of_them"), [(3, 3), (6, 6), (8, 6)])
def test_limits_have_so_many_lines_and_the_rest_is_counted(number: int, shown_of_them: int) -> None:
    found = runs.cpu_run()
    # The first limit takes two lines.
    remarks = tuple(f"remark {place}" for place in range(number - 2))
    conversion = replace(found.summary.modes["ddp"].conversion, warnings=remarks)
    mode = replace(found.summary.modes["ddp"], conversion=conversion)
    modes = {**found.summary.modes, "ddp": mode}
    text = shown(replace(found, summary=replace(found.summary, modes=modes)), width=110)
    _, title, limits = text.partition("LIMITS")
    assert title
    assert limits.count("\n! ") == shown_of_them
    assert (f"{number - shown_of_them} more in the report" in limits) == (number > shown_of_them)


@pytest.mark.parametrize("tail", [(), ('  File "{}", line 12',)])
def test_no_path_is_broken_inside_of_its_file_or_line_number(tail: tuple[str, ...]) -> None:
    path = f"/{'home/' * 14}pytorch_training.py:1084"
    lines = tuple(line.format(path) for line in tail)
    text = shown(with_mode("fsdp", reason=f"{path} calls deepcopy", stderr_tail=lines), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("pytorch_training.py:1084") == 1 + len(tail)
    assert path in re.sub(r"\n *", "", text)


WHOLE_OF_TRACES = """\
4 ranks: 46% of the step computes, 31% is exposed communication and 18% is idle (most of it waiting for data);
rank 2 is late by 30.0 ms in nearly every step.
Shares of 12 whole steps on 4 devices, added up. A profiler slows what it watches, the host most.

rank    device  compute  exposed comm   h2d  copy  idle        total  overlap
─────────────────────────────────────────────────────────────────────────────
rank 0  GPU 0       46%           31%  4.0%  1.0%   18%  100 ms/step      50%
rank 1  GPU 0       46%           31%  4.0%  1.0%   18%  100 ms/step      50%
rank 2  GPU 0       46%           31%  4.0%  1.0%   18%  100 ms/step      50%
rank 3  GPU 0       46%           31%  4.0%  1.0%   18%  100 ms/step      50%"""


def test_the_whole_of_a_run_of_traces() -> None:
    assert shown(traced_runs.late_run(), width=110) == WHOLE_OF_TRACES


def test_damage_notes_and_what_could_not_be_read_are_said() -> None:
    run = traced_runs.cpu_trace()
    (digest,) = (rank.digest for rank in run.run.modes["trace"][0].ranks)
    assert digest is not None
    lines = shown(run).splitlines()
    for words in (digest.damage, *digest.notes):
        (line,) = [line for line in lines if words in line]
        assert line.startswith("rank 34")
    assert sum(line.startswith("1 trace ") for line in lines) == 1


def test_on_eighty_columns_no_figure_is_cut() -> None:
    text = shown(traced_runs.late_run(), width=80)
    assert "…" not in text
    assert text.count("100 ms/step") == 4


def test_of_many_devices_the_rest_is_counted() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    many = replace(digest, devices=tuple(traced_runs.device(index) for index in range(43)))
    assert "3 more" in shown(traced_runs.trace_run(many))


def test_a_name_cannot_command_the_terminal() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    hostile = replace(digest, rank=None, source="\x1b[31mred\x07", notes=("\x1b]0;title\x07",))
    text = shown(traced_runs.trace_run(hostile))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[31m" not in text
    assert "red\N{REPLACEMENT CHARACTER}" in text


def test_markup_in_a_trace_is_shown_not_obeyed() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    text = shown(traced_runs.trace_run(replace(digest, notes=("[bold]x[/bold]",))))
    assert "[bold]x[/bold]" in text


def test_a_loader_of_an_iterable_dataset_has_no_sampler() -> None:
    wrapped = runs.conversion()
    loader = replace(wrapped.loaders[0], dataset="Records", sampler="_InfiniteConstantSampler")
    rank = runs.rank(conversion=replace(wrapped, loaders=(loader,)))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(terminal.explanation(analyse(records.run({"single": [records.launch(rank)]}))))
    (line,) = [line for line in capture.get().splitlines() if "train.py:30" in line]
    assert all(words in line for words in ("Records, none (iterable), ", "per-device"))
    assert figures(line) == ["30", "32", "2"]


def test_an_explanation_cannot_command_the_terminal() -> None:
    wrapped = runs.conversion(warnings=["\x1b[2Jgone"], proof=[Check(name="parameters equal", ok=True, text="\x1b]0;")])
    module = replace(wrapped.modules[0], name="\x1b[1mNet", unused=("\x07bias",))
    rank = runs.rank(conversion=replace(wrapped, modules=(module,)))
    console = Console(width=200)
    with console.capture() as capture:
        launch = records.launch(rank, status="failed", reason="\x1b[31mred")
        console.print(terminal.explanation(analyse(records.run({"single": [launch]}))))
    text = capture.get()
    assert not {"\x1b", "\x07"} & set(text)
    assert "gone" in text
    assert "[2J" not in text
    assert "\N{REPLACEMENT CHARACTER}]0;" in text


def test_no_path_of_an_explanation_is_broken_inside_of_its_file_or_line_number() -> None:
    wrapped, path = runs.conversion(), f"/{'home/' * 14}pytorch_training.py:1084"
    rank = runs.rank(
        conversion=replace(
            wrapped,
            loaders=(replace(wrapped.loaders[0], line=path),),
            modules=(replace(wrapped.modules[0], line=path),),
            warnings=(f"{path} calls deepcopy",),
        )
    )
    console = Console(width=80)
    with console.capture() as capture:
        launch = records.launch(rank, status="failed", reason=f"{path} raised RuntimeError")
        console.print(terminal.explanation(analyse(records.run({"single": [launch]}))))
    assert capture.get().count("pytorch_training.py:1084") == 4
