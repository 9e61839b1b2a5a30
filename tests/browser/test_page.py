"""The page in a real browser, without a network: every chart is drawn, nothing complains, nothing sticks out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.analysis import Analysis
from dpdoctor.report import page
from tests.unit.report import diagnosed_runs, runs, traced_runs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",
)
# Light or dark, as the page asks the browser.
DARK, LIGHT = "--blink-settings=preferredColorScheme=0", "--blink-settings=preferredColorScheme=1"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"),
]


def visit(file: Path, *flags: str) -> tuple[str, list[str]]:
    """Return the document after its scripts ran, and what the console said."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={file.parent / 'profile'}", *flags, "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def write(folder: Path, html: str) -> Path:
    """Write the page with every fold open, so that every chart has to be drawn."""
    file = folder / "report.html"
    file.write_text(html.replace('<details class="fold">', '<details class="fold" open>'), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("run", "scheme"),
    [
        (runs.cpu_run, LIGHT),
        (runs.gpu_run, DARK),
        (runs.hostile_run, LIGHT),
        (runs.empty_run, DARK),
        (traced_runs.hostile_traces, LIGHT),
        (traced_runs.traced_profile, DARK),
        (traced_runs.cpu_trace, LIGHT),
        (diagnosed_runs.diagnosed_run, DARK),
        (diagnosed_runs.hostile_findings, LIGHT),
    ],
)
def test_every_chart_is_drawn_and_the_console_is_silent(
    tmp_path: Path, run: Callable[[], Analysis], scheme: str
) -> None:
    html = page.render(run())
    document, console = visit(write(tmp_path, html), scheme)
    num_charts = html.count('<div class="chart"')
    assert document.count('data-drawn="yes"') == num_charts
    assert len(re.findall(r'<svg class="main-svg"', document)) >= num_charts
    assert "could not be drawn" not in re.sub(r"<script>.*?</script>", "", document, flags=re.DOTALL)
    assert console == []


def test_a_script_that_is_not_ours_does_not_run_and_is_reported(tmp_path: Path) -> None:
    html = page.render(runs.empty_run()).replace("</main>", "<script>document.title = 'taken over'</script></main>")
    document, console = visit(write(tmp_path, html))
    assert "<title>taken over" not in document
    assert any("Content Security Policy" in line for line in console)


def visit_framed(folder: Path, analysis: Analysis, width: int, script: str) -> str:
    """Return what `script` put into `said` after it ran beside the page, which stands in an iframe of that width."""
    write(folder, page.render(analysis))
    frame = folder / "frame.html"
    frame.write_text(
        f"""<iframe src="report.html" style="width: {width}px; height: 2000px; border: 0"></iframe><p></p><script>
        const frame = document.querySelector("iframe"), said = document.querySelector("p");
        frame.onload = () => setTimeout(async () => {{ {script} }}, 3000);
        </script>""",
        encoding="utf-8",
    )
    document, _ = visit(frame, "--window-size=2700,2100")
    (said,) = re.findall(r"<p>(.*?)</p>", document, re.DOTALL)
    return unescape(said)


@pytest.mark.parametrize("run", [diagnosed_runs.diagnosed_run, traced_runs.hostile_traces])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_the_page_never_scrolls_sideways(tmp_path: Path, run: Callable[[], Analysis], width: int) -> None:
    script = "said.textContent = frame.contentDocument.documentElement.scrollWidth;"
    assert visit_framed(tmp_path, run(), width, script) == str(width)


def test_the_whole_of_a_long_name_opens_at_a_click(tmp_path: Path) -> None:
    script = """
        const name = frame.contentDocument.querySelector("#kernels .full"), text = name.lastChild;
        const before = name.getBoundingClientRect().height;
        name.querySelector("summary").click();
        said.textContent = [name.open, name.getBoundingClientRect().height > before, text.textContent.length];"""
    assert (
        visit_framed(tmp_path, traced_runs.hostile_traces(), 360, script) == f"true,true,{len(traced_runs.HOSTILE[2])}"
    )


def test_on_a_phone_a_row_keeps_its_name_while_its_figures_scroll_by(tmp_path: Path) -> None:
    script = """
        const table = frame.contentDocument.querySelector("#overview .scroll"), name = table.querySelector("tbody th");
        table.scrollLeft = 100;
        const [outer, inner] = [table, name].map((element) => element.getBoundingClientRect().left);
        said.textContent = [table.scrollLeft, inner - outer];"""
    assert visit_framed(tmp_path, runs.cpu_run(), 360, script) == "100,0"


def test_the_button_hands_out_run_json(tmp_path: Path) -> None:
    script = """
        let file;
        frame.contentWindow.URL.createObjectURL = (blob) => { file = blob; return "#"; };
        frame.contentWindow.HTMLAnchorElement.prototype.click = () => {};  // a real download would keep Chromium alive
        frame.contentDocument.getElementById("download").click();
        said.textContent = await file.text();"""
    analysis = runs.hostile_run()
    said = visit_framed(tmp_path, analysis, 1280, script)
    assert json.loads(said) == json.loads(rundir.encode(analysis.summary))
