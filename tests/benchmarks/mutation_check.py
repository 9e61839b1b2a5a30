"""Does the fast suite notice when something breaks? Deliberate defects, one at a time, each must turn it red.

    python tests/benchmarks/mutation_check.py                        # the fast suite, stopped at its first failure
    python tests/benchmarks/mutation_check.py --only swapped_batches -- tests/unit -x

Each defect is one replacement in a copy of the last commit; the tests run in that copy, which the commands that they
start import too. A text that is not in its file any more is an error: the defect must follow the code. First the copy
is tested as it is, as a suite that is red anyway proves nothing. Printed is a table with the test that failed first.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAST_SUITE = (
    "-x",
    "-q",
    "-n",
    "logical",
    "-m",
    "not measured and not slow and not new_processes",
    "tests/unit",
    "tests/faults",
)
# This would notice every defect: it looks for their texts.
_KNOWS_THEM = "tests/unit/benchmarks/test_mutation_check.py"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that somebody may break: `before`, which stands in `path` below dpdoctor once, becomes `after`."""

    path: str
    before: str
    after: str


DEFECTS = {
    # cli, launch
    "failed_mode_exits_with_0": Defect(
        "cli/profile.py", 'record.status == "failed" or (', 'record.status == "interrupted" or ('
    ),
    "rank_ended_by_us_is_blamed": Defect("launch/watch.py", "return (2, rank.rank)", "return (-1, rank.rank)"),
    # worker
    "no_barrier_before_the_trace": Defect("worker/conductor.py", "            parts.agreement.gather([0])\n", ""),
    "failed_proof_is_ignored": Defect(
        "worker/conductor.py", "for check in checks if check.ok is False)", "for check in checks if check.ok is ...)"
    ),
    "ranks_may_drift_apart": Defect(
        "worker/conductor.py", "numbers[0] for numbers in sums}) > 1", "numbers[0] for numbers in sums}) > 2"
    ),
    "swapped_batches": Defect("worker/data/shard.py", "yield group[self.rank]", "yield group[self.rank - 1]"),
    "fsdp_ranks_begin_apart": Defect("worker/modes/fsdp.py", "        _broadcast(module)\n", ""),
    "nested_phase_counts_twice": Defect(
        "worker/timing/phases.py",
        "            since_ns = now_ns\n",
        "",
    ),
    "home_in_a_temporary_directory_is_free": Defect(
        "worker/overlay/territory.py", "        if inside.startswith(self._homes):\n            return False\n", ""
    ),
    # trace, attribution
    "unix_time_loses_nanoseconds": Defect(
        "trace/values.py",
        "whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1e3).astype(np.int64)",
        "np.rint(us * 1e3).astype(np.int64)",
    ),
    "copies_hide_communication": Defect(
        "attribution/device_events.py", "    COMM = 1\n    H2D = 2\n", "    COMM = 2\n    H2D = 1\n"
    ),
    # analysis
    "shares_of_busy_time": Defect(
        "analysis/breakdown.py",
        "for key in keys), one.total_ns) for one in _each(common, unknown)]",
        'for key in keys), one.total_ns - one.parts_ns["idle"]) for one in _each(common, unknown)]',
    ),
    "intervals_of_90_percent": Defect(
        "analysis/base/stats.py", "student_quantile(0.95, degrees)", "student_quantile(0.90, degrees)"
    ),
    "rank_that_came_first_is_blamed": Defect(
        "analysis/cross_rank/stragglers.py", "lateness_ns.argmax(axis=1)", "lateness_ns.argmin(axis=1)"
    ),
    "slowest_communicator_speaks": Defect(
        "analysis/communication.py",
        "return min(whole, key=lambda digest: _exp",
        "return max(whole, key=lambda digest: _exp",
    ),
    "inactive_mode_is_judged": Defect(
        "analysis/facts.py", 'frozenset({"failed", "skipped", "inactive"})', 'frozenset({"failed", "skipped"})'
    ),
    "noise_refutes_a_claim": Defect(
        "analysis/weighing.py", "refuted = above and not agree(claim, gained)", "refuted = above"
    ),
    # rules
    "part_of_a_finding_counts_twice": Defect(
        "rules/diagnose.py", "if rule.beside is not None and parts and", "if rule.beside is not None and not parts and"
    ),
    "smallest_gain_comes_first": Defect("rules/diagnose.py", "key=_gain, reverse=True)", "key=_gain)"),
    "doubtful_gain_is_promised": Defect(
        "rules/diagnose.py", "gain.low is not None and gain.low <= 1", "gain.low is not None and gain.low <= 0"
    ),
    "own_cost_is_a_finding": Defect("rules/diagnose.py", "LEAST_TIMES_OWN = 3.0", "LEAST_TIMES_OWN = 0.0"),
    "wrong_sign_in_a_gain": Defect("rules/rule.py", "else 1 / (1 - share)", "else 1 / (1 + share)"),
    "refuted_starvation_is_found": Defect(
        "rules/data_starved.py", 'if weighed.status == "refuted":', 'if weighed.status == "unknown":'
    ),
    # report
    "unescaped_name": Defect("report/formats/comment.py", r"[\\`*_\[\]<>#|~&]", r"[\\`*_\[\]>#|~&]"),
    "estimate_is_called_measured": Defect(
        "report/words/first_screen.py", '"predicted": "estimated"', '"predicted": "measured"'
    ),
    "absent_views_say_nothing": Defect("report/documents/assembly.py", "            missing += absences\n", ""),
    # gate
    "bound_is_one_average_too_high": Defect("gate/signed_rank.py", 'side="right"))', 'side="right")) + 1'),
    "disturbed_pairs_count": Defect(
        "gate/alternate.py",
        "len(self.sides) == len(SIDES) and all(side.is_sound for side in self.sides.values())",
        "len(self.sides) == len(SIDES)",
    ),
    # run directory
    "old_key_is_not_read": Defect("schema1.py", '        "budget": "breakdown",\n', ""),
    "assigned_secret_is_kept": Defect(
        "redact.py", 'redacted.append(f"{text(name)}={MASK}")', 'redacted.append(f"{text(name)}={value}")'
    ),
}


