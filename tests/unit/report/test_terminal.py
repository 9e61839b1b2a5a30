from __future__ import annotations

import pytest
from rich.console import Console

from dpdoctor.analysis import Analysis
from dpdoctor.report import terminal, verdict
from tests.unit.report import runs


def shown(analysis: Analysis, width: int = 200) -> str:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(terminal.summary(analysis))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


WHOLE = """\
DDP on 2 ranks gives 1.41x of one device (70.7 % of linear); the host waits for data in 42.0 % of each step.
95 % interval within this run: 1.39x to 1.44x, from one launch each. Another launch may differ by more. Weak
scaling: each device takes the script's whole batch, so a step trains on more samples.

mode     status     samples/s    step         speedup  linear   epoch    batch
──────────────────────────────────────────────────────────────────────────────
single   ok               316  101 ms               —       —  10.1 s       32
1 rank             311 to 320                                          32 each
dp       inactive         316  101 ms               —       —  10.1 s       32
1 rank             311 to 320                                          32 each
ddp      ok               447  143 ms           1.41x  70.7 %  14.3 s       64
2 ranks            442 to 451          1.39x to 1.44x                  32 each
fsdp     failed             —       —               —       —       —        —
2 ranks
95 % intervals within this run: One device (3 windows), DataParallel (3 windows), DDP (3 windows). Speedups
rest on one launch each.
Throughput is global samples per second; it is not time to accuracy.

DataParallel changed nothing: there is no accelerator; the plain module trains 316 samples/s.

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


def test_it_fits_eighty_columns() -> None:
    text = shown(runs.cpu_run(), width=80)
    assert "…" not in text
    assert "1.39x to 1.44x" in text
