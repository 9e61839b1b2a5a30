"""The table of scripts in docs/compatibility.md is what happens: its rows are run, in every mode.

The scripts print a line per step that begins with the samples it trained on: what was counted is checked against that.
When steps ended, and whether ranks trained apart, is checked against what an oracle saw in the same processes.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dpdoctor.records import Rank
from tests.commands import GROUP, SERVERS_VARIABLE, dpdoctor
from tests.faults import compatibility_table
from tests.faults.conftest import SCRIPTS, SHORT, Profiled
from tests.faults.following import assert_follows_single

ORACLE = Path(__file__).parent / "oracle"
MODES = ("single", "dp", "ddp", "fsdp")
HAS_GPU = torch.cuda.is_available()
DRAWN = "indices drawn by the loader"
ENTERED = "first tensor of forward"


def nothing_more(done: Profiled) -> None:
    """Some scripts have nothing to show beyond what all of them show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One script, run once for all rows that name it, and what is known of its outcome beyond their cells.

    Attributes:
        command: what follows `dpdoctor profile`: a script of the folder `scripts`, or -m and a module there.
        line: source of the line that a cell with the words `with the line` has named.
        reason: part of the reason where it is `failed`.
        warning: part of the one warning where a cell of its rows has the words `with a warning`; elsewhere is none.
        wrapped_at: step at whose forward the model is wrapped; what was trained on before is not counted.
        same_samples: ranks train on the same samples, which is warned of in the modes that have ranks.
        has_oracle: torch.compile would compile its hooks, too; and it sees torch's optimizers alone.
        also: what else must hold of the finished run.
    """

    command: tuple[str, ...]
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    source: str = DRAWN
    line: str = ""
    reason: str = ""
    warning: str = ""
    wrapped_at: int = 1
    same_samples: bool = False
    has_oracle: bool = True
    also: Callable[[Profiled], None] = nothing_more


def asks_and_trains_apart(done: Profiled) -> None:
    """To ask for the rank puts nothing in doubt where ranks train on samples of their own."""
    assert done.record("ddp").conversion.asks_rank == ""
    assert done.mode("ddp")["batch"]["global"] == 32


def accumulates(done: Profiled) -> None:
    """Every micro-batch is counted, and reduced; the script's own sampler is shared out, its workers are kept."""
    for mode, steps_per_epoch in (("single", 8), ("ddp", 4), ("fsdp", 4)):
        steps = done.rank(mode).steps
        assert {(step.micro_batches, step.samples_drawn) for step in steps} == {(2, 8)}
        assert done.record(mode).steps_per_epoch == steps_per_epoch
        loader = done.record(mode).conversion.loaders[0]
        assert (loader.sampler, loader.num_workers, loader.num_batches) == ("SubsetRandomSampler", 1, 16)
    assert done.record("ddp").counters.collectives["all_reduce"].num_bytes == 2 * 210 * 4


def reduces_what_still_trains(done: Profiled) -> None:
    """The first layer was frozen and the second converted to float64, both after the optimizer was built."""
    assert done.record("ddp").counters.collectives["all_reduce"].num_bytes == 34 * 8


def knows_what_gets_no_gradient(done: Profiled) -> None:
    """The frozen layers do not count as unused, the layer that the forward leaves out does."""
    assert done.record("single").conversion.modules[0].unused == ("mask.weight", "mask.bias")


def wraps_the_whole_model(done: Profiled) -> None:
    """Not the parts that the method calls; at the line that calls the method, not inside of it."""
    at = f"{done.summary['script']['path']}:26"
    for mode in done.summary["modes"]:
        assert [(unit.name, unit.line) for unit in done.record(mode).conversion.modules] == [("Net", at)]


def has_no_end(done: Profiled) -> None:
    """An endless sampler is never listed, and an epoch of it has no duration."""
    assert done.record("ddp").conversion.loaders[0].num_batches == 2_500_000_000
    assert "no real end" in done.mode("ddp")["epoch_s"]["reason"]


