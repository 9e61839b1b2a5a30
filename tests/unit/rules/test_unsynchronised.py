from __future__ import annotations

from dpdoctor.records import Conversion, Strategy, WrappedModule
from dpdoctor.rules.unsynchronised import RULE
from tests.builders import cases

UNIT = WrappedModule(name="Net", line="train.py:9", num_parameters=1, trainable_bytes=4)


def conversion(*names: str) -> Conversion:
    ways = tuple(Strategy(name=name, facts="no collective was issued in 20 steps") for name in names)
    return Conversion(modules=(UNIT,), strategies=ways)


FIRES = {"nothing": cases.case("native", world_size=2, conversion=conversion("none"))}
SILENT = {
    "one rank": cases.case("native", conversion=conversion("none")),
    "ddp": cases.case("native", world_size=2, conversion=conversion("ddp")),
    "a converting mode": cases.case("ddp", world_size=2, conversion=conversion()),
    "nothing is known": cases.case("native", world_size=2),
}


def test_it_is_confirmed_and_says_where_the_model_is_called() -> None:
    found = RULE.check(FIRES["nothing"])
    assert (found.status, found.severity, found.line) == ("confirmed", "critical", "train.py:9")
    assert found.cost.value is None
    assert found.evidence == ("No collective was issued in 20 steps.",)
