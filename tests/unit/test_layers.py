"""Who may import whom: the table of the design, checked over the syntax tree of every file of the package."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import msgspec
import pytest

from tests.unit.import_graph import Import, cycle, imports, modules
from tools.measure_house import both_ways

PACKAGE = Path(__file__).parents[2] / "dpdoctor"

FOR_ALL = {"catalog", "errors", "units", "redact", "version"}
ALLOWED = {
    "catalog": set(),
    "errors": set(),
    "units": set(),
    "redact": set(),
    "version": set(),
    "schema1": set(),
    "spec": set(),
    "heartbeat": set(),
    "cgroup": set(),
    "digest": set(),
    "loading": set(),
    "records": {"spec", "digest", "loading"},
    "rundir": {"spec", "records", "digest", "loading", "schema1"},
    "trace": set(),
    "attribution": {"trace", "digest"},
    "analysis": {"spec", "digest", "loading", "records", "rundir"},
    "worker": {
        "spec",
        "cgroup",
        "heartbeat",
        "loading",
        "records",
        "rundir",
        "trace",
        "digest",
        "attribution",
    },
    "inject": {"worker"},
    "launch": {"spec", "cgroup", "heartbeat", "records", "rundir"},
    "rules": {"analysis", "digest"},
    "report": {"analysis", "rules", "digest", "gate"},
    "gate": {"spec", "records", "rundir", "schema1", "launch", "analysis", "rules"},
    "__main__": {"cli"},
}
ALLOWED["cli"] = {*ALLOWED, "cli"} - {"__main__"}
# Records are Structs: to make a frozen, slotted dataclass takes forty times as long, at every start of a command.
ONLY_IN = {"torch": "worker", "torchvision": "worker", "plotly": "report", "dataclasses": "worker"}
COPIES = ("replace", "asdict", "astuple")


def violations(package: Path) -> list[str]:
    """Return what breaks the table, one sentence each with file and line."""
    return [
        f"{path.relative_to(package.parent)}:{item.line}: {why}"
        for module, path in modules(package).items()
        for item in imports(module, path)
        if (why := fault(item))
    ]


def fault(item: Import) -> str | None:
    """Return why one import is not allowed, or None."""
    layer, top = layer_of(item.module), item.target.split(".")[0]
    other = layer_of(item.target) if top == "dpdoctor" else ""
    if top in ONLY_IN and layer != ONLY_IN[top]:
        return f"{top} may be imported only in {ONLY_IN[top]}/"
    if layer == "":
        free = not item.at_load or other in {"", *FOR_ALL}
        return None if free else f"the package root may import {item.target} only inside a function"
    if layer not in ALLOWED:
        return f"{layer} has no row in the table of layers"
    free = other not in ALLOWED or other in {layer, *FOR_ALL, *ALLOWED[layer]}
    return None if free else f"{layer} may not import {item.target}"


def layer_of(module: str) -> str:
    """Return the layer of a module: the first name below the package; the package root itself is ''."""
    return f"{module}.".split(".")[1]


def test_the_package_keeps_to_the_table() -> None:
    assert violations(PACKAGE) == []


def test_records_are_not_copied_as_dataclasses() -> None:
    """`dataclasses.replace` and its like refuse a Struct only when they run: mypy lets them take one.

    Nearly everything may meet a record, so nothing calls them; `msgspec.structs` has the same for Structs.
    """
    root = PACKAGE.parent
    files = [path for name in ("dpdoctor", "tests", "tools", "reports") for path in (root / name).rglob("*.py")]
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in files
        if "dataclasses" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if copies_dataclasses(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from dataclasses import dataclass, replace", True),
        ("import dataclasses\ndataclasses.astuple(value)", True),
        ("import dataclasses as dc", True),
        ("from dataclasses import dataclass, field", False),
        ("from msgspec.structs import replace\nreplace(value)", False),
        ("import dataclasses\ndataclasses.fields(value)", False),
    ],
)
def test_a_planted_copy_is_found(source: str, expected: bool) -> None:
    assert any(map(copies_dataclasses, ast.walk(ast.parse(source)))) is expected


def copies_dataclasses(node: ast.AST) -> bool:
    """Return whether a node takes from `dataclasses` what copies or unpacks one, or gives it another name."""
    if isinstance(node, ast.Import):
        return any(alias.name == "dataclasses" and alias.asname for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module == "dataclasses" and any(alias.name in COPIES for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr in COPIES and ast.unparse(node.value) == "dataclasses"


def test_a_struct_that_says_when_it_is_equal_is_unequal_everywhere_else() -> None:
    """A Struct has a `__ne__` of its own, which compares all fields whatever `__eq__` says."""
    names = [name for name, path in modules(PACKAGE).items() if "def __eq__" in path.read_text("utf-8")]
    found = [one for name in names for one in vars(importlib.import_module(name)).values() if isinstance(one, type)]
    structs = [one for one in found if issubclass(one, msgspec.Struct) and "__eq__" in vars(one)]
    assert structs
    assert [one for one in structs if one.__ne__ is not object.__ne__] == []


def test_no_folders_import_each_other_both_ways() -> None:
    """A file in a folder that others stand both above and below is hard to place."""
    files = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    assert both_ways(files) == {}


def test_no_import_cycle_at_load() -> None:
    assert cycle(PACKAGE) is None


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return an empty package with every layer of the table."""
    package = tmp_path / "dpdoctor"
    for layer in ("", *ALLOWED):
        (package / layer).mkdir(parents=True, exist_ok=True)
        (package / layer / "__init__.py").touch()
    return package


