from __future__ import annotations

import torch
from torch import nn

from dpdoctor.worker.timing.updates import UNASKED, Updates


def test_a_change_in_place_and_other_memory_are_seen() -> None:
    module = nn.Linear(2, 2)
    updates = Updates(lambda: [module])
    assert not updates.changed()
    updates.note()
    assert not updates.changed()
    with torch.no_grad():
        module.weight.mul_(2)
    assert updates.changed()
    updates.note()
    assert not updates.changed()
    module.weight.data = torch.zeros(2, 2)
    assert updates.changed()


def test_modules_that_come_later_and_frozen_ones() -> None:
    modules: list[nn.Module] = [nn.Linear(2, 2).requires_grad_(False)]
    updates = Updates(lambda: modules)
    updates.note()
    with torch.no_grad():
        modules[0].get_parameter("weight").mul_(2)
    assert not updates.changed()
    modules.append(nn.Linear(2, 2))
    updates.note()
    with torch.no_grad():
        modules[1].get_parameter("weight").mul_(2)
    assert updates.changed()


def test_nothing_is_noted_where_nobody_asks_until_somebody_does() -> None:
    module = nn.Linear(2, 2)
    updates = Updates(lambda: [module])
    for _ in range(UNASKED + 1):
        updates.note()
    told = []
    for _ in range(2):
        with torch.no_grad():
            module.weight.mul_(2)
        told.append(updates.changed())
        updates.note()
    assert told == [False, True]
