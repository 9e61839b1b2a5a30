"""A rank that a server forked is what a new process is, fact by fact; what differs is known and named here."""

from __future__ import annotations

import json

import pytest

from tests.faults.conftest import SHORT, in_turn

# Both are said to whoever asks for forked ranks. A script whose ranks come to differ by the order of a set trains
# apart in new processes, and not in forked ones.
OF_SIBLINGS = {"parent", "hash", "orig_argv"}
# A server is a module too; and what torch imports for the first optimizer is there before it is made. Behind a wall
# of the kernel's nobody asks which modules hold file functions.
SERVERS_OWN = {"dpdoctor.launch", "dpdoctor.launch.keeper", "dpdoctor.launch.kept", "dpdoctor.worker.overlay.holders"}
OF_SERVERS = {"modules", "modules of training"}


@pytest.fixture
def facts_and_losses(profile, tmp_path):
    """Return a function that profiles and returns what each rank printed: of its process, and its losses."""

    def run(mode, ranks, *, new_processes):
        done = profile("process_facts.py", "--modes", mode, "--no-baseline", *SHORT, new_processes=new_processes)
        assert done.exit_code == 0, done.output
        printed = [done.printed(mode, rank).splitlines() for rank in range(ranks)]
        done.root.rename(tmp_path / f"{mode}-{new_processes}")
        return [(json.loads(lines[0]), lines[1:20]) for lines in printed]

    return run


@pytest.mark.parametrize(("mode", "ranks"), [in_turn("single", 1), ("ddp", 2)])
def test_a_forked_rank_is_what_a_new_one_is(facts_and_losses, mode, ranks):
    new = facts_and_losses(mode, ranks, new_processes=True)
    forked = facts_and_losses(mode, ranks, new_processes=False)
    for (expected, losses), (found, of_forked) in zip(new, forked, strict=True):
        differing = {name: (expected[name], found[name]) for name in expected if expected[name] != found[name]}
        assert {name: both for name, both in differing.items() if name not in OF_SIBLINGS | OF_SERVERS} == {}
        assert set(expected["modules"]) <= set(found["modules"])
        assert set(found["modules"]) <= set(expected["modules of training"]) | SERVERS_OWN
        assert len(losses) > 10
        assert of_forked == losses
    assert {found["hash"] for found, _ in forked} == {forked[0][0]["hash"]}


def test_another_environment_is_another_servers(profile, monkeypatch):
    # Read by numpy and torch while they are imported, so that a fork of any other server would not know of it.
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_LOGS", "+recompiles")
    done = profile("process_facts.py", "--modes", "single", *SHORT)
    facts = json.loads(done.printed("single").splitlines()[0])
    assert facts["environment"]["TORCH_LOGS"] == "+recompiles"
