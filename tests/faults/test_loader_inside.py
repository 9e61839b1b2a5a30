"""What is recorded inside of the script's loaders, where it is known what they do."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

from dpdoctor.loading import IN_PROCESS, BatchRecord
from tests.faults.conftest import SCRIPTS, Profiled

SCRIPT = "inside_loaders.py"
# The whole script, its four epochs: it ends before so many windows are measured.
WHOLE = (
    *("--modes", "single", "--ablations", "none", "--trace-steps", "0"),
    *("--warmup", "3", "--steps", "4", "--rounds", "100"),
)
BATCH = 4
PLANTED_NS = 20_000_000


def run(profile, kind: str, workers: int, *options: str) -> Profiled:
    done = profile(SCRIPT, *WHOLE, *options, args=[kind, str(workers)])
    assert done.mode("single")["status"] == "ok", done.output
    return done


def batches_of(done: Profiled) -> list[BatchRecord]:
    return [batch for batch in done.rank("single").batches if batch.loader == 0]


def median(records: list[BatchRecord], field: str) -> float:
    return statistics.median(getattr(record, field) for record in records)


@pytest.mark.measured
def test_a_loader_that_sleeps_starves_the_training(profile):
    # One worker: a step would have to take three items' time to hide the wait, on however slow a machine.
    batches = batches_of(run(profile, "sleep", 1))
    assert min(batch.fetch_ns for batch in batches) >= BATCH * PLANTED_NS
    assert median(batches, "cpu_ns") < 0.25 * BATCH * PLANTED_NS
    later = [batch for batch in batches if batch.batch >= 4]
    assert median(later, "ready") == 0
    assert median(later, "outstanding") >= 2
    assert median(later, "wait_ns") > PLANTED_NS


@pytest.mark.measured
def test_a_loader_that_computes_is_told_from_one_that_sleeps(profile):
    batches = batches_of(run(profile, "busy", 0))
    assert {(batch.worker, batch.ready, batch.outstanding) for batch in batches} == {(IN_PROCESS, 0, 0)}
    assert median(batches, "cpu_ns") >= 0.99 * BATCH * PLANTED_NS
    for batch in batches:
        assert BATCH * PLANTED_NS <= batch.fetch_ns < batch.wait_ns


@pytest.mark.measured
def test_batches_lie_ready_where_the_training_is_slow(profile):
    done = run(profile, "ready", 2)
    batches = batches_of(done)
    in_time = [batch for batch in batches if 2 <= batch.batch < 8]
    assert median(in_time, "ready") >= 2
    assert median(in_time, "wait_ns") < PLANTED_NS
    assert len(batches) == len(done.printed("single").splitlines()) == len(done.rank("single").steps) == 48
    assert [(batch.iteration, batch.batch) for batch in batches] == [divmod(number, 12) for number in range(48)]
    assert [batch.step for batch in batches] == list(range(1, 49))
    assert [batch.worker for batch in batches] == [0, 1] * 24
    assert {batch.num_bytes for batch in batches} - {0} == {BATCH * 8 * 4}
    for batch in batches:
        assert 0 < batch.fetch_begin_ns <= batch.fetch_begin_ns + batch.fetch_ns <= batch.asked_ns + batch.wait_ns
    assert [batch.batch for batch in batches if batch.opening_ns] == [0] * 4, "workers start anew in every epoch"
    training, evaluation = done.record("single").conversion.loaders
    assert (training.prefetch_factor, training.persistent_workers, training.in_order) == (2, False, True)
    assert evaluation.prefetch_factor is None


@pytest.mark.measured
def test_collate_is_told_from_the_items(profile):
    batches = batches_of(run(profile, "collate", 2))
    assert all(PLANTED_NS <= batch.collate_ns < batch.fetch_ns for batch in batches)
    assert median(batches, "fetch_ns") < 1.5 * median(batches, "collate_ns")


@pytest.mark.measured
@pytest.mark.parametrize("workers", [0, 2])
def test_the_slow_transform_is_at_the_top(profile, workers):
    done = run(profile, "compose", workers)
    transforms = done.record("single").transforms
    assert [(t.position, t.name) for t in transforms] == [(0, "Double"), (1, "Slow"), (2, "neg")]
    slow = max(transforms, key=lambda transform: transform.total_ns)
    assert slow.name == "Slow"
    assert slow.total_ns / slow.calls > 0.003e9
    assert 0.8 < slow.total_ns / slow.items_ns <= 1
    if workers == 0:
        told = [line for line in done.printed("single").splitlines() if line.startswith("slow")]
        assert slow.total_ns / slow.calls == pytest.approx(float(told[-1].split()[1]) * 1e9, rel=0.15)


@pytest.mark.parametrize(("kind", "workers"), [("compose", 0), ("persistent", 2)])
def test_the_script_gets_the_batches_that_it_gets_without_us(profile, kind, workers):
    plain = subprocess.run(
        [sys.executable, str(SCRIPTS / SCRIPT), kind, str(workers)], capture_output=True, text=True, check=True
    )
    printed = run(profile, kind, workers).printed("single")
    ours, alone = ([line for line in text.splitlines() if "batch" in line] for text in (printed, plain.stdout))
    assert len(alone) > 30
    assert ours == alone


def test_what_a_worker_raises_is_raised(profile):
    done = profile(SCRIPT, *WHOLE, args=["raises", "2"])
    assert done.mode("single")["status"] == "failed"
    assert "LookupError" in done.mode("single")["reason"]
    assert "row 17 is missing" in (done.root / "single" / "rank0" / "stderr.log").read_text()


def test_moving_a_batch_is_measured_for_loaders_without_workers_too(profile):
    done = run(profile, "shuffled", 0, "--rounds", "2")
    (cost,) = done.record("single").hand_offs
    assert (cost.loader, cost.num_bytes) == (0, BATCH * 8 * 4)
    assert cost.n >= 5
    assert min(cost.send_ns, cost.receive_ns) > 0
