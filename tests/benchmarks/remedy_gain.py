"""Do the loader's remedies come true? What the first screen says is done to the script, and pairs of launches compared.

    python tests/benchmarks/remedy_gain.py [--times N] [--faults none,slow_disk,slow_transform]

samples/mnist_lenet.py is profiled on one device and under DDP, as it is, with a slow disk and with a slow transform. A
setting that the finding names is written into the DataLoader's call; transforms that it calls too dear are done for a
whole batch at once (whole_batch.py), or left out where that cannot be: for both it gives an upper bound. A line each:
what was predicted, what launches of the script as it was and as it is then, in turns, measured, and whether that lies
within (an upper bound: not above). At the end how many do, the median error and the widest prediction.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[2] / "samples"
SCRIPT = "mnist_lenet.py"
MODES = ("single", "ddp")
PAIRS = 5
# A launch that measures one mode's step and nothing else; a device has the threads that it has beside DDP of two ranks.
ALONE = ("--no-baseline", "--no-control", "--ablations", "none", "--trace-steps", "0", "--rounds", "6")
TWO = ("--nproc", "2", "--quiet")


@dataclass(frozen=True)
class Remedy:
    """What the finding of one mode advises: options of the DataLoader, or transforms to be cheaper; and the gain."""

    options: dict[str, Any]
    transforms: tuple[str, ...]
    low: float
    high: float
    value: float
    is_bound: bool


@dataclass(frozen=True)
class Measured:
    """A remedy that was applied; `gain` is the throughput with it over that without."""

    fault: str
    mode: str
    remedy: Remedy
    gain: float

    @property
    def holds(self) -> bool:
        """Return whether the gain is what was predicted: within the interval, or not above the bound."""
        return (self.remedy.is_bound or self.remedy.low <= self.gain) and self.gain <= self.remedy.high

    def __str__(self) -> str:
        remedy = self.remedy
        predicted = f"{remedy.value:.2f}, at most" if remedy.is_bound else f"{remedy.low:.2f} to"
        predicted += f" {remedy.high:.2f}"
        advice = f"batches of {', '.join(remedy.transforms)}" if remedy.transforms else str(remedy.options)
        verdict = "" if self.holds else "NOT"
        return f"{self.fault:15} {self.mode:7} {advice[:76]:76} {predicted:18} {self.gain:.3f} {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--faults", default="none,slow_disk,slow_transform")
    asked = parser.parse_args()
    found: list[Measured] = []
    for fault in asked.faults.split(",") * asked.times:
        with tempfile.TemporaryDirectory(prefix="dpdoctor_remedy_") as folder:
            for measured in _measure(Path(folder), fault):
                print(measured, flush=True)
                found.append(measured)
    print(f"as predicted: {sum(one.holds for one in found)} of {len(found)}")
    predicted = [one for one in found if not one.remedy.is_bound]
    if predicted:
        error = statistics.median(abs(one.gain / one.remedy.value - 1) for one in predicted)
        widest = max(one.remedy.high / one.remedy.low for one in predicted)
        print(f"median error {error:.1%}, widest high over low {widest:.2f}")


def _measure(home: Path, fault: str) -> Iterator[Measured]:
    """Yield what each mode's remedy gives."""
    shutil.copytree(SAMPLES, home / "base")
    found = _profile(home, fault)
    for mode in MODES:
        if mode not in found or not (found[mode].options or found[mode].transforms):
            print(f"{fault:15} {mode:7} no finding about the loader, or nothing to change", flush=True)
            continue
        head = home / mode
        shutil.copytree(SAMPLES, head)
        _apply(found[mode], head / SCRIPT)
        yield Measured(fault, mode, found[mode], _gain(home, head, mode, fault))


def _profile(home: Path, fault: str) -> dict[str, Remedy]:
    """Return the remedy that a profile's finding about the loader has for each mode."""
    command = [sys.executable, "-m", "dpdoctor", "profile", f"base/{SCRIPT}", "--modes", "ddp", *TWO]
    subprocess.run([*command, "--out", "run", "--", "--fault", fault], cwd=home, check=True, stdout=subprocess.DEVNULL)
    findings = json.loads((home / "run" / "run.json").read_text())["findings"]
    return {found["mode"]: _remedy(found) for found in findings if found["rule"] == "data_starved"}


def _remedy(finding: dict[str, Any]) -> Remedy:
    gain = finding["speedup"]
    call = ast.parse((finding["code"] or "None").replace("..., ", ""), mode="eval").body
    keywords = call.keywords if isinstance(call, ast.Call) else []
    options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    cheaper = re.match(r"make ([\w, ]+) cheaper", finding["remedy"])
    return Remedy(
        options=options,
        transforms=tuple(re.split(", | and ", cheaper[1])) if cheaper and not options else (),
        low=gain["low"],
        high=gain["high"],
        value=gain["value"],
        is_bound=finding["speedup_basis"] == "at most",
    )


class _Edit(ast.NodeTransformer):
    def __init__(self, remedy: Remedy) -> None:
        names = remedy.transforms
        self._kept = f"[each for each in chain if type(each).__name__ not in {names}]"
        self._new = {name: repr(value) for name, value in remedy.options.items()}
        if names:
            self._new["collate_fn"] = f"whole_batch.Collate(*{names})"
        self.missing = {"train_loader", "transform"} if names else {"train_loader"}

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        (target,) = node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call) and target.id in self.missing:
            self.missing.remove(target.id)
            if target.id == "transform":
                node.value.args = [_expression(self._kept)]
            else:
                kept = [keyword for keyword in node.value.keywords if keyword.arg not in self._new]
                new = [ast.keyword(name, _expression(value)) for name, value in self._new.items()]
                node.value.keywords = [*kept, *new]
        return node


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _apply(remedy: Remedy, script: Path) -> None:
    edit = _Edit(remedy)
    tree = edit.visit(ast.parse(script.read_text()))
    if edit.missing:
        sys.exit(f"cannot apply {remedy} to {script}")
    tree.body.insert(1, ast.Import([ast.alias("whole_batch")]))  # behind the docstring, which the script prints
    script.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    shutil.copy(Path(__file__).with_name("whole_batch.py"), script.parent)


def _gain(home: Path, head: Path, mode: str, fault: str) -> float:
    """Return base's seconds per step over head's: the median of pairs of launches, whose order alternates."""
    taken: dict[Path, list[float]] = {home / "base": [], head: []}
    for pair in range(PAIRS):
        for side in sorted(taken, reverse=bool(pair % 2)):
            taken[side].append(_step_s(home / f"{side.name}-{mode}-{pair}", side / SCRIPT, mode, fault))
    return statistics.median(base / changed for base, changed in zip(*taken.values(), strict=True))


def _step_s(run: Path, script: Path, mode: str, fault: str) -> float:
    command = [sys.executable, "-m", "dpdoctor", "profile", str(script), "--modes", mode, *ALONE, *TWO]
    command += ["--out", str(run)]
    subprocess.run([*command, "--", "--fault", fault], check=True, stdout=subprocess.DEVNULL)
    return float(json.loads((run / "run.json").read_text())["modes"][mode]["step"]["value"])


if __name__ == "__main__":
    main()
