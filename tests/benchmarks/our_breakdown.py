"""What dpdoctor takes to read a trace and break its time down; run by trace_reading.py. Imports are not timed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hta_breakdown import peak_bytes

from dpdoctor.attribution.breakdown import occupancy, whole_span
from dpdoctor.attribution.device_events import device_events
from dpdoctor.attribution.steps import training_thread
from dpdoctor.digest import Breakdown
from dpdoctor.trace.reader import read


def breakdown(path: Path) -> list[Breakdown]:
    """Return the breakdown of each device over its whole span."""
    trace = read(path)
    devices = device_events(trace, training_thread(trace))
    return [breakdown for device in devices for breakdown in occupancy(device).breakdowns(whole_span(device))]


def main() -> None:
    begin, cpu_begin = time.perf_counter(), time.process_time()
    breakdown(Path(sys.argv[1]))
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
