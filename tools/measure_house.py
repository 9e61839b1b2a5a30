"""Measure how the package is laid out, and how much of it one answer runs through.

    python tools/measure_house.py                                # the files themselves, nothing is run
    python tools/measure_house.py --slow-loader RUN --modes RUN  # and what runs for recorded runs, two directories

With `--slow-loader`, a run whose first finding is the loader: which files of the package run, by sys.setprofile, from
its records to the headline, and to page and terminal. With `--modes`, a run of several modes: how often windows are
read from the records for one report, and the CPU seconds of `dpdoctor report`.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import resource
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from types import FrameType
from typing import Any

import dpdoctor
from dpdoctor import rundir

PACKAGE = Path(dpdoctor.__file__).parent
# What reads windows from the records of a launch, as file and function.
WINDOWS = ("analysis/base/launches.py", "measured")
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow-loader", type=Path, metavar="RUN")
    parser.add_argument("--modes", type=Path, metavar="RUN")
    args = parser.parse_args()
    found: dict[str, Any] = layout()
    if args.slow_loader:
        found |= reach(args.slow_loader)
    if args.modes:
        found["calls of launches.measured in one report"] = calls(*WINDOWS, lambda: report(args.modes))
        found["dpdoctor report, CPU seconds"] = report_seconds(args.modes)
    print(json.dumps(found, indent=1))


def layout() -> dict[str, Any]:
    """Return counts of modules, lines and imports, and the folders that import each other both ways."""
    files = {path: path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    lines = [len(text.splitlines()) for text in files.values()]
    modules = [length for length in lines if length > 1]
    of_imports = sum(num_import_lines(text) for text in files.values())
    pairs = both_ways(files)
    return {
        "modules": len(modules),
        "lines": sum(lines),
        "median lines": median(modules),
        "p90 lines": round(quantiles(modules, n=10)[-1]),
        "most lines": max(modules),
        "imports, share of code lines": round(of_imports / sum(num_code_lines(text) for text in files.values()), 4),
        "folder pairs both ways": len(pairs),
        "which": [f"{a} <-> {b} {count}:{back}" for (a, b), (count, back) in pairs.items()],
    }


def num_code_lines(text: str) -> int:
    """Return the lines that hold code: neither blank, nor comment, nor docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code = {n for token in tokens if token.type not in silent for n in range(token.start[0], token.end[0] + 1)}
    return len(code - docstring_lines(ast.parse(text)))


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of all lines of docstrings."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    firsts = [node.body[0] for node in ast.walk(tree) if isinstance(node, nodes) and ast.get_docstring(node, False)]
    return {number for node in firsts for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def num_import_lines(text: str) -> int:
    """Return the lines of import statements, wherever they stand."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def both_ways(files: dict[Path, str]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return folders that import each other both ways, and from how many lines; the package's root is none of them."""
    arrows = Counter(arrow for path, text in files.items() for arrow in arrows_of(path, text))
    return {(a, b): (n, arrows[b, a]) for (a, b), n in sorted(arrows.items()) if a < b and arrows[b, a]}


def arrows_of(path: Path, text: str) -> Iterable[tuple[str, str]]:
    """Yield (folder, folder of what is imported) for each import statement of a file, but for the same folder."""
    own = folder(path)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            continue
        others = {folder(found) for target in targets if (found := file_of(target)) is not None}
        yield from ((own, other) for other in others - {own, "."} if own != ".")


def file_of(name: str) -> Path | None:
    """Return the file that an import names: a module, or the one that holds the name; None: of another package."""
    parts = name.split(".")
    if parts[0] != PACKAGE.name:
        return None
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[1:length])
        found = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if length > 1 and f.exists()), None)
        if found is not None:
            return found
    return PACKAGE / "__init__.py"


def folder(path: Path) -> str:
    return path.relative_to(PACKAGE).parent.as_posix()


def reach(root: Path) -> dict[str, Any]:
    """Return the numbers of files and functions that run from a recorded run to the headline, to page and terminal."""
    report(root)  # once unseen: what is imported late would be counted
    found = {}
    for target, run in (("the headline", show_headline), ("page and terminal", report)):
        seen = executed(partial(run, root))
        found[f"files from a run to {target}"] = len({file for file, _ in seen})
        found[f"functions from a run to {target}"] = len(seen)
    return found


def diagnosed(root: Path) -> Any:
    """Return what `dpdoctor report` makes of a run directory before it shows it."""
    from dpdoctor.analysis import analyse
    from dpdoctor.rules import diagnose

    return diagnose(analyse(rundir.read(root)))


def show_headline(root: Path) -> None:
    from dpdoctor.report.words.verdict import headline

    headline(diagnosed(root).summary)


def report(root: Path) -> None:
    """Make the page and the terminal's summary."""
    from rich.console import Console

    from dpdoctor.report import page
    from dpdoctor.report.documents.run import of_run
    from dpdoctor.report.formats import terminal

    analysis = diagnosed(root)
    page.render(of_run(analysis))
    Console(file=io.StringIO(), width=120).print(terminal.summary(analysis))


def executed(run: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Return how often each function of the package is called, as (file, qualified name)."""
    seen: Counter[tuple[str, str]] = Counter()
    prefix = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(prefix):
            seen[file.removeprefix(prefix), getattr(frame.f_code, "co_qualname", frame.f_code.co_name)] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def calls(file: str, name: str, run: Callable[[], object]) -> int:
    """Return how often one function of the package is called."""
    return executed(run)[file, name]


def report_seconds(root: Path) -> float:
    """Return the least CPU seconds, user and system, of several `dpdoctor report`: others use the machine, too."""
    return round(min(cpu_s(root) for _ in range(REPEATS)), 2)


def cpu_s(root: Path) -> float:
    # Of an installed package the bytecode is there: a run of these repeats writes it, if others may not.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "dpdoctor", "report", str(root)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
