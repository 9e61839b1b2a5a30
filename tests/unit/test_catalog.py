"""What is said of modes and ablations stands in one catalogue: each has its file, and its row in the documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpdoctor.catalog import ABLATION_BY_NAME, ABLATIONS, MODE_BY_NAME, MODES, Ablation, Mode
from dpdoctor.worker import ablations, modes
from tests.builders import plugins

DOCS = Path(__file__).parents[2] / "docs"


def test_every_entry_is_a_file_and_every_file_an_entry() -> None:
    assert plugins.names(modes) == sorted(MODE_BY_NAME)
    assert plugins.names(ablations) == sorted(ABLATION_BY_NAME)
    assert (len(MODE_BY_NAME), len(ABLATION_BY_NAME)) == (len(MODES), len(ABLATIONS))


def test_each_offers_what_its_name_says() -> None:
    for mode in MODES:
        assert modes.load(mode.name).__class__.__module__.endswith(f".{mode.name}")
    for ablation in ABLATIONS:
        assert ablations.load(ablation.name).__class__.__module__.endswith(f".{ablation.name}")


@pytest.mark.parametrize(
    ("page", "entries"), [("quickstart.md", MODES), ("how-it-measures.md", ABLATIONS)], ids=["modes", "ablations"]
)
def test_the_documentation_says_what_the_catalogue_says(page: str, entries: tuple[Mode | Ablation, ...]) -> None:
    rows = [line for line in (DOCS / page).read_text("utf-8").splitlines() if line.startswith("| `")]
    told = [row for row in rows if row.split("`")[1] in {entry.name for entry in entries}]
    assert told == [f"| `{entry.name}` | {entry.what} | {entry.needs} |" for entry in entries]


def test_all_of_them_are_loaded_without_torch() -> None:
    code = (
        "import sys; from dpdoctor.catalog import ABLATIONS, MODES; from dpdoctor.worker import ablations, modes; "
        "[modes.load(one.name) for one in MODES]; [ablations.load(one.name) for one in ABLATIONS]; "
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
