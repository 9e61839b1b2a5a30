from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from dpdoctor.worker.arms.fair_threads import ARM

# All that the arm looks at.
BENCH = SimpleNamespace(fair_threads=2)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Give torch its own number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_torch_has_the_share_in_its_windows_only() -> None:
    torch.set_num_threads(5)
    assert ARM.unfit(BENCH) is None
    ARM.begin(BENCH)
    assert torch.get_num_threads() == 2
    assert ARM.end(BENCH) is None
    assert torch.get_num_threads() == 5


@pytest.mark.parametrize("number", [1, 2])
def test_a_script_that_takes_no_more_than_its_share_needs_no_arm(number: int) -> None:
    torch.set_num_threads(number)
    assert "no more threads" in (ARM.unfit(BENCH) or "")
