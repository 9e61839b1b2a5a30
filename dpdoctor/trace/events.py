"""The shapes in which trace events are decoded: one small struct per phase letter, only the fields that are used."""

from __future__ import annotations

import functools
import operator
from typing import Any

import msgspec

from dpdoctor.trace.columns import UNKNOWN
from dpdoctor.trace.faults import UNDECODABLE

# Exporters disagree on the types: CUDA writes `"stream": 7`, ROCm `"stream": "0x0"`, old files `"tid": "stream 7"`.
Loose = int | float | str | None


class Args(msgspec.Struct, frozen=True, gc=False):
    """What is used of a complete event's arguments; of any type, as a wrong one is no reason to refuse the trace.

    Names of files from 2021 are in lower case.
    """

    correlation: Any = UNKNOWN
    device: Any = None
    stream: Any = None
    num_bytes: Any = msgspec.field(name="bytes", default=UNKNOWN)
    external_id: Any = msgspec.field(name="External id", default=None)
    external_id_2021: Any = msgspec.field(name="external id", default=UNKNOWN)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    collective: Any = msgspec.field(name="Collective name", default=None)
    dtype: Any = None
    in_nelems: Any = msgspec.field(name="In msg nelems", default=None)
    out_nelems: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=UNKNOWN)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=msgspec.Raw())
    seq: Any = msgspec.field(name="Seq", default=UNKNOWN)


class Complete(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """Something with a begin and a duration, in microseconds."""

    cat: str = ""
    name: str = ""
    pid: Loose = None
    tid: Loose = None
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None


class InstantArgs(msgspec.Struct, frozen=True, gc=False):
    """What is used of a memory event."""

    device_type: Any = msgspec.field(name="Device Type", default=None)
    device: Any = msgspec.field(name="Device Id", default=UNKNOWN)
    allocated: Any = msgspec.field(name="Total Allocated", default=UNKNOWN)
    reserved: Any = msgspec.field(name="Total Reserved", default=UNKNOWN)


class Instant(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="i"):
    """Something without duration; of interest are those named [memory]."""

    name: str = ""
    ts: float = 0.0
    args: InstantArgs | None = None


class MetaArgs(msgspec.Struct, frozen=True, gc=False):
    """The name that a metadata event gives."""

    name: Any = ""


class Meta(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="M"):
    """A name for a process or thread."""

    name: str = ""
    pid: Loose = None
    tid: Loose = None
    args: MetaArgs | None = None


# Flows and the other letters of the Trace Event Format carry nothing that is used: decoded into nothing.
_UNUSED = tuple(
    msgspec.defstruct(f"Unused{number}", [], frozen=True, gc=False, tag_field="ph", tag=letter)
    for number, letter in enumerate("BEICbnestfPNODSTpFVvRc(),=")
)
Event = Complete | Instant | Meta | Any  # what a slice holds; Any: one of _UNUSED
DECODER: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(
    list[functools.reduce(operator.or_, _UNUSED, Complete | Instant | Meta)]  # type: ignore[misc]
)
NO_ARGS = Args()
NO_INSTANT_ARGS = InstantArgs()


def plain(raw: msgspec.Raw | bytes) -> Any:
    """Return what was left undecoded as lists, texts and numbers; None: nothing, or not decodable."""
    try:
        return msgspec.json.decode(raw) if raw else None
    except UNDECODABLE:
        return None
