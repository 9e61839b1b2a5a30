"""The benchmark of planted faults: plan, verdict and score; what it measures is measured elsewhere."""

from __future__ import annotations

import importlib
import json
import re
from argparse import Namespace
from pathlib import Path

import pytest

from dpdoctor import rundir
from tests.benchmarks.planted.catalogue import ENTRIES, Entry
from tests.benchmarks.planted.injections import INJECTIONS, inject
from tests.benchmarks.planted.plan import PLAN, PlannedRun, draw, seal, unseal
from tests.benchmarks.planted.scoring import score, table, totals
from tests.benchmarks.planted.verdicts import Verdict, read

PLANTED = Entry(script="a.py", sizes=(1, 4), mode="ddp", rules=("straggler",), seconds=lambda size: size / 100)
HEALTHY = Entry(script="a.py", mode="ddp")
ENTRIES_HERE = {"planted": PLANTED, "healthy": HEALTHY}
RUN = PlannedRun(folder="run-000", entry="planted", size=2.0)
PLANTED_S = 0.02
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def finding(rule: str, share: float, **changes: str) -> dict[str, object]:
    found = {"rule": rule, "mode": "ddp", "severity": "warning", "status": "confirmed", "share_of": "step"}
    return {**found, "cost": figure(share), **changes}


def figure(value: float | None, half: float | None = None) -> dict[str, float | None]:
    if value is None or half is None:
        return {"value": value, "low": None, "high": None}
    return {"value": value, "low": value - half, "high": value + half}


def verdict_on(
    folder: Path, *findings: dict[str, object], comm: float = 0.02, waits: float | None = 0.01, agrees: bool = True
) -> Verdict:
    """Return the verdict on a run of 0.1 s per step in ddp with the given findings, and what was seen of it."""
    mode = {
        "status": "ok",
        "step": figure(0.1),
        "cross_checks": [
            {"ablation": "no_comm", "observed": figure(comm), "gain": figure(0.02), "agrees": agrees},
            {
                "ablation": "cached_batches",
                "observed": figure(waits),
                "gain": figure(0.01),
                "agrees": None if waits is None else True,
            },
        ],
    }
    folder.mkdir()
    (folder / rundir.SUMMARY).write_text(json.dumps({"modes": {"ddp": mode}, "findings": findings}))
    return read(folder, None)


class TestPlan:
    def test_a_folder_that_is_empty_takes_a_plan_and_one_of_something_else_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(BENCHMARKS)
        planned, asked = importlib.import_module("planted_faults").planned, Namespace(runs=2, seed=3)
        runs = planned(tmp_path, ENTRIES_HERE, asked)
        assert planned(tmp_path, {}, asked) == runs
        assert len(runs) == 4
        (tmp_path / PLAN).rename(tmp_path / "notes.txt")
        with pytest.raises(SystemExit, match=re.escape(f"has no {PLAN}: name another --out")):
            planned(tmp_path, ENTRIES_HERE, asked)

    def test_sizes_lie_in_their_range_and_folders_say_nothing(self):
        runs = draw(ENTRIES_HERE, 20, seed=3)
        sizes = [run.size for run in runs if run.entry == "planted"]
        assert len(runs) == 40
        assert all(1 <= size <= 4 for size in sizes)
        assert len(set(sizes)) > 10
        assert [run.folder for run in runs] == [f"run-{number:03}" for number in range(40)]
        assert [run.entry for run in runs] != sorted((run.entry for run in runs), reverse=True)

    def test_a_seed_gives_the_same_plan_and_the_seal_knows_a_changed_one(self, tmp_path):
        runs = draw(ENTRIES_HERE, 5, seed=1)
        assert draw(ENTRIES_HERE, 5, seed=1) == runs
        sealed = seal(tmp_path, runs)
        assert unseal(tmp_path) == runs
        assert seal(tmp_path, runs[1:]) != sealed

    def test_nothing_is_drawn_for_a_healthy_script(self):
        (run,) = draw({"healthy": HEALTHY}, 1, seed=0)
        assert run.size is None


