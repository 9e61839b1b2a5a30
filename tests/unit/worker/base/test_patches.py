from __future__ import annotations

import os
import types
from collections.abc import Iterator

import pytest

from dpdoctor.worker.base.patches import Patches


class Base:
    def greet(self) -> str:
        return "base"


class Child(Base):
    def part(self) -> str:
        return "child"


@pytest.fixture
def patched() -> Iterator[Patches]:
    patches = Patches()
    patches.replace(Child, "greet", lambda _: "patched")
    patches.replace(Child, "part", lambda _: "patched")
    yield patches
    patches.undo()
    assert (Child().greet(), Child().part()) == ("base", "child")


def test_one_original_comes_back_alone(patched: Patches) -> None:
    assert patched.restore(Child, "part")
    assert (Child().greet(), Child().part()) == ("patched", "child")
    assert not patched.restore(Child, "part")
    assert Child().part() == "child"


def test_an_inherited_attribute_is_inherited_again(patched: Patches) -> None:
    patched.undo()
    assert "greet" not in vars(Child)
    assert Child().greet() == "base"


def test_the_first_original_comes_back_after_two_replacements(patched: Patches) -> None:
    patched.replace(Child, "part", lambda _: "patched again")
    assert Child().part() == "patched again"
    patched.undo()
    assert Child().part() == "child"


@pytest.mark.parametrize("times", [1, 2])
def test_what_somebody_else_put_around_ours_stays(times: int) -> None:
    owner, patches = types.ModuleType("some.module"), Patches()
    owner.answer = lambda: 42  # type: ignore[attr-defined]
    for _ in range(times):
        patches.replace(owner, "answer", owner.answer)
    theirs = owner.answer = lambda: 43  # type: ignore[attr-defined]
    patches.undo()
    assert owner.answer is theirs
    assert not patches.restore(owner, "answer")


def test_modules_and_objects_can_be_patched_too(patched: Patches) -> None:
    module, child = types.ModuleType("some.module"), Child()
    patched.replace(module, "answer", 42)
    patched.replace(child, "part", "own")
    assert patched.names[-2:] == ("some.module.answer", f"{Child.__module__}.Child.part")
    patched.undo()
    assert not hasattr(module, "answer")
    assert vars(child) == {}


def test_hooks_are_removed_once(patched: Patches) -> None:
    removed = []
    patched.add("some.hook", lambda: removed.append(1))
    assert patched.names[-1] == "some.hook"
    patched.undo()
    patched.undo()
    assert removed == [1]


def test_names_tell_everything_that_was_ever_replaced(patched: Patches) -> None:
    patched.undo()
    assert patched.names == (f"{Child.__module__}.Child.greet", f"{Child.__module__}.Child.part")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_the_originals_and_its_parent_keeps_the_patches(patched: Patches) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, f"{Child().greet()} {Child().part()}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    assert os.read(reading, 100) == b"base child"
    os.close(reading)
    assert (Child().greet(), Child().part()) == ("patched", "patched")
    assert patched.names
