from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.builders import plugins


@pytest.fixture
def package(tmp_path: Path) -> Iterator[ModuleType]:
    """Return a package on disk with two plug-ins and one private helper."""
    folder = tmp_path / "plugged_in"
    folder.mkdir()
    for name, source in (("__init__", ""), ("zebra", "MODE = 26"), ("ape", "MODE = 1"), ("_shared", "")):
        (folder / f"{name}.py").write_text(source, "utf-8")
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("plugged_in")
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugged_in"]:
        del sys.modules[name]


def test_names_are_found_without_importing_them(package: ModuleType) -> None:
    assert plugins.names(package) == ["ape", "zebra"]
    assert "plugged_in.ape" not in sys.modules


def test_collect_returns_the_one_object_of_each_module_by_name(package: ModuleType) -> None:
    assert list(plugins.collect(package, "MODE").items()) == [("ape", 1), ("zebra", 26)]


def test_a_new_file_is_all_that_a_new_plug_in_needs(package: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "plugged_in" / "bee.py").write_text("MODE = 2", "utf-8")
    importlib.invalidate_caches()
    assert plugins.collect(package, "MODE")["bee"] == 2


def test_a_file_without_the_object_is_named(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"ape\.py is a plug-in of plugged_in but offers no RULE"):
        plugins.collect(package, "RULE")
