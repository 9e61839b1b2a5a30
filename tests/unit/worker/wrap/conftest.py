"""A rank in a mode that notes what it is asked to convert."""

from __future__ import annotations

import pytest

from dpdoctor.worker.base.patches import Patches
from tests.builders.rig import Recording, Rig


@pytest.fixture
def mode() -> Recording:
    """Give the mode."""
    return Recording()


@pytest.fixture
def rig(patches: Patches, mode: Recording) -> Rig:
    """Give the watching parts of a rank in that mode."""
    return Rig(patches, mode)
