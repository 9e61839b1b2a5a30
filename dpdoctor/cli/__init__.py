"""The command line: one file per verb. A verb parses, calls one function and prints; its help has headings."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
from typing import Any

import click

from dpdoctor import redact
from dpdoctor.version import __version__

# Options by heading, in the order in which help shows them; what is in none comes last.
_SECTIONS = {
    "Run": ("module", "seed", "seed_per_rank", "timeout", "allow_writes", "wall", "then", "keep_going"),
    "Modes": ("modes", "nproc", "launcher", "dp_devices", "batch", "fsdp_wrap", "no_baseline"),
    "Compare": ("base", "head", "baseline", "exact", "tolerance", "quick", "max_pairs", "pairs", "calibrations"),
    "Measure": (
        *("time_budget", "rounds", "steps", "warmup", "repeat", "ablations", "trace_steps", "no_control", "explain"),
        *("samples_per_step", "comm_kernels", "shard", "processes", "max_bytes"),
    ),
    "Output": ("out", "as_format", "plotlyjs", "open_page", "quiet", "verbose"),
}
_OTHER = "Options"


class Verb(click.Command):
    """A command whose options have headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section for each heading that has some."""
        order = {name: (section, place) for section, names in _SECTIONS.items() for place, name in enumerate(names)}
        found: dict[str, list[tuple[int, tuple[str, str]]]] = {section: [] for section in (*_SECTIONS, _OTHER)}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                section, place = order.get(option.name or "", (_OTHER, 0))
                found[section].append((place, record))
        for section, records in found.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl([record for _, record in sorted(records)])


def _names() -> list[str]:
    """Return the sorted names of the verbs: those of the public files beside this one, which are not imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


class Verbs(click.Group):
    """Finds the verbs among this package's files and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all verbs."""
        return _names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the verb of this name."""
        if cmd_name not in _names():
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
