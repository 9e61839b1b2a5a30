"""The gate over jobs that dpdoctor does not start: their own collectives are counted."""

from __future__ import annotations

import json

import pytest

from tests.commands import dpdoctor
from tests.faults.conftest import NO_WALL, TWO_FORKED, in_turn

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))  # 66 kB of gradients each
model = DistributedDataParallel(layers, bucket_cap_mb={bucket_cap_mb})
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(10_000):
    loss = model(torch.ones(4, 128)).square().mean()
    loss.backward()
    {more}
    optimizer.step()
    optimizer.zero_grad()
"""
AS_IT_WAS = {"bucket_cap_mb": 0.3, "more": "pass"}


@pytest.mark.parametrize(
    ("change", "exit_code", "told"),
    [
        in_turn({}, 0, {}),
        ({"more": "dist.all_reduce(loss.detach())"}, 3, {"all_reduce.count": (2, 3), "all_reduce.bytes": None}),
        in_turn({"bucket_cap_mb": 0.15}, 3, {"all_reduce.count": (2, 3)}),
    ],
)
def test_one_more_exchange_and_a_bucket_halved_fail(tmp_path, change, exit_code, told):
    for side, values in (("base", AS_IT_WAS), ("head", {**AS_IT_WAS, **change})):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(SCRIPT.format(**values))
    done = dpdoctor(
        *("gate", "--exact", "--base", "base", "--head", "head", "--modes", "native", *TWO_FORKED),
        *("--warmup", "5", "--out", "out", "train.py"),
        cwd=tmp_path,
    )
    if NO_WALL in (done.stdout + done.stderr).replace("\n", " "):
        pytest.skip("this machine lets no user make a mount namespace, in which files are protected")
    assert done.returncode == exit_code, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "gate.json").read_text())
    found = {item["name"]: (item["base"], item["head"]) for item in result["exact"]["native"]["differences"]}
    for name, values in told.items():
        assert name in found
        assert values in {None, found[name]}
    assert bool(found) is bool(told)
