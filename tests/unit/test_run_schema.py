"""The JSON schema that the package carries describes the run.json that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest

from dpdoctor import rundir
from dpdoctor.analysis import Analysis
from tests.builders import diagnosed_runs, runs, traced_runs

jsonschema = pytest.importorskip("jsonschema", reason="the extra `test` installs it")

RUNS: dict[str, Callable[[], Analysis]] = {
    "cpu": runs.cpu_run,
    "gpu": runs.gpu_run,
    "failed": runs.failed_run,
    "diagnosed": diagnosed_runs.diagnosed_run,
    "traced": traced_runs.late_run,
}


@pytest.fixture(scope="module")
def schema() -> Any:
    text = (resources.files("dpdoctor") / "run.schema.json").read_text("utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


@pytest.mark.parametrize("name", RUNS)
def test_run_json_is_what_the_schema_says(name: str, schema: Any) -> None:
    assert list(schema.iter_errors(json.loads(rundir.encode(RUNS[name]().summary)))) == []


def test_a_key_of_schema_1_is_missed(schema: Any) -> None:
    found = json.loads(rundir.encode(runs.cpu_run().summary))
    mode = next(iter(found["modes"].values()))
    mode["adoption"] = mode.pop("conversion")
    assert not schema.is_valid(found)
