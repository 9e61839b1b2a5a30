from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dpdoctor.gate import sides
from dpdoctor.gate.model import SIDES
from dpdoctor.gate.sides import holds_module, own_imports
from dpdoctor.launch.progress import Silence
from dpdoctor.records import Run
from tests.builders import launched_runs, records

ROOT = Path(__file__).parents[3]
# As in a rank: dpdoctor is found by the path that it was started with, and the present directory is no part of it.
ASK = """
import sys
from pathlib import Path
sys.path.insert(0, "as in a command")
from dpdoctor.gate.sides import import_roots
print(*import_roots(Path(sys.argv[1]), Path(sys.argv[2])), sep="\\n")
"""


def roots(base: Path, head: Path, *paths: Path) -> list[str]:
    """Return the import roots in a Python that was started with these directories on its path."""
    path = os.pathsep.join(map(str, (*paths, ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(base), str(head)], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def package(directory: Path, name: str = "planted_package") -> Path:
    (directory / name).mkdir(parents=True)
    (directory / name / "__init__.py").touch()
    return directory


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "base", tmp_path / "head"


@pytest.mark.parametrize("root", [".", "src"])
def test_a_package_that_is_installed_from_head_is_each_sides_own(both: tuple[Path, Path], root: str) -> None:
    base, head = (package(side / root) and side for side in both)
    assert roots(base, head, head / root) == [root]
    assert roots(base, head, base / root) == [root]


def test_what_no_path_leads_to_is_left_to_the_script(both: tuple[Path, Path]) -> None:
    base, head = (package(side) for side in both)
    assert roots(base, head) == []


@pytest.mark.parametrize("root", [".", "src"])
def test_of_what_is_installed_as_a_copy_each_side_has_its_own(
    both: tuple[Path, Path], tmp_path: Path, root: str
) -> None:
    base, head = (package(side / root) and side for side in both)
    installed = package(tmp_path / "installed")
    for directory in (base / root, head / root, installed):
        (directory / "planted_package" / "layers.py").touch()
    # What the change adds is not installed yet.
    (head / root / "planted_package" / "more.py").touch()
    assert roots(base, head, installed) == [root]


def installed_by_pip(directory: Path, name: str = "planted_package") -> Path:
    """Return a directory of installed packages, dpdoctor among them."""
    for each in (name, "dpdoctor"):
        package(directory, each)
    (directory / "dpdoctor" / "__main__.py").touch()
    return directory


@pytest.mark.parametrize("place", ["lib/site-packages", "head/.venv/lib/site-packages"])
def test_a_copy_beside_dpdoctor_is_each_sides_own_too(both: tuple[Path, Path], tmp_path: Path, place: str) -> None:
    base, head = (package(side / "src") for side in both)
    installed = installed_by_pip(tmp_path / place)
    for directory in (base, head, installed):
        (directory / "planted_package" / "layers.py").touch()
    assert roots(*both, installed) == ["src"]


@pytest.mark.parametrize("init", [True, False])
def test_whatever_directory_of_a_checkout_is_on_the_path_is_each_sides_own(
    both: tuple[Path, Path], *, init: bool
) -> None:
    for side in both:
        package(side / "packages" / "one" / "src", "company/part")
        if init:
            (side / "packages" / "one" / "src" / "company" / "__init__.py").touch()
    assert roots(*both, both[1] / "packages" / "one" / "src") == ["packages/one/src"]


def test_a_namespaces_part_is_a_copy_like_a_package(both: tuple[Path, Path], tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    for directory in (both[0] / "src", both[1] / "src", installed):
        package(directory, "company/part")
        (directory / "company" / "part" / "layers.py").touch()
    assert roots(*both, installed) == ["src"]
    (installed / "company" / "part" / "layers.py").rename(installed / "company" / "part" / "other.py")
    assert roots(*both, installed) == []


def test_what_is_installed_in_place_by_a_finder_is_found_by_what_pip_noted(
    both: tuple[Path, Path], tmp_path: Path
) -> None:
    for side in both:
        package(side / "python")
    installed = tmp_path / "installed"
    noted = installed / "planted-1.0.dist-info"
    noted.mkdir(parents=True)
    (noted / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (noted / "top_level.txt").write_text("planted_package\n")
    (noted / "direct_url.json").write_text(json.dumps({"url": both[1].as_uri(), "dir_info": {"editable": True}}))
    assert roots(*both, installed) == []  # nothing imports it
    (installed / "planted_package").symlink_to(both[1] / "python" / "planted_package")
    assert roots(*both, installed) == ["python"]


def test_another_project_of_the_same_name_is_not_a_checkouts(both: tuple[Path, Path], tmp_path: Path) -> None:
    base, head = (package(side) for side in both)
    installed = package(tmp_path / "installed")
    for directory in (base, head):
        (directory / "planted_package" / "layers.py").touch()
    (installed / "planted_package" / "arrow.py").touch()
    assert roots(base, head, installed) == []


@pytest.mark.parametrize(("text", "expected"), [("a = 1", ["."]), ("a = 2", [])])
def test_a_module_of_one_file_is_a_copy_if_it_is_the_same(
    both: tuple[Path, Path], tmp_path: Path, text: str, expected: list[str]
) -> None:
    installed = tmp_path / "installed"
    for directory, written in ((both[0], "a = 1"), (both[1], "a = 3"), (installed, text)):
        directory.mkdir()
        (directory / "planted_module.py").write_text(written)
    assert roots(*both, installed) == expected


def test_a_module_to_be_run_lies_in_a_checkout_or_not(tmp_path: Path) -> None:
    package(tmp_path / "src", "one")
    (tmp_path / "src" / "one" / "train.py").touch()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "__main__.py").touch()
    found = [holds_module(tmp_path, name) for name in ("one.train", "two", "one", "one.other", "torch")]
    assert found == [True, True, False, False, False]


def test_base_may_lie_inside_of_head(tmp_path: Path) -> None:
    head = tmp_path / "head"
    base = head / "base"
    for side in (head, base):
        package(side / "src")
    assert roots(base, head, base / "src") == ["src"]


def test_a_module_of_one_file(both: tuple[Path, Path]) -> None:
    for side in both:
        side.mkdir()
        (side / "planted_module.py").touch()
    assert roots(*both, both[1]) == ["."]


def test_a_checkout_of_dpdoctor_is_not_what_measures_it(both: tuple[Path, Path]) -> None:
    for side in both:
        package(side)
        package(side, "dpdoctor")
        (side / "dpdoctor" / "__main__.py").touch()
    assert roots(*both, ROOT, both[1]) == []


def test_what_cannot_be_imported_is_passed_over(both: tuple[Path, Path]) -> None:
    for side in both:
        side.mkdir()
        for name in ("sys.py", "not-a-name.py", "notes.txt"):
            (side / name).touch()
    assert roots(*both) == []


def path_of(before: str | None, checkout: Path, found: Sequence[str]) -> tuple[str | None, str | None]:
    """Return PYTHONPATH in the context and after it."""
    os.environ.pop("PYTHONPATH", None)
    if before is not None:
        os.environ["PYTHONPATH"] = before
    with own_imports(str(checkout), found):
        inside = os.environ.get("PYTHONPATH")
    return inside, os.environ.get("PYTHONPATH")


def test_a_sides_own_directories_come_first(tmp_path: Path) -> None:
    own = f"{tmp_path / 'src'}{os.pathsep}{tmp_path}"
    assert path_of("/before", tmp_path, ["src", "."]) == (f"{own}{os.pathsep}/before", "/before")
    assert path_of(None, tmp_path, ["src", "."]) == (own, None)
    assert path_of("/before", tmp_path, []) == ("/before", "/before")
    assert path_of(None, tmp_path, []) == (None, None)


def test_a_pair_of_which_one_side_has_edges_among_its_steady_steps_is_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, edges = (records.ahead(*windows_ms) for windows_ms in (((200, None),) * 4, ((300, 102),) * 4))
    launched = iter([without, edges, edges, edges, without, without])

    def launch(*_: object) -> Run:
        return launched_runs.run(records.launch(next(launched), mode="ddp"))

    monkeypatch.setattr(sides, "launch", launch)
    run = launched_runs.run()
    checkout = sides.Checkout(label="", spec=run.header.spec, header=run.header)
    both = sides.Launches(tmp_path, {"base": checkout, "head": checkout}, Silence(), most=3)
    told = [both(side, number).disturbed for number in (1, 2, 3) for side in SIDES]
    assert told[:1] + told[2:] == [None] * 5
    assert "ddp: its steady steps hold those in which an epoch began" in str(told[1])
