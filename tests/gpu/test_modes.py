"""Every mode on one GPU: it trains as `single` does, proves what it did, and is sampled and measured."""

from __future__ import annotations

import math

import pynvml
import pytest
import torch

from dpdoctor.launch import machine
from tests.faults.conftest import SCRIPTS, Profiled

pytestmark = pytest.mark.gpu

TRAIN = "../../gpu/scripts/train.py"
FORWARD_LINE = 1 + next(
    number for number, line in enumerate((SCRIPTS / TRAIN).read_text().splitlines()) if "def forward" in line
)
SHORT = ("--warmup", "10", "--steps", "20", "--rounds", "2", "--trace-steps", "2", "--ablations", "none")
TWO_ON_ONE = ("--modes", "dp", "--dp-devices", "0,0")


def losses(done: Profiled, mode: str, most: int = 20) -> list[float]:
    return [float(line.split()[1]) for line in done.printed(mode).splitlines()][:most]


def texts(done: Profiled, mode: str) -> list[str]:
    """Return what the proof of a mode says; no check of it may have failed."""
    proof = done.record(mode).conversion.proof
    assert proof
    assert all(check.ok is not False for check in proof), proof
    return [check.text for check in proof]


def follows_single(done: Profiled, mode: str, tolerance: float = 1e-3) -> bool:
    alone, found = losses(done, "single"), losses(done, mode)
    assert len(alone) == len(found) == 20
    return all(math.isclose(a, b, rel_tol=tolerance) for a, b in zip(alone, found, strict=True))


def test_ddp_and_fsdp_with_one_rank_over_nccl_train_as_single_does(profile):
    done = profile(TRAIN, "--modes", "ddp,fsdp", "--nproc", "1", *SHORT)
    assert done.exit_code == 0, done.output
    for mode, backend in (("single", None), ("ddp", "cpu:gloo,cuda:nccl"), ("fsdp", "cpu:gloo,cuda:nccl")):
        record, summary = done.record(mode), done.mode(mode)
        assert (record.device, record.backend) == (torch.cuda.get_device_name(0), backend)
        assert summary["throughput"]["value"] > 0
        assert summary["phases"]["h2d"]["value"] > 0
        assert record.peak_memory_bytes > 0
        assert follows_single(done, mode), texts(done, mode)
    assert any("all-reduced" in text for text in texts(done, "ddp"))
    texts(done, "fsdp")


def test_two_replicas_on_one_gpu_are_real_and_say_what_they_are(profile):
    done = profile(TRAIN, *TWO_ON_ONE, *SHORT)
    assert done.exit_code == 0, done.output
    assert "2 replicas on one GPU: 0,0" in done.output
    summary = done.mode("dp")
    assert (summary["status"], summary["world_size"], summary["num_devices"]) == ("ok", 1, 1)
    assert summary["batch"]["rule"] == "global"
    assert "2 replicas on one GPU ran in 1 training forward of a step" in texts(done, "dp")
    assert follows_single(done, "dp")
    assert {step.samples_drawn for step in done.rank("dp").steps} == {64}


def test_on_one_gpu_data_parallel_makes_no_replicas_and_says_so(profile):
    done = profile(TRAIN, "--modes", "dp", "--nproc", "1", *SHORT)
    assert done.exit_code == 0, done.output
    assert done.mode("dp")["status"] == "inactive"
    assert "--dp-devices 0,0 puts two replicas on it" in done.mode("dp")["reason"]
    assert any("--dp-devices 0,0 puts two on it" in text for text in texts(done, "dp"))
    assert follows_single(done, "dp")


def test_a_model_that_is_called_twice_before_its_backward_pass_trains_in_every_mode(profile):
    done = profile("../../../samples/gan.py", "--modes", "dp,ddp,fsdp", "--nproc", "1", "--dp-devices", "0,0", *SHORT)
    assert done.exit_code == 0, done.output
    for mode in ("dp", "ddp", "fsdp"):
        texts(done, mode)


def test_a_forward_that_returns_its_loss_is_named_with_its_line(profile):
    done = profile(TRAIN, *TWO_ON_ONE, *SHORT, args=["--loss", "inside"])
    assert done.exit_code == 1
    assert done.mode("single")["status"] == "ok"
    reason = done.mode("dp")["reason"]
    assert reason.startswith("forward returns a scalar loss (")
    assert f"train.py:{FORWARD_LINE}); nn.DataParallel gathers one per device into a vector" in reason


