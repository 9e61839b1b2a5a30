from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dpdoctor.errors import BaselineError, OutputError
from dpdoctor.gate import baselines
from dpdoctor.gate.baselines import Author
from tests.builders.launched_runs import mode, of

RUN = of(10, 11, 12)
AUTHOR = Author(at="2026-01-02T03:04:05Z", by="ada", reason="first of its name")
LATER = Author(at="2026-02-03T04:05:06Z", by="grace", reason="a larger model")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "baselines" / "main.json"
    baselines.save(path, RUN, AUTHOR)
    return path


def test_what_is_saved_is_read(saved: Path) -> None:
    found = baselines.read(saved)
    assert found.recorded == RUN
    (line,) = found.audit
    assert (line.at, line.by, line.reason) == (AUTHOR.at, AUTHOR.by, AUTHOR.reason)
    assert (line.created, line.seconds) == (RUN.header.created, {"ddp": pytest.approx(0.011)})
    assert baselines.name_of(saved) == "main"
    assert [path.name for path in saved.parent.iterdir()] == ["main.json"]


def test_the_file_is_for_git(saved: Path) -> None:
    text = saved.read_text()
    assert text.endswith("}\n")
    assert max(map(len, text.splitlines())) < 200
    assert len(text) < 40_000
    baselines.accept(saved, RUN, LATER)
    before, after = text.splitlines(), saved.read_text().splitlines()
    # A second line of the record and nothing else.
    assert len(after) - len(before) == len(_object_lines(after, LATER.reason))
    assert [line for line in before if line.strip(" ,") not in {one.strip(" ,") for one in after}] == []


def _object_lines(lines: list[str], reason: str) -> list[str]:
    """Return the lines of the JSON object that holds this reason."""
    at = next(number for number, line in enumerate(lines) if reason in line)
    begin = max(number for number in range(at) if lines[number].strip() == "{")
    end = next(number for number in range(at, len(lines)) if lines[number].startswith("  }"))
    return lines[begin : end + 1]


def test_modes_have_one_order(tmp_path: Path) -> None:
    both = {"fsdp": mode(RUN), "ddp": mode(RUN)}
    for name, modes in (("a", both), ("b", dict(reversed(both.items())))):
        baselines.save(tmp_path / name, replace(RUN, modes=modes), AUTHOR)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_second_one_of_the_same_name_is_refused(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(BaselineError, match=r"main\.json exists already\. `dpdoctor baseline accept --reason`"):
        baselines.save(saved, of(20, 20, 20), AUTHOR)
    assert saved.read_bytes() == before


def test_accept_replaces_the_run_and_keeps_the_record(saved: Path) -> None:
    run = of(20, 20, 20)
    returned = baselines.accept(saved, run, LATER)
    found = baselines.read(saved)
    assert found == returned
    assert found.recorded == run
    assert [(line.by, line.seconds["ddp"]) for line in found.audit] == [
        ("ada", pytest.approx(0.011)),
        ("grace", pytest.approx(0.020)),
    ]


def test_accept_needs_every_mode_that_is_expected(saved: Path) -> None:
    with pytest.raises(BaselineError, match=r"the run has no mode ddp, which .* expects"):
        baselines.accept(saved, replace(RUN, modes={}), LATER)
    assert len(baselines.read(saved).audit) == 1


@pytest.mark.parametrize("change", [{"steps": 3}, {"disturbed": ("launch 1: hot",)}])
def test_what_is_no_evidence_becomes_no_baseline(saved: Path, change: dict[str, object]) -> None:
    unfit = replace(RUN, modes={"ddp": replace(mode(RUN), **change)})
    with pytest.raises(BaselineError, match=r"this run is nothing to compare with. ddp: "):
        baselines.save(saved.with_name("other.json"), unfit, AUTHOR)
    with pytest.raises(BaselineError, match=r"this run is nothing to compare with. ddp: "):
        baselines.accept(saved, unfit, LATER)
    assert [path.name for path in saved.parent.iterdir()] == ["main.json"]


def test_a_mode_that_nobody_asked_for_need_not_be_evidence(tmp_path: Path) -> None:
    short = replace(mode(RUN), steps=3)
    run = replace(RUN, modes={"single": short, "ddp": mode(RUN)})
    assert baselines.save(tmp_path / "main.json", run, AUTHOR).recorded == run


def test_a_missing_file() -> None:
    with pytest.raises(
        BaselineError, match=r"nowhere\.json is missing\. Give a file that `dpdoctor baseline save` wrote"
    ):
        baselines.read(Path("nowhere.json"))
    with pytest.raises(BaselineError, match=r"cannot open nowhere\.json: No such file"):
        baselines.accept(Path("nowhere.json"), RUN, LATER)


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (lambda text: text[: len(text) // 2], "main.json is damaged: "),
        (lambda _: "", "main.json is damaged: "),
        (
            lambda text: text.replace('"seconds": [', '"seconds": ["much",', 1),
            r"\$\.recorded\.modes\[\.\.\.\]\.seconds\[0\]",
        ),
        (lambda text: text.replace('"batch_rule": "per-device"', '"batch_rule": "odd"', 1), "batch_rule is 'odd'"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(saved: Path, damage: Callable[[str], str], place: str) -> None:
    saved.write_text(damage(saved.read_text()))
    with pytest.raises(BaselineError, match=place) as caught:
        baselines.read(saved)
    assert str(saved) in str(caught.value)
    assert "restore it from git" in str(caught.value)
    assert caught.value.exit_code == 1


def test_another_schema_says_what_to_do(saved: Path) -> None:
    saved.write_text(json.dumps({"schema": 9, "whatever": []}))
    with pytest.raises(BaselineError, match=r"schema 9\b.*schemas 1 and 2\b"):
        baselines.read(saved)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot create the directory .*file: File exists"):
        baselines.save(tmp_path / "file" / "main.json", RUN, AUTHOR)


def test_the_list_of_a_directory(saved: Path) -> None:
    (saved.parent / "notes.txt").write_text("")
    (saved.parent / ".hidden.json").write_text("")
    baselines.save(saved.with_name("a.json"), RUN, AUTHOR)
    assert [path.name for path in baselines.listed(saved.parent)] == ["a.json", "main.json"]
    with pytest.raises(BaselineError, match="nowhere is not a directory"):
        baselines.listed(saved.parent / "nowhere")


ACCEPT = """
import sys
from pathlib import Path
from dpdoctor.gate import baselines
from dpdoctor.gate.baselines import Author
path, who = Path(sys.argv[1]), sys.argv[2]
run = baselines.read(path).recorded
print("ready", flush=True)
sys.stdin.readline()
for number in range(10):
    baselines.accept(path, run, Author(at="2026-01-02T03:04:05Z", by=who, reason=str(number)))
"""


def test_two_who_accept_at_once_lose_nothing(saved: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-c", ACCEPT, str(saved), who], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for who in ("ada", "grace")
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=60)
        assert process.returncode == 0
    audit = baselines.read(saved).audit
    for who in ("ada", "grace"):
        assert [line.reason for line in audit[1:] if line.by == who] == [str(number) for number in range(10)]
    assert [path.name for path in saved.parent.iterdir()] == ["main.json"]