@pytest.mark.parametrize(
    ("file", "source", "why"),
    [
        ("rules/slow.py", "from dpdoctor.rundir import read", "rules may not import dpdoctor.rundir.read"),
        ("rules/slow.py", "from dpdoctor import rundir", "rules may not import dpdoctor.rundir"),
        ("rules/slow.py", "import dpdoctor.gate.decide as d", "rules may not import dpdoctor.gate.decide"),
        ("rules/slow.py", "from ..gate import decide", "rules may not import dpdoctor.gate.decide"),
        ("rules/slow.py", "def check():\n    from dpdoctor.report import page", "rules may not import dpdoctor.report"),
        ("trace/kineto.py", "from dpdoctor.spec import RunSpec", "trace may not import dpdoctor.spec"),
        ("launch/watch.py", "from dpdoctor.worker import main", "launch may not import dpdoctor.worker"),
        ("report/sections/a.py", "from ... import launch", "report may not import dpdoctor.launch"),
        ("analysis/a.py", "if TYPE_CHECKING:\n    import dpdoctor.rules", "analysis may not import dpdoctor.rules"),
        ("units/a.py", "from dpdoctor.cli import main", "units may not import dpdoctor.cli"),
        ("cli/a.py", "from dpdoctor import __main__", "cli may not import dpdoctor.__main__"),
        ("launch/a.py", "import torch.distributed.run", "torch may be imported only in worker/"),
        ("cli/a.py", "def f():\n    from torch import nn", "torch may be imported only in worker/"),
        ("analysis/a.py", "from torchvision import models", "torchvision may be imported only in worker/"),
        ("rules/a.py", "import importlib\nimportlib.import_module('torch')", "torch may be imported only in worker/"),
        ("worker/a.py", "import plotly.graph_objects as go", "plotly may be imported only in report/"),
        ("digest.py", "from dataclasses import dataclass", "dataclasses may be imported only in worker/"),
        ("__init__.py", "from dpdoctor.analysis import analyse", "only inside a function"),
        ("__init__.py", "def f():\n    import torch", "torch may be imported only in worker/"),
        ("predict.py", "import math", "predict has no row in the table of layers"),
    ],
)
def test_a_planted_violation_is_found(tree: Path, file: str, source: str, why: str) -> None:
    path = tree / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"\n{source}\n", "utf-8")
    (found,) = violations(tree)
    assert found.startswith(f"dpdoctor/{file}:")
    assert why in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("rules/slow.py", "from dpdoctor.analysis import Analysis\nfrom dpdoctor.version import __version__"),
        ("worker/modes/ddp.py", "import torch\nfrom torchvision import models\nfrom ..clock import now"),
        ("report/sections/a.py", "import plotly.graph_objects\nfrom . import b\nfrom ...rules import find"),
        ("cli/gate.py", "from dpdoctor import gate, launch, report, rundir\nfrom dpdoctor.cli import options"),
        ("__init__.py", "from dpdoctor import errors\ndef f():\n    from dpdoctor.analysis import analyse"),
    ],
)
def test_what_the_table_allows_is_let_through(tree: Path, file: str, source: str) -> None:
    path = tree / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, "utf-8")
    assert violations(tree) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"worker/a.py": "import dpdoctor.worker.b", "worker/b.py": "from dpdoctor.worker import a"}, {"a", "b"}),
        ({"worker/a.py": "from . import b", "worker/b.py": "class B:\n    from .a import x"}, {"a", "b"}),
        ({"worker/__init__.py": "from .a import x", "worker/a.py": "from dpdoctor.worker import x"}, {"worker", "a"}),
        ({"worker/__init__.py": "from ..spec import x", "spec/b.py": "import dpdoctor.worker.c"}, set()),
        ({"worker/__init__.py": "from dpdoctor import worker"}, set()),
        ({"worker/a.py": "from . import b", "worker/b.py": "def f():\n    from . import a"}, set()),
        ({"worker/a.py": "from . import b", "worker/b.py": "if TYPE_CHECKING:\n    from . import a"}, set()),
        ({"worker/__init__.py": "from .a import x", "worker/a.py": "from .b import y", "worker/b.py": ""}, set()),
        ({"worker/__init__.py": "import dpdoctor.rules.r", "rules/r.py": "import dpdoctor.worker.a"}, {"worker", "r"}),
    ],
)
def test_import_cycles(tree: Path, files: dict[str, str], expected: set[str]) -> None:
    for file, source in files.items():
        (tree / file).write_text(source, "utf-8")
    found = cycle(tree)
    assert {name.rpartition(".")[2] for name in found or ()} == expected