def plant(defect: Defect, copy: Path) -> None:
    """Write a defect into a copy of the repository.

    Raises:
        ValueError: its text stands in the file never, or more than once.
    """
    path = copy / "dpdoctor" / defect.path
    text = path.read_text("utf-8")
    if text.count(defect.before) != 1:
        raise ValueError(f"{path} holds {defect.before!r} {text.count(defect.before)} times; a defect needs it once")
    path.write_text(text.replace(defect.before, defect.after), "utf-8")


def failed_first(copy: Path, options: Sequence[str]) -> str | None:
    """Return the test that the copy's suite named first as failed; None: all passed.

    Raises:
        RuntimeError: pytest ended otherwise, so that nothing is known.
    """
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--ignore={_KNOWS_THEM}", *options]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    found = _FAILED.search(done.stdout)
    # Processes of pytest-xdist that stop at the first failure end as interrupted.
    if done.returncode not in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED) or found is None:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return found[1]


def check(name: str | None, options: Sequence[str]) -> tuple[str | None, float]:
    """Return the first failure with this defect, None: no defect, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(copy)], check=True)
        if name is not None:
            plant(DEFECTS[name], copy)
        began = time.monotonic()
        return failed_first(copy, options), time.monotonic() - began


def main() -> int:
    """Print a line per defect; return 0 when the suite was green without and red with each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=DEFECTS, default=list(DEFECTS), metavar="DEFECT")
    parser.add_argument("--trust-green", action="store_true", help="do not test the copy without a defect first")
    parser.add_argument("pytest", nargs="*", default=FAST_SUITE, help="options of pytest, after --")
    given = parser.parse_args()
    if not given.trust_green:
        failed, seconds = check(None, given.pytest)
        print(f"{'no defect':40} {seconds:6.0f} s  {failed or 'green'}", flush=True)
        if failed:
            return 1
    missed = 0
    for name in given.only:
        failed, seconds = check(name, given.pytest)
        missed += failed is None
        print(f"{name:40} {seconds:6.0f} s  {failed or 'NOT NOTICED'}", flush=True)
    print(f"{len(given.only) - missed} of {len(given.only)} noticed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
