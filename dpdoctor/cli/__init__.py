"""The command line: one file per verb. A verb parses, calls one function and prints."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

from dpdoctor import cli, plugins, redact
from dpdoctor.version import __version__


class Verbs(click.Group):
    """Finds the verbs among this package's files and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all verbs."""
        return plugins.names(cli)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the verb of this name."""
        if cmd_name not in plugins.names(cli):
            return None
        command: click.Command = importlib.import_module(f"dpdoctor.cli.{cmd_name}").COMMAND
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; Ctrl-C where nothing is to be kept yet ends it with the code that shells know it by."""
        redact.learn(sys.argv[1:], os.environ)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)
            ctx.exit(128 + signal.SIGINT)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="dpdoctor")
def main() -> None:
    """Find out why data-parallel training in PyTorch is slow.

    Start with: dpdoctor profile train.py --modes ddp
    """
