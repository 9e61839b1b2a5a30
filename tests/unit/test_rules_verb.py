"""`dpdoctor rules`: what the rules are about, without anything heavy."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from dpdoctor import cli
from dpdoctor.rules import BY_NAME

LIST = """
import sys
from dpdoctor.cli import main
main(["rules"], prog_name="dpdoctor", standalone_mode=False)
print(*{"torch", "plotly", "scipy"} & set(sys.modules), file=sys.stderr, end="")
"""


def said(*args: str) -> str:
    result = CliRunner().invoke(cli.main, ["rules", *args])
    assert result.exit_code == 0
    return result.output


def test_every_rule_is_listed_with_its_title_and_whether_hardware_has_seen_it() -> None:
    lines = said().splitlines()
    assert [line.split()[0] for line in lines] == [*BY_NAME]
    for line, rule in zip(lines, BY_NAME.values(), strict=True):
        assert rule.title in line
        assert line.endswith("(not verified on hardware)") is not rule.verified


def test_a_rule_by_name_gives_its_whole_paragraph() -> None:
    rule = BY_NAME["data_starved"]
    text = " ".join(said("data_starved").split())
    assert text.startswith(f"data_starved: {rule.title}")
    for part in (rule.what, rule.why, rule.how, rule.remedy):
        assert " ".join(part.split()) in text


def test_an_unknown_rule_is_a_usage_error_that_names_the_known_ones() -> None:
    result = CliRunner().invoke(cli.main, ["rules", "data_starvd"])
    assert result.exit_code == 2
    assert "'data_starvd' is no rule" in result.output
    assert "data_starved" in result.output


def test_listing_loads_nothing_heavy() -> None:
    shown = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True, check=False)
    assert (shown.stderr, shown.returncode) == ("", 0)
