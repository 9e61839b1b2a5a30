from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from dpdoctor.worker.ablations.fair_threads import ABLATION

# All that the ablation looks at.
BENCH = SimpleNamespace(fair_threads=2)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Give torch its own number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_torch_has_the_share_in_its_windows_only() -> None:
    torch.set_num_threads(5)
    assert ABLATION.unfit(BENCH) is None
    ABLATION.begin(BENCH)
    assert torch.get_num_threads() == 2
    assert ABLATION.end(BENCH) is None
    assert torch.get_num_threads() == 5


@pytest.mark.parametrize("number", [1, 2])
def test_a_script_that_takes_no_more_than_its_share_needs_no_ablation(number: int) -> None:
    torch.set_num_threads(number)
    assert "no more threads" in (ABLATION.unfit(BENCH) or "")
