"""Build the report of a run directory and print as JSON what that took; a process of its own, whose peak can be read.

python tests/benchmarks/report_build.py RUN_DIRECTORY REPORT
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from dpdoctor import rundir
from dpdoctor.analysis import analyse
from dpdoctor.report import page
from dpdoctor.report.documents.run import of_run
from dpdoctor.rules import diagnose


def main() -> None:
    root, target = map(Path, sys.argv[1:])
    run = rundir.read(root)
    # From here: scipy is loaded when it is first needed, and that counts.
    begin, cpu = time.perf_counter(), time.process_time()
    analysis = analyse(run)
    analysed = time.perf_counter()
    analysis = diagnose(analysis)
    diagnosed = time.perf_counter()
    html = page.render(of_run(analysis)).encode()
    rendered = time.perf_counter()
    target.write_bytes(html)
    print(
        json.dumps(
            {
                "analyse_s": analysed - begin,
                "diagnose_s": diagnosed - analysed,
                "render_s": rendered - diagnosed,
                "cpu_s": time.process_time() - cpu,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "page_bytes": len(html),
            }
        )
    )


if __name__ == "__main__":
    main()
