from __future__ import annotations

import itertools
import time

from dpdoctor.worker.observer import hook_cost


def test_the_cost_of_a_hook_is_what_the_clock_says() -> None:
    # A clock that moves by one each time it is read: between the two readings around a hook its phase reads it twice.
    readings = itertools.count()
    assert hook_cost(lambda: next(readings)) == (3, 3)


def test_a_hook_costs_something_on_a_real_clock() -> None:
    assert min(hook_cost(time.perf_counter_ns)) > 0
