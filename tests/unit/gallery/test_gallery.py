"""What the gallery keeps: no name of the machine, and an index of what lies in its folder."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.records import RankRecord
from dpdoctor.spec import RunHeader
from reports.making import index
from reports.making.entries import ENTRIES
from reports.making.neutral import neutralise, traces_of_this_machine
from reports.making.origin import origin
from tests.builders import diagnosed_runs, records, runs

REPOSITORY = Path("/somewhere/dpdoctor")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory as this machine would leave it."""
    header = records.header({"single": 1}, target=f"{REPOSITORY}/samples/gan.py", cwd=str(REPOSITORY))
    fingerprint = replace(header.fingerprint, host=socket.gethostname())
    rundir.write_json(tmp_path / rundir.HEADER, replace(header, fingerprint=fingerprint))
    (tmp_path / "single" / "rank0").mkdir(parents=True)
    record = records.rank([], [], host=socket.gethostname(), reason=f"{Path.home()}/x.py and {REPOSITORY}/y.py").record
    rundir.write_json(tmp_path / "single" / "rank0" / rundir.RANK, record)
    return tmp_path


def test_records_name_neither_host_nor_folders_and_stay_records(run: Path) -> None:
    neutralise(run, REPOSITORY, "a-machine")
    header = rundir.read_json(run / rundir.HEADER, RunHeader)
    assert (header.fingerprint.host, header.spec.target, header.spec.cwd) == ("a-machine", "samples/gan.py", ".")
    record = rundir.read_json(run / "single" / "rank0" / rundir.RANK, RankRecord)
    assert (record.host, record.reason) == ("a-machine", "~/x.py and y.py")


def test_what_still_names_the_machine_is_found(run: Path) -> None:
    before = (run / rundir.HEADER).read_text()
    assert any(str(REPOSITORY) in found for found in traces_of_this_machine(before, REPOSITORY))
    assert traces_of_this_machine(f"ran on {socket.gethostname()}.", REPOSITORY) != []
    packed = "A" * 150 + f"/{socket.gethostname()}/" + "A" * 150
    assert traces_of_this_machine(packed, REPOSITORY) == []
    neutralise(run, REPOSITORY, "a-machine")
    assert traces_of_this_machine((run / rundir.HEADER).read_text(), REPOSITORY) == []


def test_the_index_has_a_line_per_run_in_the_folder(tmp_path: Path) -> None:
    first, second, *_ = ENTRIES
    diagnosed = diagnosed_runs.diagnosed_run()
    for name, analysis in ((first, diagnosed), (second, runs.gpu_run())):
        (tmp_path / name).mkdir()
        rundir.write_json(tmp_path / name / index.ORIGIN, origin(analysis.summary, "What <it> shows.", "4b38c84"))
    index.write(tmp_path)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert page.count("<li>") == 2
    assert page.index(f'href="{first}/report.html"') < page.index(f'href="{second}/report.html"')
    assert "What &lt;it&gt; shows." in page
    assert f"ddp: {diagnosed.summary.findings[0].title} (confirmed)" in page
    assert page.count("Nothing was found") == 1
    machine = ", ".join(("Example CPU @ 2.00GHz", "2 cores", "16.0 GB", runs.H100.name, runs.H100.name))
    assert f"node: {machine}" in page
