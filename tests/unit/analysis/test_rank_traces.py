from __future__ import annotations

import dataclasses

from dpdoctor.analysis.rank_traces import rank_traces
from dpdoctor.analysis.summary import DeviceTime
from dpdoctor.digest import HOST
from tests.builders import runs, traced_runs

WHOLE = DeviceTime(
    device=0, compute_s=0.046, exposed_comm_s=0.031, h2d_s=0.004, copy_s=0.001, idle_s=0.018, total_s=0.1, comm_s=0.062
)


def test_every_device_of_every_rank() -> None:
    first, second = traced_runs.late_rank(2, 1)
    second = dataclasses.replace(second, devices=(traced_runs.device(0), traced_runs.device(1)), notes=("a note",))
    found = rank_traces([second, first])
    assert [trace.rank for trace in found] == [1, 0]
    assert found[0].devices == (WHOLE, dataclasses.replace(WHOLE, device=1))
    assert (found[0].source, found[0].damage, found[0].notes) == (second.source, None, ("a note",))


def test_a_training_thread_has_no_device_number() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    (found,) = rank_traces([dataclasses.replace(digest, devices=(traced_runs.device(HOST),), damage="cut short")])
    assert found.devices == (dataclasses.replace(WHOLE, device=None),)
    assert found.damage == "cut short"


def test_a_mode_that_failed_has_none() -> None:
    modes = traced_runs.traced_profile().summary.modes
    assert [len(modes[name].traces) for name in ("single", "ddp", "fsdp")] == [0, 2, 0]
    assert all(mode.traces == () for mode in runs.rankless_run().summary.modes.values())
