"""What tests of ablations share: a process group of one rank, whose calls are seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.exchanges import Exchanges
from dpdoctor.worker.timing.phases import PhaseClock


@pytest.fixture
def exchanges(tmp_path: Path) -> Iterator[Exchanges]:
    """Give what sees a group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    patches, seen = Patches(), Exchanges(PhaseClock(iter(range(10**9)).__next__), times=False)
    seen.watch(patches)
    yield seen
    patches.undo()
    dist.destroy_process_group()
