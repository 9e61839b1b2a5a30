"""`dpdoctor analyze`: from files to a run directory, whole or in parts, and what is said of what is no trace."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpdoctor import rundir
from dpdoctor.cli import main
from dpdoctor.digest import Digest
from dpdoctor.trace.files import locate
from tests.builders import launched_runs, run_directories
from tests.builders.kineto import Kineto

TRACES = Path(__file__).parents[1] / "data" / "traces"
REAL = Path(__file__).parents[3] / "shared" / "traces"
NO_TRACE = '{"traceEvents": [{"ph": "X", "ts": "soon"}]}'


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Return a folder with two traces of one rank each."""
    folder = tmp_path / "job"
    folder.mkdir()
    shutil.copy(TRACES / "gloo_ddp_rank0.json.gz", folder / "a.json.gz")
    shutil.copy(TRACES / "gloo_fsdp_rank0.json.gz", folder / "b.json.gz")
    return folder


def digests(root: Path) -> list[Digest]:
    return [rank.digest for rank in rundir.read(root).modes["trace"][0].ranks if rank.digest]


def test_a_folder_becomes_a_run_directory_with_a_report(ranks: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    done = run("analyze", ranks, "--out", root, "--processes", 1)
    assert done.exit_code == 0, done.output
    assert [digest.source for digest in digests(root)] == ["a.json.gz", "b.json.gz"]
    assert str(root / rundir.REPORT) in done.output
    assert "all_reduce" in (root / rundir.REPORT).read_text()
    assert json.loads((root / rundir.SUMMARY).read_text())["modes"]["trace"]["breakdown"]["compute"]["value"] > 0


def test_parts_meet_in_one_directory(ranks: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run("analyze", ranks, "--out", whole, "--processes", 1).exit_code == 0
    for part in ("2/2", "1/2"):
        done = run("analyze", ranks, "--out", parts, "--shard", part, "--processes", 1)
        assert done.exit_code == 0, done.output
        assert not (parts / rundir.REPORT).exists()
    assert run("report", parts).exit_code == 0
    assert digests(parts) == digests(whole)
    assert (parts / rundir.REPORT).exists()


def test_a_part_is_not_written_twice(ranks: Path, tmp_path: Path) -> None:
    options = ("analyze", ranks, "--out", tmp_path / "run", "--shard", "1/2", "--processes", 1)
    assert run(*options).exit_code == 0
    done = run(*options)
    assert done.exit_code == 1
    assert "exists already; nothing is overwritten" in done.output


def test_other_results_are_not_written_over(ranks: Path, tmp_path: Path) -> None:
    root = run_directories.write(tmp_path / "profile", launched_runs.run(launched_runs.launch(10)))
    (root / rundir.REPORT).write_text("a report")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for part in ((), ("--shard", "1/2")):
        done = run("analyze", ranks, "--out", root, *part, "--processes", 1)
        assert done.exit_code == 1
        assert "nothing is overwritten" in done.output
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_parts_of_other_files_do_not_meet(ranks: Path, tmp_path: Path) -> None:
    assert run("analyze", ranks, "--out", tmp_path / "run", "--shard", "1/2", "--processes", 1).exit_code == 0
    (ranks / "b.json.gz").unlink()
    done = run("analyze", ranks, "--out", tmp_path / "run", "--shard", "2/2", "--processes", 1)
    assert done.exit_code == 1
    assert "holds other results" in done.output
    whole = run("analyze", ranks, "--out", tmp_path / "run", "--processes", 1)
    assert whole.exit_code == 1


def test_what_any_part_could_not_read_is_kept(ranks: Path, tmp_path: Path) -> None:
    for name in ("c", "d", "e"):
        (ranks / f"{name}.json").write_text(NO_TRACE)
    for part in range(1, 6):
        run("analyze", ranks, "--out", tmp_path / "run", "--shard", f"{part}/5", "--processes", 1)
    assert run("report", tmp_path / "run").exit_code == 0
    told = rundir.read(tmp_path / "run").modes["trace"][0].record.stderr_tail
    assert sorted(re.findall(r"([cde])\.json: byte 17", " ".join(told))) == ["c", "d", "e"]
    assert len(digests(tmp_path / "run")) == 2


def test_parts_that_could_read_nothing_have_a_report(ranks: Path, tmp_path: Path) -> None:
    for path in ranks.iterdir():
        path.unlink()
    for name in ("c", "d"):
        (ranks / f"{name}.json").write_text(NO_TRACE)
    for part in ("1/2", "2/2"):
        assert run("analyze", ranks, "--out", tmp_path / "run", "--shard", part, "--processes", 1).exit_code == 1
    assert run("report", tmp_path / "run").exit_code == 0


@pytest.mark.parametrize("as_format", ["markdown", "json"])
def test_without_out_these_formats_make_no_run_directory(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = run("analyze", ranks, "--format", as_format, "--processes", 1, "--out", "run")
    assert kept.exit_code == 0, kept.output
    assert str(Path("run") / rundir.REPORT) in kept.stderr
    done = run("analyze", ranks, "--format", as_format, "--processes", 1)
    assert done.exit_code == 0, done.output
    assert undated(done.stdout) == undated(kept.stdout)
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} == {"job", "run"}


def undated(text: str) -> str:
    """Return a report without the moment at which it was made."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "", text)


def test_json_has_the_time_of_every_device(ranks: Path) -> None:
    done = run("analyze", ranks, "--format", "json", "--processes", 1)
    traces = json.loads(done.stdout)["modes"]["trace"]["traces"]
    assert [trace["source"] for trace in traces] == ["a.json.gz", "b.json.gz"]
    (thread,) = traces[0]["devices"]
    assert thread["device"] is None
    five = [thread[f"{name}_s"] for name in ("compute", "exposed_comm", "h2d", "copy", "idle")]
    assert sum(five) == pytest.approx(thread["total_s"], abs=1e-9)


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(ranks: Path, tmp_path: Path) -> None:
    (ranks / "c.json").write_text(NO_TRACE)
    done = run("analyze", ranks, "--out", tmp_path / "run", "--processes", 1)
    assert done.exit_code == 1
    assert f"{ranks / 'c.json'}: byte 17" in done.output
    assert "1 of 3 traces" in done.output
    assert len(digests(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--shard", "1/2"), "--shard needs --out"),
        (("--shard", "3/2", "--out", "run"), "not I/N"),
        (("--shard", "1/2", "--out", "run", "--format", "json"), "give --format, --plotlyjs and --open to"),
        (("--shard", "1/2", "--out", "run", "--plotlyjs", "directory"), "give --format, --plotlyjs and --open to"),
        (("--format", "json", "--open"), "makes no report without --out"),
        (("--format", "markdown", "--plotlyjs", "directory"), "makes no report without --out"),
        (("--max-bytes", "100", "--format", "json"), "raise --max-bytes"),
        (("--comm-kernels", "ep::(", "--format", "json"), "--comm-kernels 'ep::(' is no regular expression of Python"),
        (("--comm-kernels", "x*", "--format", "json"), "is found in every name"),
    ],
)
def test_what_is_asked_for_wrongly(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("analyze", ranks, "--processes", 1, *args)
    assert done.exit_code in {1, 2}
    assert why in done.output


def test_kernels_are_named_for_every_file_in_every_process(tmp_path: Path) -> None:
    for rank in range(2):
        made = Kineto(distributedInfo={"rank": rank, "world_size": 2})
        made.kernel("gemm", 10, 20, called=1)
        made.kernel("xyz::main", 20, 30, called=2)
        made.write(tmp_path / f"rank{rank}.json")
    unnamed, named = (
        json.loads(run("analyze", tmp_path, "--format", "json", "--processes", 2, *more).stdout)["modes"]["trace"]
        for more in ((), ("--comm-kernels", "XYZ"))
    )
    assert {trace["devices"][0]["exposed_comm_s"] for trace in unnamed["traces"]} == {None}
    assert [trace["devices"][0]["exposed_comm_s"] for trace in named["traces"]] == pytest.approx([1e-5] * 2)
    assert all("xyz::main" in trace["unknown_communication"] for trace in unnamed["traces"])


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    done = run("analyze", tmp_path / "nothing")
    assert done.exit_code == 2
    assert "no such file or folder" in done.output


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real traces is not beside the repository")
def test_real_traces_of_several_processes_equal_the_expected_figures() -> None:
    expected = json.loads((REAL / "expected.json").read_text())
    done = run("analyze", REAL, "--format", "json", "--processes", 2)
    assert done.exit_code == 0, done.output
    traces = json.loads(done.stdout)["modes"]["trace"]["traces"]
    found = {str(path.relative_to(REAL)): trace for path, trace in zip(locate([REAL]), traces, strict=True)}
    assert found.keys() == expected.keys()
    for file, devices in expected.items():
        assert Path(file).name == found[file]["source"]
        times = {str(device["device"]): device for device in found[file]["devices"] if device["device"] is not None}
        assert times.keys() == devices.keys()
        for index, parts in devices.items():
            for part, value in parts.items():
                if part.endswith("_us"):
                    time_us = times[index][f"{part.removesuffix('_us')}_s"] * 1e6
                    assert time_us == pytest.approx(value, rel=1e-3, abs=0.05), (file, part)
