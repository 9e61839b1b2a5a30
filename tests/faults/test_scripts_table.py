"""The README's table of scripts that work unchanged: each kind of script in each mode, as it really ends.

The scripts print the samples of every batch that they train on, so that what was counted is checked against them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.faults.conftest import SHORT, Profiled

RANKS = {"single": 1, "ddp": 2, "fsdp": 2}
DRAWN = "indices drawn by the loader"
ENTERED = "dim 0 of the first tensor of forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One script. `samples` per step and device, None where batches differ; `failed`: mode and part of its reason."""

    script: str
    args: tuple[str, ...] = ()
    samples: int | None
    source: str = DRAWN
    failed: dict[str, str] = field(default_factory=dict)


CASES = {
    "bf16 autocast": Case(script="amp.py", args=("bf16",), samples=8),
    "fp16 with a GradScaler": Case(script="amp.py", args=("fp16",), samples=8),
    "own optimizer class": Case(script="custom_optimizer.py", args=("derived",), samples=8),
    "optimizer outside of torch": Case(script="custom_optimizer.py", args=("plain",), samples=8),
    "L-BFGS": Case(script="lbfgs.py", samples=32, failed={"fsdp": "lbfgs.py:22 does `optimizer.step(closure)`"}),
    "dict batches": Case(script="dict_batches.py", samples=5),
    "time first": Case(script="seq_first.py", samples=5),
    "lists of images": Case(script="lists_of_images.py", samples=4),
    "trainer class under click": Case(script="class_trainer.py", samples=6),
    "frozen and unused layers": Case(script="frozen_unused.py", samples=8),
    "saves a checkpoint": Case(script="checkpoint.py", args=("save",), samples=8),
    "loads a checkpoint in mid-run": Case(script="checkpoint.py", args=("load",), samples=8),
    "loads whole tensors in mid-run": Case(
        script="checkpoint.py",
        args=("restart",),
        samples=8,
        failed={"fsdp": 'checkpoint.py:31 does `model.load_state_dict(checkpoint["model"])`'},
    ),
    "batch sampler": Case(script="batch_sampler.py", samples=None),
    "iterable dataset with workers": Case(script="iterable.py", samples=8, source=ENTERED),
    "nn.DataParallel": Case(script="dataparallel.py", samples=8),
    "no loader": Case(script="no_loader.py", samples=None, source=ENTERED),
}


def assert_counted(done: Profiled, mode: str, case: Case) -> None:
    """Every rank counted the steps and samples that its script printed."""
    batch = done.mode(mode)["batch"]
    assert batch["source"] == case.source
    assert batch["global"] == pytest.approx(batch["per_device"] * RANKS[mode])
    if case.samples is not None:
        assert batch["per_device"] == case.samples
    for rank in range(RANKS[mode]):
        printed = [int(line.split()[0]) for line in done.printed(mode, rank).splitlines()]
        steps = done.rank(mode, rank).steps
        counts = [step.samples_drawn if case.source == DRAWN else step.samples_entered for step in steps]
        # Without a torch optimizer the model is adopted at its second forward, which the first batch is counted to.
        assert (sum(counts[:2]), counts[2:]) == (sum(printed[:2]), printed[2:])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_kind_of_script_ends_as_the_table_says(profile, case):
    done = profile(case.script, "--modes", "ddp,fsdp", "--batch", "per-device", *SHORT, args=case.args)
    assert done.exit_code == bool(case.failed), done.output
    for mode in RANKS:
        summary = done.mode(mode)
        if mode in case.failed:
            assert summary["status"] == "failed"
            assert case.failed[mode] in summary["reason"]
            assert summary["throughput"]["value"] is None
        else:
            assert summary["status"] == "ok", summary["reason"]
            assert not [check for check in done.record(mode).adoption.proof if check.ok is False]
            assert_counted(done, mode, case)
