"""What HolisticTraceAnalysis takes to read a trace and break its time down; trace_reading.py runs it elsewhere."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import tempfile
import time
from pathlib import Path


def cpu_s() -> float:
    """Return the CPU time of this process and of its children that ended."""
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def peak_bytes() -> int:
    """Return the most memory this process held; getrusage would count what its parent held when it forked."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "rank1.json.gz")
        trace.symlink_to(Path(sys.argv[1]).resolve())
        begin, cpu_begin = time.perf_counter(), cpu_s()
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 the benchmark's own output is read by a program
            out, sys.stdout = sys.stdout, nowhere
            TraceAnalysis(trace_files={1: str(trace)}, trace_dir=folder).get_temporal_breakdown(visualize=False)
            sys.stdout = out
        wall, cpu = time.perf_counter() - begin, cpu_s() - cpu_begin
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
