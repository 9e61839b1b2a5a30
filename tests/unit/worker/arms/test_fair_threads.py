from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dpdoctor.worker.arms.fair_threads import ARM, SHARE_VARIABLE

# The arm needs nothing of the rank that it runs on.
BENCH = None


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the rank a share of two threads, and torch its own number back afterwards."""
    before = torch.get_num_threads()
    monkeypatch.setenv(SHARE_VARIABLE, "2")
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


@pytest.mark.parametrize("share", ["", "0", "many"])
def test_an_unknown_share_cannot_be_taken(monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    monkeypatch.setenv(SHARE_VARIABLE, share)
    torch.set_num_threads(5)
    assert SHARE_VARIABLE in (ARM.unfit(BENCH) or "")