def is_wrapped_first_and_compiled_after(done: Profiled) -> None:
    """The script's own module is the unit, its wrapper is what dynamo traces, and it trains as on one device."""
    for mode in ("ddp", "fsdp"):
        assert_follows_single(done, mode)
        assert [unit.name for unit in done.record(mode).conversion.modules] == ["Sequential"]
        assert "Dynamo does not know how to trace" not in (done.root / mode / "rank0" / "stderr.log").read_text()


ORDINARY = Case(
    command=("ordinary.py",), args=("--accumulate", "2", "--num-workers", "1", "--own-sampler"), also=accumulates
)
GAN = Case(command=("-m", "gan_package.train"))
AMP = Case(command=("amp.py",))
LANGUAGE_MODEL = Case(command=("language_model.py",), source=ENTERED, warning="they are dim 0", same_samples=True)
NOTEBOOK = Case(command=("notebook.py",))
TRAINER = Case(command=("class_trainer.py",), also=has_no_end)
DETECTOR = Case(command=("lists_of_images.py",), also=knows_what_gets_no_gradient)
COMPILED = functools.partial(
    Case,
    command=("compiled.py",),
    options=("--batch", "global", "--warmup", "10"),
    warning="fullgraph",
    has_oracle=False,
    also=is_wrapped_first_and_compiled_after,
)

CASES = {
    "a loop at module level, a file exported from a notebook": NOTEBOOK,
    "such a file with magics in it": Case(
        command=("notebook_magic.py",), line='get_ipython().run_line_magic("matplotlib", "inline")'
    ),
    "`main()` with argparse; parameter groups, BatchNorm, a scheduler bound to `len(loader)`, validation": ORDINARY,
    "a trainer class; a click entry": TRAINER,
    "a function; a hydra entry": Case(command=("hydra_entry.py",)),
    "a package, run with `-m`": GAN,
    "gradient accumulation": ORDINARY,
    "AMP in bf16": LANGUAGE_MODEL,
    "AMP in fp16 with a GradScaler": AMP,
    "`torch.compile(model)`": COMPILED(args=("function",)),
    "`model.compile()`": COMPILED(args=("method",)),
    "two models, each with its optimizer (a GAN)": GAN,
    "an optimizer class of the script's own, derived from torch's": GAN,
    "updates by hand, without a torch optimizer": Case(command=("updates_by_hand.py",), wrapped_at=2, has_oracle=False),
    "L-BFGS with a closure": Case(command=("lbfgs.py",), line="loss = optimizer.step(closure)"),
    "gradient clipping, by norm or value, of the model's parameters or a list of them": AMP,
    "an average of the weights (EMA), `deepcopy` in mid-run": Case(
        command=("ema.py",), line="average.update_parameters(model)"
    ),
    "tied weights": LANGUAGE_MODEL,
    "frozen parameters, and some that get no gradient": DETECTOR,
    "a parameter without dimension": Case(command=("scalar.py",), reason="the parameter logit_scale"),
    "`load_state_dict`, freezing, `.to()`, `deepcopy` between optimizer and first step": Case(
        command=("after_optimizer.py",), also=reduces_what_still_trains
    ),
    "saving `state_dict()`s in mid-run, and loading them again": Case(command=("checkpoint.py",), args=("last",)),
    "loading in mid-run what was saved before training": Case(
        command=("checkpoint.py",), args=("first",), line='model.load_state_dict(checkpoint["model"])'
    ),
    "`torch.save(model)` in mid-run": Case(
        command=("checkpoint.py",), args=("model",), line="torch.save(model, whole)"
    ),
    "dict and nested batches, a collate function": Case(command=("dict_batches.py",)),
    "batches with time first": Case(command=("seq_first.py",)),
    "lists of images": DETECTOR,
    "a sampler of the script's own, `num_workers`": ORDINARY,
    "an endless sampler, persistent workers": TRAINER,
    "a batch sampler, with batches of different sizes": Case(command=("batch_sampler.py",)),
    "`IterableDataset`": Case(command=("iterable.py",), source=ENTERED, warning="taken to be dim 0", same_samples=True),
    "a loop without a DataLoader": LANGUAGE_MODEL,
    "a loss that is summed over the batch": Case(
        command=("mathematics.py",), args=("sum",), warning="the loss is a sum"
    ),
    "looks for `RANK` and distributes itself if it is there": Case(
        command=("seeds_by_rank.py",), args=("0", "list"), also=asks_and_trains_apart
    ),
    "`nn.DataParallel` applied by the script": NOTEBOOK,
    "calls `init_process_group`, `DistributedDataParallel`, `fully_shard` or `mp.spawn`": Case(
        command=("distributes_itself.py",),
        line='dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)',
        reason="init_process_group",
    ),
    "trains through a method: `model.loss(x)` calls `self.forward(x)`": Case(
        command=("method_loss.py",),
        warning="trained through Net.loss, which stands for its call",
        wrapped_at=2,
        also=wraps_the_whole_model,
    ),
    "trains a tensor that is in no `nn.Module`": Case(
        command=("nothing.py",), args=("no_module",), reason="no module could be wrapped"
    ),
}


