"""The deliberate defects follow the code: each can still be planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.mutation_check import DEFECTS, ROOT, Defect, plant


@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_stands_once_in_its_file(name: str) -> None:
    defect = DEFECTS[name]
    assert (ROOT / "dpdoctor" / defect.path).read_text("utf-8").count(defect.before) == 1
    assert defect.before != defect.after


def test_a_defect_that_cannot_be_planted_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dpdoctor").mkdir()
    (tmp_path / "dpdoctor" / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match="2 times; a defect needs it once"):
        plant(Defect("a.py", "x = 1", "x = 2"), tmp_path)
