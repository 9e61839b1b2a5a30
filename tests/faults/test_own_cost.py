"""What watching costs, against bare launches of the real script."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.analysis import analyse
from dpdoctor.analysis.controls import NO_STEADY_WINDOW
from dpdoctor.launch import launcher
from dpdoctor.launch.progress import Silence
from dpdoctor.spec import MOST_TURNS
from tests.faults.conftest import SHORT

CONTROLLED = tuple(option for option in SHORT if option != "--no-control")


def bare(root: Path) -> list[Path]:
    return sorted(root.glob(f"{rundir.BARE}*"))


@pytest.mark.measured
def test_a_script_that_is_slower_while_it_is_watched_is_not_measured_by_that(profile):
    done = profile("slowed_by_watching.py", "--modes", "ddp", *CONTROLLED, control=True)
    assert done.exit_code == 0, done.output
    single, ddp = done.mode("single"), done.mode("ddp")
    step_s = single["step"]["value"]
    assert single["observer_overhead"]["value"] * step_s == pytest.approx(0.006, rel=0.25)
    # Four samples in a bare step, which sleeps 4 ms and does little else.
    assert 0.004 < 4 / single["throughput"]["value"] < 0.007
    assert ddp["throughput"]["value"] is None
    assert "watching this script takes" in ddp["throughput"]["reason"]
    assert "watching this script takes" in " ".join(done.output.split())


def test_bare_launches_leave_no_file_upload_nothing_and_are_read_again(profile, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    done = profile("tracker/train.py", "--modes", "single", *CONTROLLED, control=True)
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert all(done.printed(launch).startswith("mode offline") for launch in ("bare", "bare.2"))
    # More than these two where so few steps do not tell what watching costs.
    assert [path.name for path in bare(done.root)][:2] == ["bare", "bare.2"]
    run = rundir.read(done.root)
    assert {launch.record.status for launch in (*run.bare, *run.watched)} == {"ok"}
    # Its loader begins anew in each window, in both kinds of launches.
    assert done.mode("single")["observer_overhead"]["reason"] != NO_STEADY_WINDOW
    assert not [path for name in (rundir.OVERLAY, rundir.COPIES) for path in done.root.rglob(name)]
    assert {rank.record.protected_by for launch in run.bare for rank in launch.ranks} <= {
        "kernel",
        "landlock",
        "python",
    }


def test_a_script_that_fails_says_so_once_for_its_mode(profile):
    done = profile("nothing.py", "--modes", "single", *CONTROLLED, args=["raise"], control=True)
    assert done.exit_code == 1
    assert [path.name for path in bare(done.root)] == ["bare"]
    assert done.mode("single")["status"] == "failed"


@pytest.mark.slow
def test_what_is_not_clear_is_asked_of_launches_of_both_kinds(profile):
    done = profile("slowed_by_watching.py", "--modes", "single", *CONTROLLED, control=True)
    before = rundir.read(done.root)
    spec = before.header.spec
    assert launcher.settle_own_cost(done.root, spec, lambda: True, Silence()) == []
    records = launcher.settle_own_cost(done.root, spec, lambda: False, Silence())
    assert [record.status for record in records] == ["ok"] * 2 * MOST_TURNS
    assert [record.mode for record in records] == ["watched", "bare", "bare", "watched"]
    after = rundir.read(done.root)
    assert len(after.bare) == len(before.bare) + MOST_TURNS
    assert len(after.watched) == len(before.watched) + MOST_TURNS
    assert analyse(after).summary.modes["single"].observer_overhead.low is not None