def test_a_script_that_averages_the_losses_trains_with_a_remark(profile):
    done = profile(TRAIN, *TWO_ON_ONE, *SHORT, args=["--loss", "averaged"])
    assert done.exit_code == 0, done.output
    texts(done, "dp")
    assert any("forward returns a scalar" in text for text in done.record("dp").conversion.warnings)
    assert follows_single(done, "dp")


def test_a_replica_without_parameters_is_explained(profile):
    done = profile(TRAIN, *TWO_ON_ONE, *SHORT, args=["--ask-for-parameters"])
    assert done.exit_code == 1
    assert "raised StopIteration in a replica of nn.DataParallel" in done.mode("dp")["reason"]


def test_a_script_that_stays_on_the_cpu_trains_there_and_dp_says_what_it_needs(profile):
    done = profile(TRAIN, "--modes", "ddp,dp", "--dp-devices", "0,0", *SHORT, args=["--device", "cpu"])
    assert done.exit_code == 1
    assert done.mode("ddp")["status"] == "ok"
    assert done.record("ddp").peak_memory_bytes > 0
    assert "needs the whole module on cuda:0, but layers.0.weight is on cpu" in done.mode("dp")["reason"]


@pytest.mark.parametrize(("amp", "tolerance"), [("bf16", 5e-2), ("fp16", 2e-2)])
def test_mixed_precision_in_every_mode(profile, amp, tolerance):
    options = ("--modes", "ddp,fsdp,dp", "--nproc", "1", "--dp-devices", "0,0", *SHORT)
    done = profile(TRAIN, *options, args=["--amp", amp])
    assert done.exit_code == 0, done.output
    for mode in ("ddp", "fsdp", "dp"):
        assert follows_single(done, mode, tolerance), texts(done, mode)
    # torch does not hand the type of autocast on to the replicas' threads.
    remarked = any("autocast to bfloat16 becomes float16" in text for text in done.record("dp").conversion.warnings)
    assert remarked is (amp == "bf16")


@pytest.mark.parametrize("options", [("--modes", "ddp", "--no-baseline"), (*TWO_ON_ONE, "--no-baseline")])
def test_the_gpu_that_is_used_is_sampled_by_its_uuid(profile, options):
    done = profile(TRAIN, *options, "--nproc", "1", "--rounds", "5")
    assert done.exit_code == 0, done.output
    mode = options[1]
    (device,) = done.record(mode).devices
    assert device.uuid in {gpu.uuid for gpu in machine.gpus()[0]}
    assert device.peak_memory_bytes == done.record(mode).peak_memory_bytes > 0
    samples = [sample for sample in done.launch(mode).samples if sample.source.startswith("gpu")]
    assert {sample.source for sample in samples} == {"gpu0"}
    assert len(samples) >= 2
    for sample in samples:
        assert sample.values["memory_used_bytes"] > 0
        assert 0 <= sample.values["kernel_running_ratio"] <= 1
        assert set(sample.values) & set(sample.unknown) == set()


def cycles_for(seconds: float) -> int:
    """Return the argument of torch.cuda._sleep for so long, at the clock that the GPU has when it works."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 100_000_000
    torch.cuda._sleep(cycles)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return int(cycles * seconds / (begin.elapsed_time(end) / 1000))


def test_a_step_lasts_as_long_as_the_gpu_works_though_the_host_runs_ahead(profile):
    planted_s = 0.02
    # Little else happens in a step, so the host could queue a whole window before the first kernel ends.
    done = profile(
        TRAIN,
        "--modes",
        "single",
        "--warmup",
        "5",
        "--steps",
        "10",
        args=["--sleep-cycles", str(cycles_for(planted_s))],
    )
    assert done.exit_code == 0, done.output
    # The clock may differ between the two processes.
    assert 0.8 * planted_s < done.mode("single")["step"]["value"] < 1.5 * planted_s


def test_nvml_answers_under_the_names_that_the_sampler_uses():
    from dpdoctor.launch import sampling

    uuid = machine.gpus()[0][0].uuid
    with sampling.gpu_sampler(0, uuid) as sampler:
        sample = sampler.sample()
    assert {*sample.values, *sample.unknown} == set(sampling._GPU_QUERIES)
    assert sample.values["memory_used_bytes"] > 0
    with pytest.raises(pynvml.NVMLError), sampling.gpu_sampler(0, "GPU-00000000-0000-0000-0000-000000000000"):
        pass
