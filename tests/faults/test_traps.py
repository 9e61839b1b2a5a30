"""What unmodified scripts do to a tool like this, beyond docs/compatibility.md: never ok and wrong, always ended."""

from __future__ import annotations

import pytest

from tests.faults.conftest import SHORT


def test_the_module_that_is_called_is_wrapped_not_the_one_that_holds_it(profile):
    done = profile("predictor_beside.py", "--modes", "ddp", "--no-baseline", *SHORT)
    assert done.exit_code == 0, done.output
    conversion = done.record("ddp").conversion
    assert [unit.name for unit in conversion.modules] == ["Linear"]
    assert all(check.ok for check in conversion.proof)
    assert done.record("ddp").counters.collectives["all_reduce"].num_bytes == (8 * 2 + 2) * 4


@pytest.mark.parametrize("how", ["swallow", "finally"])
def test_a_script_that_will_not_end_is_ended_by_force(profile, how):
    done = profile("hard_to_end.py", "--modes", "single", *SHORT, args=[how])
    assert done.exit_code == 0, done.output
    assert done.record("single").ending == "stopped by force"
    assert done.mode("single")["throughput"]["value"] > 0
