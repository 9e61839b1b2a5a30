"""The samples' option --fault."""

from __future__ import annotations

import argparse

import pytest

from samples.faults import Fault, add_option

KNOWN = {"slow_disk": (1, "reading waits SIZE ms")}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], Fault("none", 0)),
        (["--fault", "none"], Fault("none", 0)),
        (["--fault", "slow_disk"], Fault("slow_disk", 1)),
        (["--fault", "slow_disk:2.5"], Fault("slow_disk", 2.5)),
    ],
)
def test_a_fault_has_a_name_and_a_size(arguments, fault):
    assert parser().parse_args(arguments).fault == fault


@pytest.mark.parametrize(("text", "message"), [("fast_disk", "known: none, slow_disk"), ("slow_disk:x", "slow_disk:x")])
def test_what_is_no_fault_is_refused(capsys, text, message):
    with pytest.raises(SystemExit):
        parser().parse_args(["--fault", text])
    assert message in capsys.readouterr().err


def test_help_says_what_a_fault_does(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    ((name, (size, what)),) = KNOWN.items()
    assert f"{name}:SIZE: {what}" in said
    assert f"SIZE is {size}" in said


def parser() -> argparse.ArgumentParser:
    """Return a parser with one known fault."""
    made = argparse.ArgumentParser()
    add_option(made, KNOWN)
    return made
