from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dpdoctor.worker import setup


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its own name")
def test_a_cpu_is_named_with_its_threads() -> None:
    assert setup.device_name(1).startswith("CPU (")
    assert setup.device_name(1).endswith("), 1 thread")
    assert setup.device_name(8).endswith("), 8 threads")
    assert setup.devices() == ()


def test_a_gpu_is_named_by_its_number_with_the_memory_that_this_process_has_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = ["1-2", "MIG-3-4"]
    of = [SimpleNamespace(name="Example", uuid=number, total_memory=20_000) for number in numbers]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(of))
    monkeypatch.setattr(torch.cuda, "get_device_properties", of.__getitem__)
    assert [(device.uuid, device.memory_bytes) for device in setup.devices()] == [
        ("GPU-1-2", 20_000),
        ("MIG-3-4", 20_000),
    ]
