"""Help that lists options by what they are about, not in one long list."""

from __future__ import annotations

import click

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


class Renamed(click.Option):
    """An option that still takes its former name, the last of its names, which help leaves out."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option as help shows it."""
        record = super().get_help_record(ctx)
        return record and (record[0].replace(f", {self.opts[-1]}", ""), record[1])
