"""What was done to the script, and the proof that it took effect."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.analysis import Conversion, Diagnosis, ModeSummary
from dpdoctor.report.blocks import Absent, Block, Callout, Cell, Column, Facts, Fold, Lines, OfMode, Table, View
from dpdoctor.report.text import (
    NOTHING,
    amount_cell,
    figure_text,
    left_alone,
    remarks,
    sampler_text,
    whole_cell,
)
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing
from dpdoctor.report.words.standing import withheld_briefly

MOST_FILES = 200
_VERDICTS = {True: ("ok", "good"), False: ("failed", "bad"), None: ("not judged", "muted")}


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return the remarks and, per mode, proof, units, loaders, settings and files."""
    blocks: list[Block] = [
        Callout(tone="warn", title=labels, text=text) for text, labels in remarks(analysis.summary.modes).items()
    ]
    for name, mode in analysis.summary.modes.items():
        wrapped = _mode(mode, mode.conversion) if mode.conversion else [_not_wrapped(mode)]
        blocks.append(OfMode(mode=name, blocks=tuple(wrapped)))
    return blocks or [Absent(what="Conversion", reason="this run has no modes")]


def _not_wrapped(mode: ModeSummary) -> Absent:
    reason = withheld_briefly(mode) or mode.reason or "no rank lived long enough to wrap the script"
    return Absent(what="Conversion", reason=reason)


def _mode(mode: ModeSummary, conversion: Conversion) -> list[Block]:
    blocks: list[Block] = [_proof(conversion) if conversion.proof else Absent(what="Checks", reason=_no_proof(mode))]
    modules = _units(conversion) if conversion.modules else Absent(what="Wrapped modules", reason=_no_units(mode))
    loaders = _loaders(conversion) if conversion.loaders else Absent(what="Loaders", reason="no DataLoader is used")
    blocks.append(Fold(title="Modules, loaders and settings", blocks=(modules, loaders, _facts(mode, conversion))))
    if conversion.written:
        blocks.append(Fold(title=left_alone(len(conversion.written)), blocks=(_written(conversion),)))
    if conversion.patched:
        patched = Lines(caption="Functions that dpdoctor wraps", lines=conversion.patched)
        blocks.append(Fold(title=f"Patched: {units.count(len(conversion.patched), 'place')}", blocks=(patched,)))
    return blocks


def _no_proof(mode: ModeSummary) -> str:
    if mode.world_size == 1:
        return "one process has nothing to synchronise with others"
    return withheld_briefly(mode) or mode.reason or "the mode ended before its checks were made"


def _no_units(mode: ModeSummary) -> str:
    return withheld_briefly(mode) or mode.reason or "no module with trained parameters was called"


def _proof(conversion: Conversion) -> Table:
    return Table(
        caption="Proof: facts that must hold if the mode does what its name says.",
        columns=(Column(title="Check"), Column(title="Result"), Column(title="Evidence")),
        rows=tuple(
            (
                Cell(text=check.name),
                Cell(text=_VERDICTS[check.ok][0], tone=_VERDICTS[check.ok][1]),
                Cell(text=check.text),
            )
            for check in conversion.proof
        ),
    )


def _units(conversion: Conversion) -> Table:
    return Table(
        caption="Modules that train, and where the script calls them.",
        columns=(
            Column(title="Module"),
            Column(title="Called at"),
            Column(title="Parameters", numeric=True),
            Column(title="Trainable", numeric=True),
            Column(title="Without a gradient"),
        ),
        rows=tuple(
            (
                Cell(text=unit.name),
                Cell(text=unit.line),
                whole_cell(unit.num_parameters),
                amount_cell(unit.trainable_bytes, "bytes"),
                Cell(text=", ".join(unit.unused) or NOTHING),
            )
            for unit in conversion.modules
        ),
    )


def _loaders(conversion: Conversion) -> Table:
    return Table(
        caption="Loaders that the script iterated, and how their batches were shared out.",
        columns=(
            Column(title="Loader"),
            Column(title="Dataset"),
            Column(title="Sampler"),
            Column(title="Batch size", numeric=True),
            Column(title="Workers", numeric=True),
            Column(title="Batches", numeric=True),
            Column(title="Sharding"),
        ),
        rows=tuple(
            (
                Cell(text=loader.line),
                Cell(text=loader.dataset),
                Cell(text=sampler_text(loader.sampler)),
                _number(loader.batch_size),
                _number(loader.num_workers),
                _number(loader.num_batches),
                Cell(text=loader.rule, note=loader.note),
            )
            for loader in conversion.loaders
        ),
    )


def _written(conversion: Conversion) -> Table:
    hidden = len(conversion.written) - MOST_FILES
    more = f" {units.whole(hidden)} more are in rank.json." if hidden > 0 else ""
    return Table(
        caption=f"Opened for writing, made or removed on the first rank; --allow-writes lets the script do it.{more}",
        columns=(Column(title="File"), Column(title="Change"), Column(title="Size", numeric=True)),
        rows=tuple(
            (
                Cell(text=file.path),
                Cell(text=file.change),
                amount_cell(None if file.change == "removed" else file.num_bytes, "bytes", missing=NOTHING),
            )
            for file in conversion.written[:MOST_FILES]
        ),
    )


def _number(value: int | None) -> Cell:
    return whole_cell(value, missing=NOTHING)


def _facts(mode: ModeSummary, conversion: Conversion) -> Facts:
    seen = (
        ("Ranks", standing.ranks(mode)),
        ("Backend", mode.backend or NOTHING),
        ("Optimizers", ", ".join(conversion.optimizers) or NOTHING),
        ("Threads per rank", str(conversion.num_threads) if conversion.num_threads else "unknown"),
        ("What keeps compiled code and programs from your files", mode.file_protection or NOTHING),
    )
    done = (
        ("Batch rule", mode.batch.rule),
        ("Seed", str(conversion.seed)),
        ("find_unused_parameters", "on" if conversion.find_unused_parameters else "off"),
    )
    return Facts(pairs=(*seen, *_own(mode)) if mode.native is not None else (*seen, *done))


def _own(mode: ModeSummary) -> tuple[tuple[str, str], ...]:
    """Return how a script distributes itself, which nothing was done to."""
    own, conversion = mode.native, mode.conversion
    assert own is not None
    ways = [
        f"{strategy.name}: {strategy.facts}" + (f" ({strategy.line})" if strategy.line else "")
        for strategy in (conversion.strategies if conversion else ())
    ]
    return (
        ("Started by", " ".join(own.launcher)),
        ("Strategy", "; ".join(ways) or NOTHING),
        ("Collectives per step", figure_text(own.collectives)),
        *((("Other worlds of ranks", own.other_worlds),) if own.other_worlds else ()),
    )


def result(analysis: Diagnosis) -> str:
    """Return how many of the checks hold."""
    checks = [check for mode in analysis.summary.modes.values() if mode.conversion for check in mode.conversion.proof]
    held = sum(check.ok is True for check in checks)
    return f"{held} of {units.count(len(checks), 'correctness check')} hold" if checks else ""


VIEW: View[Diagnosis] = View(
    name="conversion",
    title="Instrumentation and correctness checks",
    build=build,
    applies=is_profile,
    result=result,
    is_half=True,
)
