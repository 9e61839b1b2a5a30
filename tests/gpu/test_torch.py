"""What this version of torch does on a GPU, where the modes rely on it."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.gpu

RANK = Path(__file__).parent / "scripts" / "gloo_rank.py"


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # of a replica's thread, the first time
def test_data_parallel_takes_one_gpu_twice():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).cuda()
    alone, x = copy.deepcopy(model), torch.randn(6, 8)
    found, expected = nn.DataParallel(model, device_ids=[0, 0])(x), alone(x.cuda())
    torch.testing.assert_close(found, expected)
    found.pow(2).mean().backward()
    expected.pow(2).mean().backward()
    for twin, parameter in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(twin.grad, parameter.grad)


def test_two_ranks_on_one_gpu_reduce_over_gloo(tmp_path):
    command = [sys.executable, str(RANK), str(tmp_path / "rendezvous")]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    # The inputs are all 1 on one rank and all 2 on the other: the mean of the two gradients.
    assert [out.split() for out, _ in said] == [["1.5", "1.5", "1.5"]] * 2


def test_the_uuid_that_torch_tells_is_nvmls():
    from dpdoctor.launch import machine

    told = str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    assert f"GPU-{told}" in {gpu.uuid for gpu in machine.gpus()[0]}


# Subscribes as a profiler does: CUPTI takes one subscriber at a time.
SUBSCRIBE = """
import ctypes, torch
from dpdoctor.worker.wrap.counters import StepProfile

ones = torch.ones(2, device="cuda")
profile = StepProfile()
profile.start()
ones.add_(1)
profile.stop()
path = next(line.split()[-1] for line in open("/proc/self/maps") if "libcupti" in line)
callback = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(lambda *_: None)
print(ctypes.CDLL(path).cuptiSubscribe(ctypes.byref(ctypes.c_void_p()), callback, None))
"""


def test_the_profile_of_a_step_leaves_cupti_alone():
    done = subprocess.run([sys.executable, "-c", SUBSCRIBE], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["0"], done.stderr


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD"])
def test_an_optimizer_is_fused_for_a_window_and_counts_its_steps_on_the_host_after_it(kind):
    from dpdoctor.worker.ablations.fused_optimizer import FusedOptimizer

    model = nn.Linear(8, 2).cuda()
    alone = copy.deepcopy(model)
    optimizer, plain = (getattr(torch.optim, kind)(each.parameters(), lr=0.01) for each in (model, alone))
    found = SimpleNamespace(alive=lambda: [optimizer], are_compiled=False)
    context, ablation = SimpleNamespace(optimizers=found, optimizer_share=lambda: None), FusedOptimizer()
    for is_fused in (False, True, False):
        if is_fused:
            assert ablation.unfit(context) is None
            ablation.begin(context)
        for each, of in ((model, optimizer), (alone, plain)):
            of.zero_grad()
            each(torch.ones(3, 8, device="cuda")).square().sum().backward()
            of.step()
        if is_fused:
            assert ablation.end(context) is None
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    counts = [
        [state["step"].device.type for state in of.state.values() if "step" in state] for of in (optimizer, plain)
    ]
    assert counts[0] == counts[1]
