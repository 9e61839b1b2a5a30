from __future__ import annotations

import dataclasses
import re

import pytest

from dpdoctor.analysis import Analysis, Figure
from dpdoctor.report.words import verdict
from tests.builders import runs
from tests.builders.terminal import shown

WHOLE = """\
DDP on 2 ranks gives 1.41x of one device (70.7 % of linear); 42.0 % of each step waits for data.
95 % interval 1.39x to 1.44x, over the windows of one launch each. Another launch may differ by more. Weak
scaling: each device takes the script's whole batch, so a step trains on more samples.

mode     status     samples/s    step         speedup  linear   epoch    batch
──────────────────────────────────────────────────────────────────────────────
single   ok               316  101 ms               —       —  10.1 s       32
1 rank             312 to 320                                          32 each
dp       inactive         316  101 ms               —       —  10.1 s       32
1 rank             311 to 320                                          32 each
ddp      ok               447  143 ms           1.41x  70.7 %  14.3 s       64
2 ranks            443 to 451          1.39x to 1.44x                  32 each
fsdp     failed             —       —               —       —       —        —
2 ranks
95 % intervals within this run, over 3 windows each.
Epoch of DataParallel: no epoch began inside a measured window: the cost of its edge is left out.
Throughput is global samples per second; it is not time to accuracy.

DataParallel changed nothing (316 samples/s): there is no accelerator.

FSDP failed: FSDP shards parameters; train.py line 88 calls deepcopy.
  Traceback (most recent call last):
  RuntimeError: deepcopy

How the script was adopted
  DDP: every rank reads the whole iterable dataset"""


def test_the_whole_of_a_run() -> None:
    assert shown(runs.cpu_run(), width=110) == WHOLE


def test_it_says_what_the_page_says() -> None:
    for run in (runs.cpu_run(), runs.gpu_run(), runs.failed_run(), runs.repeated_run()):
        assert verdict.headline(run.summary).sentence in shown(run)


def test_markup_in_a_run_is_shown_not_obeyed() -> None:
    assert "</script><script>alert(2)</script>" in shown(runs.hostile_run())


@pytest.mark.parametrize("run", [runs.rankless_run, runs.failed_run, runs.empty_run, runs.hostile_run])
def test_every_run_has_a_summary(run: object) -> None:
    assert shown(run(), width=80)


def with_mode(name: str, **changes: object) -> Analysis:
    """Return the run on the CPU with one mode changed."""
    found = runs.cpu_run()
    modes = {**found.summary.modes, name: dataclasses.replace(found.summary.modes[name], **changes)}
    return dataclasses.replace(found, summary=dataclasses.replace(found.summary, modes=modes))


def test_on_eighty_columns_nothing_is_cut() -> None:
    throughput = Figure(value=12_204, low=12_100, high=12_307, n=10, unit="samples/s")
    speedup = Figure(value=0.980, low=0.871, high=1.09, n=10, unit="x")
    text = shown(with_mode("ddp", throughput=throughput, speedup=speedup), width=80)
    assert "…" not in text
    (row,) = re.findall(r"^ddp .*?^fsdp", text, re.DOTALL | re.MULTILINE)
    assert re.findall(r"[\d.,]+x?(?: ms| s| %)?", row) == (
        ["12,204", "143 ms", "0.980x", "70.7 %", "14.3 s", "64", "2", "12,100", "0.871x", "32", "12,307", "1.09x"]
    )


def test_why_an_epoch_is_unknown_is_said_once() -> None:
    unknown = Figure(value=None, unit="s", reason="no loader with a length fed the steps")
    found = with_mode("ddp", epoch_s=unknown)
    lines = shown(found).splitlines()
    for name, label in (("ddp", "DDP"), ("dp", "DataParallel")):
        reason = found.summary.modes[name].epoch_s.reason
        assert reason
        (line,) = [line for line in lines if reason in line]
        assert f"{label}: " in line


def test_why_a_mode_has_no_figures_is_said() -> None:
    found = with_mode("ddp", throughput=Figure(value=None, unit="samples/s", reason="no window was complete"))
    (said,) = verdict.limits(found.summary)
    assert said in shown(found)


def test_a_reason_to_fail_is_given_once() -> None:
    for reason in ("the disk is full", "gradients were not synchronised"):
        assert shown(runs.failed_run()).count(reason) == 1


def test_a_run_cannot_command_the_terminal() -> None:
    found = with_mode("fsdp", reason="\x1b[2Jgone", stderr_tail=("\x1b]0;title\x07", "\ttab"))
    text = shown(found)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\N{REPLACEMENT CHARACTER}[2Jgone" in text
