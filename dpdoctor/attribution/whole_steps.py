"""Which steps of the host were recorded whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.device_steps import step_windows
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.intervals import Spans


def whole_steps(steps: HostSteps, observed: Sequence[DeviceEvents]) -> Spans:
    """Return int64[k, 2]: when the host ran the steps that are whole on some device, as `step_windows` judges."""
    numbers = [step_windows(steps, device).numbers for device in observed]
    return steps.spans[np.isin(steps.numbers, np.concatenate([np.empty(0, np.int64), *numbers]))]
