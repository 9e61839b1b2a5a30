"""What other processes take of the cores takes the speedup with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.analyse import analyse
from dpdoctor.records import Launch, Sample
from tests.builders import records


def launch(mode: str, others: float) -> Launch:
    """Return a launch on two cores that are all in use, so many of them by other processes."""
    rank = records.even_rank(100, num_windows=3)
    at_ns = rank.windows[0].begin_ns
    samples = (
        Sample(at_ns=at_ns, source="host", values={"cpu_ratio": 1.0, "num_cpus": 2.0}),
        Sample(at_ns=at_ns + 1, source="rank0", values={"cpu_cores": 2.0 - others}),
    )
    return replace(records.launch(rank, mode=mode), samples=samples)


@pytest.mark.parametrize(
    ("of_single", "of_dp", "reason"),
    [
        (0.0, 0.0, None),
        (1.2, 0.0, "other processes used 1.2 of 2 cores while single was measured"),
        (0.0, 0.9, "other processes used 0.90 of 2 cores while dp was measured"),
        (1.2, 1.2, "other processes used 1.2 of 2 cores while single was measured"),
    ],
)
def test_no_speedup_is_given_of_a_mode_that_others_disturbed_or_over_such_a_baseline(
    of_single: float, of_dp: float, reason: str | None
) -> None:
    run = records.run({"single": [launch("single", of_single)], "dp": [launch("dp", of_dp)]})
    run = replace(run, header=records.header({"single": 1, "dp": 1}))
    fingerprint = replace(run.header.fingerprint, cores=2)
    run = replace(run, header=replace(run.header, fingerprint=fingerprint))
    found = analyse(run).summary.modes["dp"]
    assert (found.speedup.reason, found.scaling_efficiency.reason) == (reason, reason)
    assert (found.speedup.value is None) == bool(reason)
    assert found.throughput.value is not None
    caveat = analyse(run).summary.caveat
    assert ("no speedup is given" in caveat, "no speedup of dp is given" in caveat) == (
        of_single > 0,
        not of_single and of_dp > 0,
    )
