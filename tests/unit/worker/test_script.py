from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.spec import RunSpec
from dpdoctor.worker import script
from tests.builders.models import Net, X, sgd
from tests.builders.rig import Rig

TELL = """
import json, os, pathlib, sys
import beside
told = json.dumps([__name__, sys.argv, os.getcwd(), sys.path[0], beside.HERE])
pathlib.Path(sys.argv[1]).write_text(told)
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
"""


def spec(target: str, cwd: Path, *args: str, is_module: bool = False) -> RunSpec:
    return RunSpec(
        target=target,
        is_module=is_module,
        args=args,
        cwd=str(cwd),
        modes=(),
        requested_modes=(),
        threads_per_device=1,
    )


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Give a directory with a script, a module beside it, and a package."""
    for folder in (tmp_path / "scripts", tmp_path / "work" / "package"):
        folder.mkdir(parents=True)
        (folder / "tell.py").write_text(TELL)
    (tmp_path / "scripts" / "beside.py").write_text("HERE = 'beside the script'")
    (tmp_path / "work" / "beside.py").write_text("HERE = 'in the directory'")
    (tmp_path / "work" / "package" / "__init__.py").write_text("")
    yield tmp_path
    for name in ("beside", "package"):
        sys.modules.pop(name, None)


def told(project: Path) -> list[Any]:
    return json.loads((project / "work" / "told.json").read_text())


def test_a_script_runs_as_python_would_run_it(project: Path) -> None:
    path = str(project / "scripts" / "tell.py")
    script.run(spec(path, project / "work", "told.json"))
    work = str(project / "work")
    assert told(project) == ["__main__", [path, "told.json"], work, str(project / "scripts"), "beside the script"]


def test_a_module_runs_as_python_would_run_it(project: Path) -> None:
    script.run(spec("package.tell", project / "work", "told.json", is_module=True))
    work = str(project / "work")
    path = f"{work}/package/tell.py"
    assert told(project) == ["__main__", [path, "told.json"], work, work, "in the directory"]


@pytest.mark.parametrize("code", [0, 3])
def test_the_scripts_exit_is_passed_on(project: Path, code: int) -> None:
    with pytest.raises(SystemExit) as left:
        script.run(spec(str(project / "scripts" / "tell.py"), project / "work", "told.json", str(code)))
    assert left.value.code == code


def raised(act: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it raises is what is looked at
        act()
    return caught.value


def test_what_a_library_raises_beside_training_is_no_ablations_fault(tmp_path: Any) -> None:
    assert not script.may_be_an_ablations(raised(lambda: json.loads("{")))
    assert not script.may_be_an_ablations(raised((tmp_path / "absent").read_text))
    assert not script.may_be_an_ablations(raised(lambda: torch.save(lambda: 0, tmp_path / "function.pt")))


def test_a_check_of_the_users_own_may_have_met_what_an_ablation_changed() -> None:
    def check() -> None:
        raise ValueError("the loss is not finite")

    assert script.may_be_an_ablations(raised(check))


def test_what_training_raises_may_be_an_ablations_fault(rig: Rig) -> None:
    model = Net()
    held = sgd(model)
    model(X).mean().backward()
    held.step()
    assert len(rig.steps) == 1
    assert script.may_be_an_ablations(raised(lambda: model(torch.ones(4, 5))))
    assert script.may_be_an_ablations(raised(lambda: nn.functional.cross_entropy(model(X), X.long())))
    loss = model(X).mean()
    loss.backward()
    assert script.may_be_an_ablations(raised(loss.backward))
    held.param_groups[0]["lr"] = "fast"
    model(X).mean().backward()
    assert script.may_be_an_ablations(raised(held.step))
