"""Launches the script of a checkout, which imports its own packages, and reads what it measured.

The launcher is called in this process, as `dpdoctor profile` does: ranks are fresh processes either way, this one never
imports torch, and one dpdoctor measures both sides, whatever the checkouts hold. Each side is a run directory of its
own, which `dpdoctor report` and `dpdoctor compare` read like any other.

A package that is installed, or found by PYTHONPATH, is of one of two checkouts, and both scripts would import that one:
whatever head changes in it, the two are the same. So each side gets its own copy put first on its path.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.analysis import Diagnosis
from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.base.summary import why_unlike_steps
from dpdoctor.gate.alternate import Measured
from dpdoctor.gate.comparable import of_a_pair, unsound
from dpdoctor.gate.model import SIDES, Refusal, Side, SideName
from dpdoctor.gate.recorded import RecordedMode, recorded_mode
from dpdoctor.launch import launcher
from dpdoctor.launch.progress import Progress
from dpdoctor.records import Launch, Run
from dpdoctor.rules import diagnosed
from dpdoctor.spec import RunHeader, RunSpec

# Where the pair goes that is discarded: beside the sides, which hold only what may count.
DISCARDED = "discarded"


class Checkout(msgspec.Struct, frozen=True, kw_only=True):
    """One side.

    Attributes:
        label: what people call it.
        spec: what is launched.
        header: goes with it, without secrets.
        import_roots: directories of the checkout whose packages it must import before others of the same name.
    """

    label: str
    spec: RunSpec
    header: RunHeader
    import_roots: tuple[str, ...] = ()

    def changed(self, **fields: Any) -> Checkout:
        """Return the same with other fields of its RunSpec; not for such as hold secrets."""
        return replace(
            self,
            spec=replace(self.spec, **fields),
            header=replace(self.header, spec=replace(self.header.spec, **fields)),
        )

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the names of the modes that are launched."""
        return tuple(mode.name for mode in self.spec.modes)

    def side(self) -> Side:
        """Return what a result says of this side."""
        return Side(label=self.label, command=self.header.command, fingerprint=self.header.fingerprint)


def launch(directory: Path, checkout: Checkout, number: int, progress: Progress) -> Run | None:
    """Launch all modes of a checkout for the n-th time and return that launch alone; None: Ctrl-C ended it.

    Raises:
        OutputError: the directory cannot be written.
    """
    if not directory.exists():
        launcher.create(directory, checkout.header)
    with own_imports(checkout.spec.cwd, checkout.import_roots):
        records = launcher.launch_once(directory, checkout.spec, number, progress)
    if records[-1].status == "interrupted":
        return None
    launches: dict[str, tuple[Launch, ...]] = {
        name: (rundir.read_launch(rundir.launch_dir(directory, name, number), name, number),) for name in checkout.modes
    }
    return Run(path=directory, header=checkout.header, modes=launches)


class Launches:
    """Launches either side for the n-th time, of at most `most`, into a directory below `root`."""

    def __init__(self, root: Path, checkouts: Mapping[SideName, Checkout], progress: Progress, *, most: int) -> None:
        self._root = root
        self._checkouts = {side: checkout.changed(repeat=most) for side, checkout in checkouts.items()}
        self._progress = progress
        # By pair.
        self._seen: defaultdict[int, dict[SideName, dict[str, RecordedMode]]] = defaultdict(dict)

    def __call__(self, side: SideName, number: int) -> Measured:
        """Launch a side; number 0 is the launch that is discarded."""
        checkout = self._checkouts[side]
        if number:
            run = launch(self._root / side, checkout, number, self._progress)
        else:
            run = launch(self._root / DISCARDED / side, checkout.changed(repeat=1), 1, self._progress)
        return Measured(interrupted=True) if run is None else self._measured(side, number, run)

    def analysis(self, side: SideName, numbers: Collection[int]) -> Diagnosis:
        """Return the figures of these launches of a side, diagnosed."""
        run = rundir.read(self._root / side)
        modes = {name: tuple(one for one in found if one.record.launch in numbers) for name, found in run.modes.items()}
        return diagnosed(replace(run, modes=modes))

    def _measured(self, side: SideName, number: int, run: Run) -> Measured:
        analysis = analyse(run)
        modes = analysis.summary.modes
        found = {name: recorded_mode(analysis.run, name, summary) for name, summary in modes.items()}
        pair = self._seen[number]
        pair[side] = found
        reasons = [f"{name}: {reason}" for name, mode in found.items() for reason in mode.disturbed]
        reasons += (
            f"{name}: {reason}"
            for other in pair.values()
            for name, mode in found.items()
            if (reason := why_unlike_steps(mode.summary, other[name].summary)) is not None
        )
        return Measured(
            seconds={name: mode.seconds[0] for name, mode in found.items() if mode.seconds},
            shown={name: mode.shown[0] for name, mode in found.items() if mode.shown},
            disturbed="; ".join(reasons) or None,
            refusals=(*_unsound(side, found), *_unlike(pair)),
        )


def _unlike(pair: Mapping[SideName, Mapping[str, RecordedMode]]) -> tuple[Refusal, ...]:
    """Return why the launches of both sides are not the same work."""
    if len(pair) < len(SIDES):
        return ()
    base, head = (pair[side] for side in SIDES)
    return tuple(refusal for mode in base for refusal in of_a_pair(mode, base[mode], head[mode]))


