from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dpdoctor.records import (
    HAND_WRITTEN,
    PARAMETERS_EQUAL,
    Check,
    Collective,
    Conversion,
    Counters,
    Strategy,
    WrappedModule,
)
from dpdoctor.rules.replicas_differ import RULE
from tests.builders import cases

UNIT = WrappedModule(name="Net", line="train.py:9", num_parameters=1, trainable_bytes=4)
DIFFER = Check(name=PARAMETERS_EQUAL, ok=None, text="parameters differ between ranks")
EQUAL = Check(name=PARAMETERS_EQUAL, ok=True, text="parameters are equal")
DDP = Strategy(name="ddp", facts="1 bucket")
BY_HAND = Strategy(
    name=HAND_WRITTEN, facts="6 calls of all_reduce in a step", line="train.py:20", calls=6, of_gradients=True
)


def conversion(*ways: Strategy, check: Check = DIFFER) -> Conversion:
    return Conversion(modules=(UNIT,), strategies=ways, proof=(check,))


def native(found: Conversion, world_size: int = 2, **fields: Any) -> cases.ModeFacts:
    return cases.case("native", world_size=world_size, conversion=found, **fields)


def exchanging(**num_bytes: int) -> Counters:
    of_kind = {kind: Collective(count=1, num_bytes=number) for kind, number in num_bytes.items()}
    return Counters(operators=1, collectives=of_kind, inputs=())


def reducing(num_bytes: int) -> Counters:
    return exchanging(all_reduce=num_bytes)


FIRES = {
    "by hand": native(conversion(BY_HAND)),
    "by hand, in half the bytes": native(conversion(BY_HAND), counters=reducing(2)),
    "by hand, with a loss": native(conversion(BY_HAND), counters=reducing(5)),
    "by hand, gathered and averaged by each rank": native(
        conversion(replace(BY_HAND, facts="6 calls of all_gather in a step")),
        counters=exchanging(all_gather=8, all_reduce=1),
    ),
    "by hand, in a ring": native(
        conversion(replace(BY_HAND, facts="6 calls of send in a step")), counters=exchanging()
    ),
    "ddp": native(conversion(DDP)),
    "ddp around all": native(conversion(replace(DDP, trainable_bytes=4))),
    "ddp around a part, and each rank trains the rest by itself": native(
        conversion(replace(DDP, trainable_bytes=3)), counters=exchanging(all_reduce=3, broadcast=9)
    ),
    "ddp around a part, and the others by hand": native(
        conversion(replace(DDP, trainable_bytes=1), BY_HAND), counters=reducing(4)
    ),
    "ddp with a hook that averages": native(conversion(replace(DDP, hook="bf16_compress_hook"))),
}
SILENT = {
    "equal": native(conversion(BY_HAND, check=EQUAL)),
    "not all, as those of experts": native(conversion(BY_HAND), counters=reducing(3)),
    "not all, and something is gathered": native(
        conversion(replace(BY_HAND, facts="1 call of all_gather in a step"), BY_HAND), counters=reducing(3)
    ),
    "ddp around a part, as the gate of experts": native(conversion(replace(DDP, trainable_bytes=3))),
    "ddp around a part, and tokens go to experts": native(
        conversion(replace(DDP, trainable_bytes=3)), counters=exchanging(all_reduce=3, all_to_all=1)
    ),
    "ddp around a part, and what experts made is added up": native(
        conversion(replace(DDP, trainable_bytes=3)), counters=reducing(4)
    ),
    "one rank": native(conversion(BY_HAND), 1),
    "sharded": native(conversion(Strategy(name="fsdp2"))),
    "hybrid": native(conversion(DDP, Strategy(name="zero"))),
    "parameters are averaged after the update": native(conversion(replace(BY_HAND, of_gradients=False))),
    "local SGD": native(conversion(replace(DDP, hook="post_localSGD_hook"))),
    "a hook of the script's own": native(conversion(replace(DDP, hook="main.<locals>.exchange"))),
    "now and then": native(conversion(BY_HAND, Strategy(name="now and then"))),
    "the same samples, as of tensor parallel ranks": native(replace(conversion(BY_HAND), same_samples=True)),
    "no strategy is known": native(conversion()),
    "nothing is known": cases.case("native", world_size=2),
    "a converting mode": cases.case("ddp", world_size=2, conversion=conversion()),
}


def test_the_line_is_the_exchange_of_a_script_that_averages_by_hand() -> None:
    found = RULE.check(FIRES["by hand"])
    assert (found.severity, found.status, found.line) == ("warning", "confirmed", "train.py:20")
    assert found.code is not None
    assert "broadcast" in found.code


def test_the_line_is_the_call_of_a_wrapped_model() -> None:
    found = RULE.check(FIRES["ddp"])
    assert (found.line, found.code) == ("train.py:9", None)
    assert "before it is wrapped" in found.remedy
    part = RULE.check(FIRES["ddp around a part, and each rank trains the rest by itself"])
    assert "wrap all that is trained" in part.remedy
