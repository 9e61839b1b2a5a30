"""Write the pages that come from the code, rules.md and cli.md, and run.json's schema: `python docs/reference.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from dpdoctor import cli
from dpdoctor.analysis import RunSummary
from dpdoctor.rules import BY_NAME

HERE = Path(__file__).parent
WIDTH = 100


def pages() -> dict[str, str]:
    """Return the content of each generated file, by its name."""
    return {"rules.md": _rules(), "cli.md": _cli(), "../dpdoctor/run.schema.json": _schema()}


def _schema() -> str:
    schema = msgspec.json.schema(RunSummary)
    for record in schema["$defs"].values():
        if "description" in record:  # a docstring, whose indentation some versions of Python and msgspec keep
            record["description"] = inspect.cleandoc(record["description"])
    return msgspec.json.format(msgspec.json.encode(schema), indent=1).decode() + "\n"


def _rules() -> str:
    every = BY_NAME
    unverified = [f"`{name}`" for name, rule in every.items() if not rule.verified]
    head = (
        f"# Rules\n\n`dpdoctor rules` lists the {len(every)} rules, `dpdoctor rules NAME` shows one of them.\n\n"
        f"Not verified on hardware, and marked so in the report: {', '.join(unverified)}. They were tested on recorded "
        "or constructed figures; most need several GPUs.\n"
    )
    sections = (
        f"## {name}\n\n**{rule.title}.** {rule.what}\n\n"
        f"- **Why it costs time:** {rule.why}\n- **How it is measured:** {rule.how}\n- **What to do:** {rule.remedy}\n"
        for name, rule in every.items()
    )
    return "\n".join([head, *sections])


def _cli() -> str:
    return "# Command line\n\n" + "\n".join(f"## {name}\n\n```text\n{text}\n```\n" for name, text in _helps())


def _helps() -> Iterator[tuple[str, str]]:
    """Yield the name and the help of each command, groups before what they hold."""
    settings = {**cli.main.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    todo = [click.Context(cli.main, info_name="dpdoctor", **settings)]
    while todo:
        context = todo.pop(0)
        yield context.command_path, context.command.get_help(context)
        if isinstance(context.command, click.Group):
            for name in context.command.list_commands(context):
                command = context.command.get_command(context, name)
                assert command is not None
                todo.append(click.Context(command, context, name, terminal_width=WIDTH))


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, "utf-8")
