"""How long kernels wait on the device after they were launched: whether host or device is ahead."""

from __future__ import annotations

import numpy as np

from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.digest import Quantiles
from dpdoctor.trace.columns import UNKNOWN, Kind
from dpdoctor.trace.model import Trace

_GRAPH_LAUNCH = r"GraphLaunch"


def launch_delay(trace: Trace, device: DeviceEvents) -> Quantiles | None:
    """Return, over kernels, the time from the end of the launching call to the begin; None: no launch is known.

    Microseconds: the device waits for the host. Milliseconds: the host runs ahead (HTA's "launch delay"). Kernels of a
    graph are left out, since all but the first wait for each other.
    """
    asked = (device.events.kind == Kind.KERNEL) & (device.call != UNKNOWN)
    asked[asked] = ~trace.named(_GRAPH_LAUNCH)[trace.events.name[device.call[asked]]]
    if not asked.any():
        return None
    delay = np.maximum(device.events.begin_ns[asked] - device.call_end_ns[asked], 0)
    p50, p90 = np.quantile(delay, (0.5, 0.9)).tolist()
    return Quantiles(n=len(delay), p50_ns=round(p50), p90_ns=round(p90), max_ns=int(delay.max()))
