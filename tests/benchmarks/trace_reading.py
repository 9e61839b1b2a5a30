"""What reading a trace and breaking its time down costs: against HolisticTraceAnalysis, against its size, in parallel.

    python tests/benchmarks/trace_reading.py TRACE --hta-python OTHER_ENVIRONMENT/bin/python

Each run is a process of its own; runs alternate, and the best of each counts, as other work on the machine only adds.
Imports are not timed, but their memory counts. Bounds: at least 10 times faster than HolisticTraceAnalysis (extra
`benchmark`; the environment of --hta-python, or this one) with at most half of its memory, and `dpdoctor analyze` as a
whole process, imports and all, at least 6 times; 10 times the events in at most 12 times the time and memory; 8 traces
on 2 processes at least 1.5 times faster than one after the other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from dpdoctor import units
from dpdoctor.attribution.digesting import digest_file
from dpdoctor.digest import Digest
from dpdoctor.trace.parallel import each

OURS, THEIRS = "our_breakdown.py", "hta_breakdown.py"
REPEATS = 10
RANKS = 8
SHIFT_US = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run took, or the least that any of several took."""

    wall_s: float
    cpu_s: float
    peak_bytes: int

    def least(self, other: Cost) -> Cost:
        """Return the less of both, figure by figure."""
        return Cost(
            wall_s=min(self.wall_s, other.wall_s),
            cpu_s=min(self.cpu_s, other.cpu_s),
            peak_bytes=min(self.peak_bytes, other.peak_bytes),
        )

    def __str__(self) -> str:
        return f"{units.seconds(self.wall_s)}, CPU {units.seconds(self.cpu_s)}, peak {units.size(self.peak_bytes)}"


def best_of(runs: int, *commands: list[str]) -> list[Cost]:
    """Return the least that each command took in so many alternating runs."""
    best: list[Cost] = []
    for _ in range(runs):
        found = [
            Cost(**json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)) for line in commands
        ]
        best = [old.least(new) for old, new in zip(best or found, found, strict=True)]
    return best


def command(script: str, path: Path, python: str = sys.executable) -> list[str]:
    """Return the command that measures one breakdown."""
    return [python, str(Path(__file__).with_name(script)), str(path)]


def against_hta(path: Path, python: str, runs: int) -> None:
    """Print time and memory against HolisticTraceAnalysis."""
    mine, other = best_of(runs, command(OURS, path), command(THEIRS, path, python))
    print(f"dpdoctor: {mine}")
    print(f"HolisticTraceAnalysis: {other}")
    print(
        f"  {units.times(other.wall_s / mine.wall_s)} as fast, {units.times(other.cpu_s / mine.cpu_s)} less CPU time "
        f"(bound 10x); {units.share(mine.peak_bytes / other.peak_bytes)} of the memory (bound 50%)"
    )


def whole_process(path: Path) -> tuple[float, float]:
    """Return the seconds and the seconds of CPU time from the start of `dpdoctor analyze` to its end."""
    # Where this is set, each process compiles every module anew, which no installed package does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    line = [sys.executable, "-m", "dpdoctor", "analyze", str(path), "--format", "json"]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=environment)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def command_against_hta(path: Path, python: str, runs: int) -> None:
    """Print what the whole command takes against the breakdown alone of HolisticTraceAnalysis; medians."""
    whole_process(path)  # compiles what is not compiled
    pairs = [(whole_process(path), best_of(1, command(THEIRS, path, python))[0]) for _ in range(runs)]
    wall, cpu = (median(mine[which] for mine, _ in pairs) for which in (0, 1))
    other_wall, other_cpu = median(other.wall_s for _, other in pairs), median(other.cpu_s for _, other in pairs)
    print(f"dpdoctor analyze, the whole process: {units.seconds(wall)}, CPU {units.seconds(cpu)}")
    print(
        f"  {units.times(other_wall / wall)} as fast as the breakdown of HolisticTraceAnalysis without its imports, "
        f"{units.times(other_cpu / cpu)} less CPU time (bound 6x)"
    )


def repeated(path: Path, target: Path) -> None:
    """Write a trace with REPEATS times the events, each time later and with correlations of their own."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = trace.pop("traceEvents")
    with gzip.open(target, "wt", compresslevel=1) as file:
        file.write(json.dumps(trace)[:-1] + ', "traceEvents": [')
        for number in range(REPEATS):
            for event in events:
                event["ts"] = event.get("ts", 0) + SHIFT_US
                for key in {"correlation", "External id"} & event.get("args", {}).keys():
                    event["args"][key] += SHIFT_US
            file.write(", " * (number > 0) + json.dumps(events)[1:-1])
        file.write("]}")


def against_size(path: Path, folder: Path, runs: int) -> None:
    """Print what REPEATS times the events cost."""
    long = folder / "long.json.gz"
    repeated(path, long)
    one, many = best_of(runs, command(OURS, path), command(OURS, long))
    print(f"{REPEATS} times the events: {many}")
    print(
        f"  {units.times(many.wall_s / one.wall_s)} the time, {units.times(many.cpu_s / one.cpu_s)} the CPU time, "
        f"{units.times(many.peak_bytes / one.peak_bytes)} the memory (bound 12x)"
    )


def in_parallel(path: Path, folder: Path, runs: int) -> None:
    """Print what two processes gain over one in digesting RANKS copies of the trace, their start included."""
    paths = [folder / f"rank{rank}{''.join(path.suffixes)}" for rank in range(RANKS)]
    for link in paths:
        link.symlink_to(path.resolve())

    def seconds(processes: int) -> float:
        begin = time.perf_counter()
        found = list(each(digest_file, paths, processes=processes))
        assert [digest.source for digest in found if isinstance(digest, Digest)] == [path.name for path in paths]
        return time.perf_counter() - begin

    alternating = [(seconds(1), seconds(2)) for _ in range(runs)]
    one, two = (min(times) for times in zip(*alternating, strict=True))
    print(f"{RANKS} traces: {units.seconds(one)} one after the other, {units.seconds(two)} on 2 processes")
    print(f"  {units.times(one / two)} as fast (bound 1.5x)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--hta-python", default=sys.executable, help="of an environment with HolisticTraceAnalysis")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        against_hta(args.trace, args.hta_python, args.runs)
        command_against_hta(args.trace, args.hta_python, args.runs)
        against_size(args.trace, folder, args.runs)
        in_parallel(args.trace, folder, args.runs)


if __name__ == "__main__":
    main()