def modes_of(case: Case) -> tuple[str, ...]:
    """Return the modes to run a case in: without a GPU nn.DataParallel is the plain module, for one case as for all."""
    return MODES if HAS_GPU or case is ORDINARY else tuple(mode for mode in MODES if mode != "dp")


def test_every_row_has_a_case_and_every_case_a_row():
    assert list(compatibility_table.read()) == list(CASES)
    assert {tuple(row) for row in compatibility_table.read().values()} == {MODES}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Callable[[Case], Profiled]:
    """Give a function that profiles a case in all modes; rows that share a case share its launches."""
    project = tmp_path_factory.mktemp("table") / "project"
    shutil.copytree(SCRIPTS, project, ignore=shutil.ignore_patterns("__pycache__"))

    @functools.cache
    def profile(case: Case) -> Profiled:
        root = tmp_path_factory.mktemp("run") / "run"
        environment = watched_by_an_oracle() if case.has_oracle else None
        options = ("--modes", ",".join(modes_of(case)[1:]), "--out", str(root), *SHORT, *case.options)
        done = dpdoctor("profile", *options, *case.command, "--", *case.args, cwd=project, environment=environment)
        return Profiled(exit_code=done.returncode, output=done.stdout + done.stderr, root=root)

    return profile


def in_group(kind: str) -> str:
    """Return what a row's test is called: rows that share a case are a group, and run in one process."""
    case = CASES[kind]
    return f"{' '.join((*case.command, *case.args))}{GROUP}{kind}"


@pytest.mark.parametrize("kind", CASES, ids=in_group)
def test_a_kind_of_script_ends_as_its_row_says(run, kind):
    case, row = CASES[kind], compatibility_table.read()[kind]
    done, modes = run(case), modes_of(case)
    assert done.exit_code == any(row[mode].outcome == "failed" for mode in modes[1:]), done.output
    for mode in modes:
        cell = row[mode]
        if cell.outcome == "failed":
            assert_failed(done, mode, cell, case)
        else:
            assert_right(done, mode, case)
    case.also(done)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.float32])
def test_the_oracle_sees_tensors_of_types_that_numpy_does_not_know(monkeypatch, dtype):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])  # it puts itself there
    monkeypatch.setenv("DPDOCTOR_TEST_ORACLE", "somewhere")
    oracle = runpy.run_path(str(ORACLE / "sitecustomize.py"))
    for value in (0, 1, 1):
        oracle["called"](torch.nn.Linear(2, 2), (torch.full((2, 2), value).to(dtype),))
        oracle["returned"]()
    of_zeros, *of_ones = oracle["CALLS"].digests
    assert of_ones == [of_ones[0]] * 2
    assert of_zeros != of_ones[0]


def watched_by_an_oracle() -> dict[str, str]:
    """Return the environment in which an oracle looks on, and writes to a folder of caches, where files stay.

    It is the same for all cases: each environment takes a server of its own.
    """
    folder = seen_folder()
    folder.mkdir(exist_ok=True)
    paths = filter(None, (str(ORACLE), os.environ.get("PYTHONPATH")))
    told = {"PYTHONPATH": os.pathsep.join(paths), "DPDOCTOR_TEST_ORACLE": str(folder), "HF_DATASETS_CACHE": str(folder)}
    return {**os.environ, **told}


