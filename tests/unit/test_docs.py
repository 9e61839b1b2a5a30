"""README and docs say what is: generated pages are those of the code, commands parse, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dpdoctor import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")
PRINT_PAGES = "import json, reference; print(json.dumps(reference.pages()))"
# Quoted in a sentence, and whole.
QUOTED = re.compile(r"`(dpdoctor (?!rules NAME|--help)[^`]+)`")


def commands(page: Path) -> Iterator[str]:
    """Yield what a page tells to type after `dpdoctor`."""
    text = page.read_text("utf-8")
    typed = [part for block in BLOCK.findall(text) for line in block.splitlines() for part in line.split(" && ")]
    for line in (*typed, *QUOTED.findall(text)):
        told = line.partition("  #")[0].removeprefix(".venv/bin/").strip()
        if told.startswith("dpdoctor "):
            yield told


TOLD = [(page.name, told) for page in PAGES if page.name != "cli.md" for told in commands(page)]


@pytest.fixture
def no_paths_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a page names, such as `../base`, be missing here."""

    def take(_self: click.Path, value: Any, *_: Any) -> Any:
        return value

    monkeypatch.setattr(click.Path, "convert", take)


@pytest.mark.usefixtures("no_paths_needed")
@pytest.mark.parametrize(("page", "told"), TOLD, ids=[f"{page}: {told}" for page, told in TOLD])
def test_each_command_parses(page: str, told: str) -> None:
    command: click.Command = cli.main
    words = shlex.split(told)[1:]
    while isinstance(command, click.Group):
        verb = command.get_command(click.Context(command), words[0])
        assert verb is not None, f"{page} names {words[0]!r}, which is no verb"
        command, words = verb, words[1:]
    command.make_context(command.name, words)


def test_a_planted_mistake_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        test_each_command_parses("page", "dpdoctor profile train.py --mode ddp")
    with pytest.raises(AssertionError, match="'prophesy', which is no verb"):
        test_each_command_parses("page", "dpdoctor prophesy train.py")


def test_there_are_commands_on_the_pages() -> None:
    assert {"README.md", "quickstart.md", "report.md", "traces.md", "ci.md"} <= {page for page, _ in TOLD}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_each_link_leads_to_a_file(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert missing == []


def test_the_generated_pages_are_those_of_the_code() -> None:
    # In a process of its own: click keeps a command's option for help as the first context that asked had it.
    shown = subprocess.run([sys.executable, "-c", PRINT_PAGES], cwd=ROOT / "docs", capture_output=True, check=True)
    generated = json.loads(shown.stdout)
    differ = [name for name, text in generated.items() if (ROOT / "docs" / name).read_text("utf-8") != text]
    assert differ == [], "python docs/reference.py writes them anew"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 110
