"""Help comes at once: neither torch nor plotly is loaded for it."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from dpdoctor import __version__, cli
from tests.builders import plugins

VERBS = plugins.names(cli)
SHOW_HELP = """
import sys
from dpdoctor.cli import main
main(sys.argv[1:], prog_name="dpdoctor", standalone_mode=False)
print(*{"torch", "torchvision", "plotly", "scipy"} & set(sys.modules), file=sys.stderr, end="")
"""


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_loads_nothing_heavy_and_prints_nothing_else(verb: str) -> None:
    words = [verb, "--help"] if verb else ["--help"]
    shown = python("-c", SHOW_HELP, *words)
    assert shown.stdout.startswith(" ".join(["Usage: dpdoctor", *words[:-1], "[OPTIONS]"]))
    assert (shown.stderr, shown.returncode) == ("", 0)


def test_help_names_every_verb() -> None:
    shown = CliRunner().invoke(cli.main, ["--help"]).output
    commands = shown.partition("Commands:")[2].splitlines()
    assert [line.split()[0] for line in commands if line.strip()] == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_does(verb: str) -> None:
    command = cli.main.get_command(click.Context(cli.main), verb)
    assert command is not None
    assert command.help
    assert [p.name for p in command.params if isinstance(p, click.Option) and not p.help] == []


def test_the_package_is_the_command() -> None:
    shown = python("-m", "dpdoctor", "--version")
    assert shown.stdout.split() == ["dpdoctor,", "version", __version__]
    assert (shown.stderr, shown.returncode) == ("", 0)


def test_an_unknown_verb_is_a_usage_error() -> None:
    shown = CliRunner().invoke(cli.main, ["prophesy"])
    assert shown.exit_code == 2
    assert "No such command 'prophesy'" in shown.output
