"""Against scipy, which has the same and is not loaded for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import scipy.stats

from dpdoctor.analysis import distributions

TRACE = Path(__file__).parents[2] / "data" / "traces" / "gloo_ddp_rank0.json.gz"
ANALYZED = """
import sys
from dpdoctor.cli import main
main(sys.argv[1:], standalone_mode=False)
print(*(name for name in sys.modules if name.partition(".")[0] == "scipy"), file=sys.stderr, end="")
"""


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_student_t(confidence: float) -> None:
    degrees = [*range(1, 300), 999, 1000, 20_001, 100_000]
    ours = [distributions.student_t(confidence, number) for number in degrees]
    assert ours == pytest.approx(scipy.stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-9)


@pytest.mark.parametrize(("confidence", "degrees"), [(0.95, 0), (0.0, 3), (1.0, 3)])
def test_there_is_no_such_quantile(confidence: float, degrees: int) -> None:
    with pytest.raises(ValueError, match=f"for {degrees} degrees of freedom at {confidence}"):
        distributions.student_t(confidence, degrees)


def test_so_many_successes_by_chance() -> None:
    for one_in in (1, 2, 3, 8, 1000):
        for trials in (1, 2, 7, 20, 1000):
            for successes in {0, 1, 2, trials // 2, trials - 1, trials, trials + 1}:
                expected = scipy.stats.binom.sf(successes - 1, trials, 1 / one_in)
                found = distributions.at_least(successes, trials, one_in)
                assert found == pytest.approx(expected, rel=1e-9, abs=1e-300), (successes, trials, one_in)


def test_the_rank_that_bounds_the_median() -> None:
    numbers = [*range(1, 1500), 9_999, 10_000, 300_001]
    assert [distributions.median_rank(n) for n in numbers] == scipy.stats.binom.ppf(0.025, numbers, 0.5).tolist()


@pytest.mark.parametrize("options", [("--format", "json"), ("--out", "run")])
def test_analyze_does_not_load_scipy(tmp_path: Path, options: tuple[str, str]) -> None:
    command = [sys.executable, "-c", ANALYZED, "analyze", str(TRACE), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
