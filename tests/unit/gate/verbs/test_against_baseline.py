from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dpdoctor.gate.evidence.workload import workload
from dpdoctor.gate.keeping import calibration
from dpdoctor.gate.keeping.baselines import AuditLine, Baseline
from dpdoctor.gate.model import Calibration, GateResult
from dpdoctor.gate.verbs import against_baseline
from dpdoctor.records import Collective, Run
from tests.builders import launched_runs
from tests.builders.launched_runs import COUNTERS, launch, of
from tests.builders.noises import CALIBRATED

BASE = of(100, 101, 99, 100, 100.5)
LINE = AuditLine(at="2026-01-02T03:04:05Z", by="ada", reason="first", created=BASE.header.created, seconds={})
BASELINE = Baseline(audit=(LINE,), recorded=BASE)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a directory with this machine's calibration."""
    header = BASE.header
    spec = dataclasses.replace(header.spec, cwd="/home/me", target="/home/me/train.py")
    calibration.keep(
        tmp_path / "kept",
        Calibration(
            created="2026-01-02T03:04:05Z",
            dpdoctor="0.1.0",
            workload=str(workload(spec)),
            fingerprint=header.fingerprint,
            modes={"ddp": CALIBRATED},
        ),
    )
    return tmp_path / "kept"


def run(slowdown: float = 1.0, **fields: object) -> Run:
    times = enumerate((100, 101, 99, 100, 100.5), 1)
    return launched_runs.run(*(launch(slowdown * ms, number, **fields) for number, ms in times))  # type: ignore[arg-type]


def gate(found: Run, kept: Path) -> GateResult:
    return against_baseline.gate(found, BASELINE, "main", asked=0.05, calibrations=kept)


def test_a_run_that_is_alike_passes(kept: Path) -> None:
    found = gate(run(), kept)
    assert (found.kind, found.outcome) == ("baseline", "pass")
    assert found.modes["ddp"].effect.value == pytest.approx(1)
    assert found.calibration is not None
    assert found.base.label == f"main, of {BASE.header.created}"
    assert "on another day" in found.remarks[0]


def test_a_slower_run_regressed_and_what_moved_is_told(kept: Path) -> None:
    found = gate(run(1.2), kept)
    assert found.outcome == "regressed"
    assert [(item.kind, item.name) for item in found.modes["ddp"].moved] == [("phase", "forward")]


def test_without_a_calibration_nothing_is_judged(tmp_path: Path) -> None:
    found = gate(run(1.2), tmp_path)
    assert (found.outcome, found.modes) == ("refused", {})
    assert [refusal.field for refusal in found.refusals] == ["calibration"]


def test_another_machine_is_refused_with_all_that_differs(kept: Path) -> None:
    other = run(1.2)
    fingerprint = dataclasses.replace(other.header.fingerprint, cores=8, packages={"torch": "2.16.0"})
    found = gate(dataclasses.replace(other, header=dataclasses.replace(other.header, fingerprint=fingerprint)), kept)
    assert (found.outcome, found.modes) == ("refused", {})
    assert {"cores", "torch", "calibration"} <= {refusal.field for refusal in found.refusals}


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"status": "failed"}, "ddp: mode"), ({"batch": 64}, "ddp: global batch")],
)
def test_what_is_no_evidence_is_refused(kept: Path, fields: dict[str, object], name: str) -> None:
    found = gate(run(**fields), kept)
    assert (found.outcome, found.modes) == ("refused", {})
    assert name in {refusal.field for refusal in found.refusals if refusal.hard}


def test_a_run_without_the_mode_is_refused(kept: Path) -> None:
    found = gate(dataclasses.replace(run(), modes={"ddp": ()}), kept)
    assert found.outcome == "refused"


def test_one_launch_alone_cannot_be_judged(kept: Path) -> None:
    found = gate(launched_runs.run(launch(100)), kept)
    assert found.outcome == "inconclusive"
    assert "--repeat 3" in found.modes["ddp"].reason


def test_a_soft_difference_is_told_and_judged(kept: Path) -> None:
    other = run()
    fingerprint = dataclasses.replace(other.header.fingerprint, host="another")
    found = gate(dataclasses.replace(other, header=dataclasses.replace(other.header, fingerprint=fingerprint)), kept)
    assert found.outcome == "pass"
    assert [(refusal.field, refusal.hard) for refusal in found.refusals] == [("host", False)]


def test_counters_need_neither_calibration_nor_launches() -> None:
    more = dataclasses.replace(COUNTERS, collectives={"all_reduce": Collective(count=3, num_bytes=1000)})
    one = launched_runs.run(launch(100))
    other = launched_runs.run(launch(100, counters=more))
    assert against_baseline.gate_exactly(one, BASELINE, "main").outcome == "pass"
    found = against_baseline.gate_exactly(other, BASELINE, "main")
    assert (found.kind, found.outcome) == ("exact", "regressed")
    assert [item.name for item in found.exact["ddp"].differences] == ["all_reduce.count"]


def test_counters_of_another_torch_are_not_compared() -> None:
    other = run()
    fingerprint = dataclasses.replace(other.header.fingerprint, packages={"torch": "2.16.0"})
    header = dataclasses.replace(other.header, fingerprint=fingerprint)
    found = against_baseline.gate_exactly(dataclasses.replace(other, header=header), BASELINE, "main")
    assert (found.outcome, found.exact) == ("refused", {})


def test_counters_of_a_faster_machine_are() -> None:
    other = run()
    fingerprint = dataclasses.replace(other.header.fingerprint, cores=64, cpu="Another")
    header = dataclasses.replace(other.header, fingerprint=fingerprint)
    assert against_baseline.gate_exactly(dataclasses.replace(other, header=header), BASELINE, "main").outcome == "pass"
