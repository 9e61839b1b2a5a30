"""What `dpdoctor report` prints and leaves, in every format and with plotly.js in either place."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dpdoctor
from dpdoctor import rundir
from dpdoctor.cli import main
from dpdoctor.report import page
from dpdoctor.report.formats import markdown
from dpdoctor.report.words.first_screen import first_screen
from dpdoctor.rules import diagnose
from tests.builders import diagnosed_runs, run_directories, runs
from tests.builders.html import Elements


def report(*args: object) -> Result:
    done = CliRunner().invoke(main, ["report", *map(str, args)])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return run_directories.write(tmp_path / "reports" / "run", runs.cpu_run().run)


class TestFormats:
    @pytest.mark.parametrize("options", [(), ("--format", "terminal")])
    def test_people_get_it_all_on_stdout(self, root: Path, options: tuple[str, ...]) -> None:
        done = report(root, *options)
        assert first_screen(diagnose(runs.cpu_run()).summary).answer in " ".join(done.stdout.split())
        assert str(root / rundir.REPORT) in done.stdout
        assert done.stderr == ""

    def test_json_is_run_json(self, root: Path) -> None:
        done = report(root, "--format", "json")
        assert done.stdout == (root / rundir.SUMMARY).read_text()
        assert done.stderr.splitlines() == [f"Report: {root / rundir.REPORT}"]

    def test_markdown_is_a_comment(self, root: Path) -> None:
        done = report(root, "--format", "markdown")
        assert done.stdout == markdown.comment(dpdoctor.load(root).analysis)
        assert done.stderr.splitlines() == [f"Report: {root / rundir.REPORT}"]

    def test_every_format_has_the_same_verdict(self, tmp_path: Path) -> None:
        root = run_directories.write(tmp_path / "run", diagnosed_runs.diagnosed_run().run)
        page = (report(root).stdout, report(root, "--format", "markdown").stdout, dpdoctor.load(root)._repr_html_())
        assert all("447" in text and "1.39" in text and "1.44" in text for text in page)

    def test_an_unknown_format_is_a_usage_error(self, root: Path) -> None:
        done = CliRunner().invoke(main, ["report", str(root), "--format", "pdf"])
        assert done.exit_code == 2
        assert "'terminal', 'markdown', 'json'" in done.output


class TestPlotlyjs:
    def test_it_is_in_the_page_unless_asked_otherwise(self, root: Path) -> None:
        report(root)
        assert Elements((root / rundir.REPORT).read_text()).plotly == [page.plotly_source()]
        assert list(root.parent.iterdir()) == [root]

    def test_reports_beside_each_other_share_one(self, root: Path) -> None:
        other = run_directories.write(root.parent / "other", runs.gpu_run().run)
        for directory in (root, other):
            report(directory, "--plotlyjs", "directory")
            html = (directory / rundir.REPORT).read_text()
            (link,) = re.findall(r'data-link="([^"]*)"', html)
            assert (directory / link).resolve() == root.parent / page.PLOTLY_FILE
            assert Elements(html).plotly == []
        assert {path.name for path in root.parent.iterdir()} == {"run", "other", page.PLOTLY_FILE}
        assert (root.parent / page.PLOTLY_FILE).read_text() == page.plotly_source()

    def test_one_that_is_there_is_left_alone(self, root: Path) -> None:
        report(root, "--plotlyjs", "directory")
        shared = root.parent / page.PLOTLY_FILE
        os.utime(shared, ns=(1, 1))
        report(root, "--plotlyjs", "directory")
        assert shared.stat().st_mtime_ns == 1

    def test_a_damaged_one_is_replaced(self, root: Path) -> None:
        shared = root.parent / page.PLOTLY_FILE
        shared.write_text("cut sho")
        report(root, "--plotlyjs", "directory")
        assert shared.read_text() == page.plotly_source()

    def test_the_run_directory_may_be_the_present_one(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(root)
        report(".", "--plotlyjs", "directory")
        assert (root.parent / page.PLOTLY_FILE).exists()

    def test_a_folder_that_cannot_be_written_is_named(self, root: Path) -> None:
        (root.parent / page.PLOTLY_FILE).mkdir()
        done = CliRunner().invoke(main, ["report", str(root), "--plotlyjs", "directory"])
        assert done.exit_code == 1
        assert f"cannot write {root.parent / page.PLOTLY_FILE}" in " ".join(done.output.split())
