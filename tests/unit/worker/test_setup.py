from __future__ import annotations

import pytest
import torch

from dpdoctor.worker import setup


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its own name")
def test_a_cpu_is_named_with_its_threads() -> None:
    assert setup.device_name(1).startswith("CPU (")
    assert setup.device_name(1).endswith("), 1 thread")
    assert setup.device_name(8).endswith("), 8 threads")
    assert setup.devices() == ()
