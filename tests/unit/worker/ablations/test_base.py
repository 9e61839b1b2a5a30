from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from dpdoctor.worker.ablations._base import Precision
from dpdoctor.worker.base.patches import Patches


@pytest.fixture
def precision(patches: Patches) -> Precision:
    found = Precision()
    found.watch(patches)
    return found


def test_the_line_that_enters_autocast_is_told(precision: Precision) -> None:
    with torch.autocast("cpu", enabled=False):
        assert precision.already() is None
    with torch.autocast("cpu"):
        pass
    assert str(Path(__file__)) in (precision.already() or "")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaler_that_is_used_is_known(precision: Precision, enabled: bool) -> None:
    scaler = GradScaler("cpu", enabled=enabled)
    assert precision.scalers() == []
    scaler.scale(torch.ones(1))
    assert precision.scalers() == ([scaler] if enabled else [])
    assert (precision.already() is not None) is enabled