def seen_folder() -> Path:
    """Return where the oracle writes, in a file for each process."""
    return Path(os.environ[SERVERS_VARIABLE], "oracle")


def assert_failed(done: Profiled, mode: str, cell: compatibility_table.Cell, case: Case) -> None:
    """The mode gives its reason, and the line where the table says so, but no figure."""
    summary = done.mode(mode)
    assert summary["status"] == "failed"
    assert case.reason in summary["reason"]
    assert summary["throughput"]["value"] is None
    named = re.search(r"(/[^\s(]*\.py):(\d+)", summary["reason"])
    if "with the line" in cell.remark:
        assert named, summary["reason"]
        assert Path(named[1]).read_text().splitlines()[int(named[2]) - 1].strip() == case.line


def assert_right(done: Profiled, mode: str, case: Case) -> None:
    """The mode is proved, warns where the table says so, and every rank counted what its script printed."""
    summary = done.mode(mode)
    inactive = mode == "dp" and not HAS_GPU
    assert summary["status"] == ("inactive" if inactive else "ok"), summary["reason"]
    conversion = done.record(mode).conversion
    assert all(check.ok for check in conversion.proof), conversion.proof
    same = case.same_samples and summary["world_size"] > 1
    expected = [case.warning] * warns(case, mode) + ["train on the same samples"] * same
    assert len(conversion.warnings) == len(expected), conversion.warnings
    assert all(part in text for part, text in zip(expected, conversion.warnings, strict=True)), conversion.warnings
    assert summary["batch"]["source"] == case.source
    times = 1 if same else summary["world_size"]
    assert summary["batch"]["global"] == pytest.approx(summary["batch"]["per_device"] * times)
    for rank in range(summary["world_size"]):
        assert_counted(done, mode, rank, case)
    if case.has_oracle:
        assert_as_seen(done, mode, same=same)


def warns(case: Case, mode: str) -> bool:
    """Return whether one of the rows that the case stands for has `with a warning` in this mode."""
    rows = compatibility_table.read()
    return any("with a warning" in rows[kind][mode].remark for kind, other in CASES.items() if other is case)


def assert_counted(done: Profiled, mode: str, rank: int, case: Case) -> None:
    """A rank counted the steps and samples that its script printed."""
    printed = [int(number) for number in re.findall(r"^(\d+)\b", done.printed(mode, rank), re.MULTILINE)]
    steps = done.rank(mode, rank).steps
    counts = [step.samples_drawn if case.source == DRAWN else step.samples_entered for step in steps]
    before = case.wrapped_at - 1
    assert (sum(counts[:before]), counts[before:]) == (0, printed[before:])
    if len(set(printed)) == 1:
        assert done.mode(mode)["batch"]["per_device"] == printed[0]


def assert_as_seen(done: Profiled, mode: str, *, same: bool) -> None:
    """Every step ended when its optimizer had stepped; and of all ranks, none or all trained on the same."""
    steps = [seen_by_the_oracle(rank) for rank in done.launch(mode).ranks]
    alike = [all(digests == of_step[0] for digests in of_step) for of_step in zip(*steps, strict=False)]
    assert alike
    assert all(alike) if same else len(steps) == 1 or not any(alike)


def seen_by_the_oracle(rank: Rank) -> list[list[str]]:
    """Return the digests of all that was trained on in each step, as the oracle saw it end between two of its own."""
    assert rank.record is not None
    path = seen_folder() / f"steps-{rank.record.pid}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ends = [step.begin_ns + step.duration_ns for step in rank.steps]
    for optimizer in {line["optimizer"] for line in lines}:
        stamps = [line["at_ns"] for line in lines if line["optimizer"] == optimizer]
        after = [*stamps[1:], math.inf]
        if len(ends) <= len(stamps) and all(a <= end < b for a, end, b in zip(stamps, ends, after, strict=False)):
            begins = [-math.inf, *stamps]
            return [
                sorted(digest for line in lines if begin < line["at_ns"] <= end for digest in line["digests"])
                for begin, end in zip(begins, stamps, strict=False)
            ]
    raise AssertionError(f"no optimizer stepped at {ends}")
