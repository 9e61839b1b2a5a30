"""What `profile --explain` prints: what was done to the script in each mode, and whether it took effect."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.tree import Tree

from dpdoctor import units
from dpdoctor.analysis import Conversion, Diagnosis, ModeSummary
from dpdoctor.report.formats.console import Wrapped, literal
from dpdoctor.report.text import left_alone, sampler_text
from dpdoctor.report.words import clauses

_SIGNS = {True: ("holds", "green"), False: ("FAILS", "bold red"), None: ("cannot tell", "yellow")}


def explanation(analysis: Diagnosis) -> RenderableType:
    """Return a tree per mode: modules, loaders, settings, remarks and the proof; text of the run is literal."""
    return Group(*(_mode(name, mode) for name, mode in analysis.summary.modes.items()))


def _mode(name: str, mode: ModeSummary) -> Tree:
    tree = Tree(literal(f"{name}: {mode.status}", "bold"))
    if mode.reason:
        tree.add(Wrapped(text=mode.reason, style="bold red"))
    for line in _lines(mode, mode.conversion) if mode.conversion else ():
        tree.add(line)
    return tree


def _lines(mode: ModeSummary, conversion: Conversion) -> Iterator[RenderableType]:
    for unit in conversion.modules:
        parameters = f"{units.whole(unit.num_parameters)} parameters"
        yield Wrapped(text=f"module {unit.name} ({parameters}), called at {unit.line}")
        if unit.unused:
            yield literal(f"  without a gradient: {', '.join(unit.unused)}")
    for loader in conversion.loaders:
        size = "" if loader.batch_size is None else f", batch {loader.batch_size}"
        workers = units.count(loader.num_workers, "worker")
        note = f"; {loader.note}" if loader.note else ""
        sampler = sampler_text(loader.sampler)
        yield Wrapped(
            text=f"loader at {loader.line}: {loader.dataset}, {sampler}{size}, {workers}; shared: {loader.rule}{note}"
        )
    if conversion.optimizers:
        yield literal(f"optimizers: {', '.join(conversion.optimizers)}")
    threads = units.count(conversion.num_threads, "thread")
    unused = "; find_unused_parameters on" if conversion.find_unused_parameters else ""
    yield literal(f"{clauses.ranks(mode)}, {threads} each, seed {conversion.seed}{unused}")
    if conversion.written:
        yield literal(left_alone(len(conversion.written)))
    yield literal(f"patched: {', '.join(conversion.patched)}", "dim")
    for warning in conversion.warnings:
        yield Wrapped(text=warning, style="yellow")
    for check in conversion.proof:
        sign, style = _SIGNS[check.ok]
        yield Wrapped(text=f"{sign}: {check.text}", head=len(f"{sign}:"), head_style=style)
