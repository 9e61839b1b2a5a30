"""What an interpreter of the user's finds when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dpdoctor import inject, rundir
from dpdoctor.spec import NATIVE_VARIABLE

HERE = str(Path(inject.__file__).parent)


def python(code: str, directory: Path, *first: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([HERE, *first, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, NATIVE_VARIABLE: str(directory)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_the_users_own_sitecustomize_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = __file__")
    done = python("import sitecustomize, sys; print(theirs, sitecustomize.__file__, sys.path)", tmp_path, str(tmp_path))
    own = str(tmp_path / "sitecustomize.py")
    assert done.stdout.startswith(f"{own} {own} "), done.stderr
    assert HERE not in done.stdout


def test_nothing_is_imported_and_nothing_is_printed(tmp_path):
    plain = "import sys; print(*sorted(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    without = subprocess.run([sys.executable, "-c", plain], env=environment, capture_output=True, text=True, check=True)
    done = python(plain, tmp_path)
    assert set(done.stdout.split()) - set(without.stdout.split()) <= {"sitecustomize"}
    assert done.stderr == ""


def test_each_process_leaves_a_line(tmp_path):
    python("pass", tmp_path)
    pid, _, executable, text = (tmp_path / rundir.PROCESSES).read_text().strip().split("\t")
    assert pid.isdecimal()
    assert (executable, text) == (sys.executable, "started")


def test_a_directory_that_is_gone_does_not_matter(tmp_path):
    done = python("print('ran')", tmp_path / "gone")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_what_fails_in_arming_is_noted_and_the_script_runs(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("answer = 42")  # no torch at all
    done = python("import torch; print(torch.answer)", tmp_path, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert "failed: ModuleNotFoundError" in (tmp_path / rundir.PROCESSES).read_text()


def test_a_process_that_joins_others_over_rpc_says_so(tmp_path):
    code = (
        "import os; os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='0')\n"
        "from torch.distributed import rpc\n"
        "rpc.init_rpc('alone', rank=0, world_size=1)\n"
        "rpc.shutdown()\n"
    )
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"\t{rundir.OVER_RPC}\n" in (tmp_path / rundir.PROCESSES).read_text()
