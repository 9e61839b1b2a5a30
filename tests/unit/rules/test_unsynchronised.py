from __future__ import annotations

from dpdoctor.records import Adoption, Strategy, Unit
from dpdoctor.rules.unsynchronised import RULE
from tests.builders import cases

UNIT = Unit(name="Net", line="train.py:9", num_parameters=1, trainable_bytes=4)


def adoption(*names: str) -> Adoption:
    ways = tuple(Strategy(name=name, facts="no collective was issued in 20 steps") for name in names)
    return Adoption(units=(UNIT,), strategies=ways)


FIRES = {"nothing": cases.case("native", world_size=2, adoption=adoption("none"))}
SILENT = {
    "one rank": cases.case("native", adoption=adoption("none")),
    "ddp": cases.case("native", world_size=2, adoption=adoption("ddp")),
    "a converting mode": cases.case("ddp", world_size=2, adoption=adoption()),
    "nothing is known": cases.case("native", world_size=2),
}


def test_it_is_confirmed_and_says_where_the_model_is_called() -> None:
    found = RULE.check(FIRES["nothing"])
    assert (found.status, found.severity, found.line) == ("confirmed", "critical", "train.py:9")
    assert found.cost.value is None
    assert found.evidence == ("No collective was issued in 20 steps.",)
