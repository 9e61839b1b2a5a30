"""`dpdoctor rules`: what dpdoctor looks for."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from dpdoctor.cli import Verb

if TYPE_CHECKING:
    from dpdoctor.rules import Rule

UNVERIFIED = "not verified on hardware"
WIDTH = 100


@click.command(cls=Verb, short_help="List the rules, or explain one.")
@click.argument("name", required=False)
def rules(name: str | None) -> None:
    """List the rules or, with NAME, say what one of them is about."""
    # Imports late: the rules load what they compute with.
    from dpdoctor.rules import BY_NAME

    if name is None:
        for key, rule in BY_NAME.items():
            click.echo(_line(key, rule, max(map(len, BY_NAME))))
        return
    if name not in BY_NAME:
        raise click.BadParameter(f"{name!r} is no rule; known: {', '.join(BY_NAME)}", param_hint="NAME")
    click.echo(_paragraph(name, BY_NAME[name]))


def _line(name: str, rule: Rule, width: int) -> str:
    return f"{name:<{width}}  {rule.title}" + ("" if rule.verified else f" ({UNVERIFIED})")


def _paragraph(name: str, rule: Rule) -> str:
    """Return what the rule is, why it costs time, how it is measured and what to do."""
    head = f"{name}: {rule.title}" + ("" if rule.verified else f"\n{UNVERIFIED[0].upper()}{UNVERIFIED[1:]}.")
    text = " ".join((rule.what, rule.why, rule.how, rule.remedy))
    return f"{head}\n\n{textwrap.fill(text, WIDTH)}"


COMMAND = rules
