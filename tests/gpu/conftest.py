"""Tests that need a GPU: the whole folder is skipped without one."""

from __future__ import annotations

import pytest
import torch

from tests.faults.conftest import profile

__all__ = ["profile"]


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip everything here on a machine where torch finds no GPU."""
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
