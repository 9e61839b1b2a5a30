"""Modules that hold file functions, whenever they were imported."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from dpdoctor.worker.overlay import holders


def held(name: str) -> list[tuple[str, object]]:
    return next(found for module, found in holders.modules() if module.__name__ == name)


def test_a_module_holds_what_it_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_holder.py").write_text("from os import replace as swap, path\nlength = len\n")
    module = importlib.import_module("planted_holder")
    assert held("planted_holder") == [("swap", os.replace)]
    module.swap = None
    assert held("planted_holder") == []
    del sys.modules["planted_holder"]


def test_a_module_of_the_same_name_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "planted_again.py"
    for text, expected in (
        ("from os import replace", ["replace"]),
        ("from os import unlink, rmdir", ["unlink", "rmdir"]),
    ):
        path.write_text(text)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.import_module("planted_again")
        assert [name for name, _ in held("planted_again")] == expected
        del sys.modules["planted_again"]


def test_a_module_that_was_being_imported_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    looks = "import importlib, dpdoctor.worker.overlay.holders as holders\nimportlib.reload(holders)\n"
    (tmp_path / "planted_slowly.py").write_text(f"from os import unlink\n{looks}from os import replace\n")
    importlib.import_module("planted_slowly")
    assert [name for name, _ in held("planted_slowly")] == ["unlink", "replace"]
    del sys.modules["planted_slowly"]


def test_what_a_module_that_was_looked_through_let_go_of_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_early.py").write_text("from os import unlink\n")
    module = importlib.import_module("planted_early")
    importlib.reload(holders)
    assert held("planted_early") == [("unlink", os.unlink)]
    module.unlink = None
    assert held("planted_early") == []
    del sys.modules["planted_early"]


def test_open_is_one_of_them() -> None:
    assert ("open", open) in held("io")
    assert ("open", open) in held("builtins")