class TestScore:
    def test_the_planted_fault_is_first_and_its_cost_right(self, tmp_path):
        verdict = verdict_on(tmp_path / "run", finding("straggler", 0.21), finding("other", 0.1))
        scored = score(RUN, PLANTED, verdict, PLANTED_S)
        assert (scored.first, scored.within) == (True, True)
        assert scored.error == pytest.approx(0.01)

    @pytest.mark.parametrize("share", [0.16, 0.24])
    def test_a_cost_may_be_off_by_little(self, tmp_path, share):
        verdict = verdict_on(tmp_path / "run", finding("straggler", share))
        assert score(RUN, PLANTED, verdict, PLANTED_S).within is False

    def test_without_a_known_time_no_cost_is_judged(self, tmp_path):
        scored = score(RUN, PLANTED, verdict_on(tmp_path / "run", finding("straggler", 0.2)))
        assert (scored.first, scored.within) == (True, None)

    def test_the_second_finding_does_not_count(self, tmp_path):
        verdict = verdict_on(tmp_path / "run", finding("other", 0.3), finding("straggler", 0.2))
        scored = score(RUN, PLANTED, verdict, PLANTED_S)
        assert (scored.first, scored.said, scored.within) == (False, "other", None)

    def test_what_calls_for_no_change_is_passed_over(self, tmp_path):
        facts = (finding("fact", 0.5, severity="info"), finding("no", 0.4, status="refuted"))
        elsewhere = finding("other", 0.3, mode="single")
        scored = score(RUN, PLANTED, verdict_on(tmp_path / "run", *facts, elsewhere, finding("straggler", 0.2)))
        assert scored.first

    def test_a_run_that_left_nothing_is_not_first(self, tmp_path):
        scored = score(RUN, PLANTED, read(tmp_path, "exit code 1"))
        assert (scored.first, scored.said) == (False, "exit code 1")

    def test_a_warning_about_a_healthy_script_is_a_false_alarm(self, tmp_path):
        assert score(RUN, HEALTHY, verdict_on(tmp_path / "quiet")).first
        scored = score(RUN, HEALTHY, verdict_on(tmp_path / "loud", finding("straggler", 0.06)))
        assert (scored.first, scored.said, scored.proved) == (False, "straggler in ddp", True)

    @pytest.mark.parametrize("seen", [{"comm": 0.06}, {"waits": 0.04}, {"agrees": False}, {"waits": None}])
    def test_a_script_is_healthy_where_little_is_seen_and_the_ablations_agree(self, tmp_path, seen):
        assert not score(RUN, HEALTHY, verdict_on(tmp_path / "run", **seen)).proved


@pytest.mark.parametrize("agrees", [True, False])
def test_cross_checks_are_read_where_both_sides_are_known(tmp_path, agrees):
    (checked,) = verdict_on(tmp_path / "run", comm=0.06, waits=None, agrees=agrees).modes["ddp"].checked
    assert (checked.ablation, checked.seen, checked.gained, checked.agrees) == ("no_comm", 0.06, 0.02, agrees)


def test_the_table_has_a_line_per_entry_and_the_totals_say_what_is_too_few(tmp_path):
    verdict = verdict_on(tmp_path / "run", finding("other", 0.3))
    scores = [score(RUN, PLANTED, verdict)]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(ENTRIES_HERE, scores).splitlines()]
    assert ["planted", "ddp", "straggler", "0 of 1", "—", "—", "other"] in rows
    first, *_, agreed = totals(ENTRIES_HERE, scores, verdict.modes["ddp"].checked)
    assert first.startswith("planted faults ")
    assert re.findall(r"\d of \d|[\d.]+%|TOO FEW", first) == ["0 of 1", "0.0%", "95%", "TOO FEW"]
    assert agreed.endswith("as it must be")


def test_every_entry_says_what_is_planted():
    for name, entry in ENTRIES.items():
        assert entry.healthy == ("healthy" in name), name
        assert not entry.healthy or entry.sizes is None, name
        assert entry.third_party == (entry.script in INJECTIONS), name


class TestInjection:
    def test_a_copy_is_changed_and_the_source_is_not(self, tmp_path):
        source = tmp_path / "source"
        source.mkdir()
        text = "import time\n\n\ndef main():\n    train_dataset = datasets.FakeData(9)\n"
        (source / "main.py").write_text(text)
        script = inject("imagenet", 0.025, source, tmp_path / "copy")
        assert (source / "main.py").read_text() == text
        changed = script.read_text()
        assert "time.sleep(0.025)" in changed
        assert "train_dataset = SlowFakeData(9)" in changed

    def test_another_text_is_refused(self, tmp_path):
        source = tmp_path / "source"
        source.mkdir()
        (source / "main.py").write_text("print('hello')\n")
        with pytest.raises(ValueError, match="0 times, not once"):
            inject("imagenet", 0.025, source, tmp_path / "copy")
