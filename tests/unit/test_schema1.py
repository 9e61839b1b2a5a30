"""What dpdoctor recorded and saved in schema 1 is read: every such recording in tests/data, and a baseline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dpdoctor import rundir, schema1
from dpdoctor.gate import baselines
from dpdoctor.records import Launch
from dpdoctor.spec import SCHEMA
from tests.benchmarks.planted.recording import EXPECTED, path_of, unpack
from tests.builders import diagnosed_runs, traced_runs
from tests.builders.launched_runs import of

IN_SCHEMA_2 = {"plain_optimizer"}
RECORDINGS = sorted({path.name.split(".")[0] for path in path_of("*").parent.glob("*.tar.xz")} - IN_SCHEMA_2)
AUTHOR = baselines.Author(at="2026-01-02T03:04:05Z", by="ada", reason="first of its name")


def leaves(value: Any) -> Iterator[str]:
    """Yield every string, number and truth value below a decoded JSON value, whatever its key is."""
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)
    elif value is not None:
        yield json.dumps(value)


def in_schema_1(value: Any) -> Any:
    """Return what schema 1 made of a record: by its class, not by the types of fields, as the reader goes."""
    if isinstance(value, dict):
        return {key: in_schema_1(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [in_schema_1(one) for one in value]
    if not isinstance(value, msgspec.Struct):
        return value
    fields = dict(zip(value.__struct_encode_fields__, msgspec.structs.astuple(value), strict=True))
    name = type(value).__name__
    old = {new: key for key, new in schema1.RENAMES.get(name, {}).items()}
    if name == "Waterfall":
        fields |= {of: {old.get(key, key): one for key, one in fields[of].items()} for of in ("terms", "sources")}
    return {old.get(key, key): in_schema_1(1 if key == "schema" else one) for key, one in fields.items()}


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_is_read_whole(name: str, tmp_path: Path) -> None:
    root = unpack(path_of(name), tmp_path)
    assert json.loads((root / rundir.HEADER).read_text())["schema"] == schema1.SCHEMA_1
    run = rundir.read(root)
    assert run.header.schema == SCHEMA
    for mode, launches in run.modes.items():
        for launch, path in zip(launches, (root / mode,), strict=True):
            _same(launch, path)


def _same(launch: Launch, path: Path) -> None:
    """Hold a launch against its files: a field that was not found under its new name would be its default."""
    for rank in launch.ranks:
        folder = path / f"rank{rank.index}"
        raw = json.loads((folder / rundir.RANK).read_text())
        assert rank.record is not None
        assert [one.name for one in rank.record.ablations] == [one["name"] for one in raw["arms"]]
        assert rank.record.stage == raw["phase"]
        assert [one.name for one in rank.record.conversion.modules] == [one["name"] for one in raw["adoption"]["units"]]
        windows = [json.loads(line) for line in (folder / rundir.WINDOWS).read_text().splitlines()]
        assert [(w.ablation, w.core_benchmark_ns) for w in rank.windows] == [
            (w["arm"], w.get("core_pace_ns")) for w in windows
        ]
        for file, found in ((rundir.RANK, rank.record), (rundir.DIGEST, rank.digest)):
            if found is not None:
                lost = set(leaves(json.loads((folder / file).read_text()))) - set(leaves(msgspec.to_builtins(found)))
                assert lost <= {str(schema1.SCHEMA_1)}


@pytest.mark.parametrize("name", ["diagnosed", "traced"])
def test_a_summary_in_the_old_keys_is_the_same_summary(name: str) -> None:
    run = {"diagnosed": diagnosed_runs.diagnosed_run, "traced": traced_runs.late_run}[name]().summary
    old = json.dumps(in_schema_1(run)).encode()
    assert b"adoption" in old
    assert b"conversion" not in old
    assert schema1.decoder(type(run))(old) == run


def test_a_baseline_is_read(tmp_path: Path) -> None:
    saved = baselines.save(tmp_path / "main.json", of(10, 11, 12), AUTHOR)
    (tmp_path / "old.json").write_text(json.dumps(in_schema_1(saved)))
    assert baselines.read(tmp_path / "old.json") == saved


def test_every_key_in_the_map_is_one_of_schema_2() -> None:
    """The class has the new key, and the old one no longer."""
    known: dict[str, set[str]] = {}
    for kind in _records():
        known.setdefault(kind.__name__, set()).update(kind.__struct_encode_fields__)
    for name, keys in schema1.RENAMES.items():
        if name != "Waterfall":
            assert set(keys.values()) <= known[name], name
            assert not set(keys) - set(keys.values()) & known[name], name


def _records() -> Iterator[type[msgspec.Struct]]:
    from dpdoctor import digest, records, spec
    from dpdoctor.analysis.base import summary

    for module in (digest, records, spec, summary, summary):
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, msgspec.Struct):
                yield one


def test_recordings_are_there() -> None:
    assert len(RECORDINGS) > 10
    assert EXPECTED.exists()


# What schema 1 called what has another name now: nothing that was recorded then may be lost.
KEYS_OF_SCHEMA_1 = {
    "Recording": "arms",
    "LaunchRecord": "changed refused",
    "RankRecord": "adoption arms phase",
    "WindowRecord": "arm core_pace_ns",
    "Conversion": "units",
    "Digest": "not_judged",
    "DeviceStep": "budget handling_by",
    "RunSummary": "not_judged pace",
    "ModeSummary": "adoption arms budget changed core_pace no_trace "
    "observer_cost own profiler_cost refused throughput_with_edges wall",
    "RankSummary": "phase",
    "CrossCheck": "allowed arm gained seen",
    "Finding": "gain of predicted short",
    "LoaderSummary": "built control edge number ready receive slow",
    "SlowFetches": "of usual",
    "Waterfall": "contention input peers",
}


def test_no_key_of_schema_1_is_forgotten() -> None:
    known = {name: set(keys) for name, keys in schema1.RENAMES.items()}
    assert {name: set(keys.split()) for name, keys in KEYS_OF_SCHEMA_1.items()} == known