def _unsound(side: SideName, found: Mapping[str, RecordedMode]) -> tuple[Refusal, ...]:
    """Return why a launch is no evidence; one that was only disturbed can be replaced."""
    sound = {name: replace(mode, disturbed=()) for name, mode in found.items()}
    return tuple(refusal for name, mode in sound.items() for refusal in unsound(side, name, mode))


# Where projects keep their packages.
ROOTS = (".", "src")
# What is below them, pip has put there.
_INSTALLED = frozenset(("site-packages", "dist-packages"))
# dpdoctor measures; a checkout of it must not be what measures that checkout.
_OWN = Path("dpdoctor", "__main__.py")
_VARIABLE = "PYTHONPATH"
# Of the modules of a checkout's package, the share that an installed one of the same name has if it is a copy of it.
_COPY_SHARE = 0.5


def import_roots(base: Path, head: Path) -> tuple[str, ...]:
    """Return the directories, relative to a checkout, from which each side must import before all others."""
    # The deeper one first: base may lie inside of head.
    checkouts = sorted((base.resolve(), head.resolve()), key=lambda path: -len(path.parts))
    # The first entry is this command's own: of a rank it is the script's directory.
    found = dict.fromkeys(root for entry in sys.path[1:] if (root := _root_of(Path(entry).resolve(), checkouts)))
    packages = dict.fromkeys((name, root) for side in checkouts for root in ROOTS for name in _packages(side / root))
    for name, root in (*packages, *((name, ".") for name in _installed_in_place(checkouts))):
        for origin in _imported_from(name):
            if (own := _root_of(origin, checkouts)) is not None:
                found[own] = None
            elif any(_is_copy(origin, side / root, name) for side in checkouts):
                found[root] = None
    return tuple(root for root in found if not any((side / root / _OWN).exists() for side in checkouts))


def _root_of(path: Path, checkouts: Sequence[Path]) -> str | None:
    """Return a directory of a checkout's own as relative to it; None: it is elsewhere, or holds what is installed."""
    checkout = next((one for one in checkouts if path.is_relative_to(one)), None)
    if checkout is None or not path.is_dir():
        return None
    inside = path.relative_to(checkout)
    # An environment may lie inside of a checkout.
    is_installed = not _INSTALLED.isdisjoint(inside.parts) or path.is_relative_to(sysconfig.get_path("stdlib"))
    return None if is_installed else str(inside)


def _installed_in_place(checkouts: Sequence[Path]) -> Iterator[str]:
    """Yield the packages of projects that are installed from where they lie (`pip install -e`), by PEP 610."""
    for project in importlib.metadata.distributions():
        source = json.loads(project.read_text("direct_url.json") or "{}").get("url", "")
        path = Path(unquote(urlsplit(source).path)).resolve()
        if source.startswith("file:") and any(path.is_relative_to(one) for one in checkouts):
            yield from (project.read_text("top_level.txt") or "").split()


@contextlib.contextmanager
def own_imports(checkout: str, roots: Sequence[str]) -> Iterator[None]:
    """Let processes that start meanwhile import from these directories of a checkout first."""
    before = os.environ.get(_VARIABLE)
    own = [str(Path(checkout, root).resolve()) for root in roots]
    if own:
        os.environ[_VARIABLE] = os.pathsep.join([*own, *([before] if before else [])])
    try:
        yield
    finally:
        if own and before is None:
            del os.environ[_VARIABLE]
        elif own and before is not None:
            os.environ[_VARIABLE] = before


def holds_module(checkout: Path, name: str) -> bool:
    """Return whether a checkout has what `python -m name` runs."""
    path = Path(*name.split("."))
    places = (path.with_suffix(".py"), path / "__main__.py")
    return any((checkout / root / place).is_file() for root in ROOTS for place in places)


def _packages(root: Path) -> Iterator[str]:
    """Yield what could be imported from a directory."""
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        name = path.stem if path.suffix == ".py" else path.name
        if name.isidentifier() and (path.suffix == ".py" or path.is_dir()):
            yield name


def _imported_from(name: str) -> list[Path]:
    """Return the directories in which a rank would find a package: several only of a namespace's parts; none: nowhere.

    Whatever has no file is nowhere, too.
    """
    before = list(sys.path)
    sys.path[:] = before[1:]
    try:
        spec = None if name in sys.stdlib_module_names else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    finally:
        sys.path[:] = before
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place).resolve().parent for place in spec.submodule_search_locations]
    return [] if spec.origin is None else [Path(spec.origin).resolve().parent]


def _is_copy(installed: Path, own: Path, name: str) -> bool:
    """Return whether what is installed under a name is a copy of a checkout's, as `pip install` makes it.

    Another project's package of the same name must not be put behind the checkout's: the script may mean that one.
    """
    if not (own / name).is_dir() or not (installed / name).is_dir():
        one, other = (directory / f"{name}.py" for directory in (installed, own))
        return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()
    if not any((directory / name / "__init__.py").is_file() for directory in (own, installed)):
        # A namespace is whose its parts are.
        return any(_is_copy(installed / name, own / name, part) for part in _packages(own / name))
    modules, there = ({path.name for path in (directory / name).glob("*.py")} for directory in (own, installed))
    special = {"__init__.py", "__main__.py"}
    if not modules - special:
        return bool(modules) and not there - special
    return len((modules & there) - special) >= _COPY_SHARE * len(modules - special)
