"""What exporters of different years and makers write, and what is strange in their names and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpdoctor.errors import TraceError
from dpdoctor.trace.model import UNKNOWN, Collective, Group, Kind
from dpdoctor.trace.reader import rank_of, read
from tests.builders.documents import complete, document, event_names, kernel, read_bytes

UNIX_US = 1_669_783_687_464_181


def test_an_event_of_today(tmp_path: Path) -> None:
    event = kernel("gemm", 3743411223546.042, 6.619, correlation=5179, **{"External id": 45, "bytes": 800})
    events = read_bytes(tmp_path, document(event, baseTimeNanoseconds=1767189312000000000)).events
    assert (events.begin_ns.tolist(), events.end_ns.tolist()) == ([3743411223546042], [3743411223552661])
    assert (events.kind.tolist(), events.device.tolist(), events.stream.tolist()) == ([Kind.KERNEL], [1], [20])
    assert (events.correlation.tolist(), events.external.tolist()) == ([5179], [45])
    assert events.num_bytes.tolist() == [800]


def test_an_event_of_2021(tmp_path: Path) -> None:
    kernel_2021 = complete("gemm", UNIX_US, 2, cat="Kernel", pid=3, tid="stream 7", args={"external id": 50})
    launch_2021 = complete("cudaLaunchKernel", UNIX_US, 1, cat="Runtime", tid="5555")
    trace = read_bytes(tmp_path, document(kernel_2021, launch_2021))
    events = trace.events
    assert events.begin_ns.tolist() == [UNIX_US * 1000] * 2
    assert events.kind.tolist() == [Kind.KERNEL, Kind.RUNTIME]
    assert (events.device.tolist(), events.stream.tolist()) == ([3, UNKNOWN], [7, UNKNOWN])
    assert events.external.tolist() == [50, UNKNOWN]
    assert trace.threads[1].tid == "5555"


def test_streams_of_rocm_are_hexadecimal(tmp_path: Path) -> None:
    event = complete(cat="kernel", pid=2, tid=1, args={"stream": "0x1f", "device": 2, "correlation": "12"})
    events = read_bytes(tmp_path, document(event)).events
    assert (events.stream.tolist(), events.correlation.tolist()) == ([31], [12])


@pytest.mark.parametrize(
    ("category", "kind"),
    [("gpu_memcpy", Kind.MEMCPY), ("Memset", Kind.MEMSET), ("cuda_driver", Kind.RUNTIME), ("Operator", Kind.CPU_OP)],
)
def test_categories(tmp_path: Path, category: str, kind: Kind) -> None:
    assert read_bytes(tmp_path, document(complete(cat=category))).events.kind.tolist() == [kind]


def test_what_is_not_used_is_not_kept(tmp_path: Path) -> None:
    others = [complete(cat="python_function"), complete(cat="Trace"), {"ph": "s", "id": 1, "ts": 1}, {"ph": "("}]
    assert event_names(read_bytes(tmp_path, document(*others, complete("kept"), {"ph": "X"}))) == ["kept"]


@pytest.mark.parametrize("behind", [True, False])
def test_the_header_may_stand_before_or_behind_the_events(tmp_path: Path, behind: bool) -> None:
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    header = {
        "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": [group]},
        "deviceProperties": [{"id": 0, "name": "A100"}, {"id": 1, "name": "A100"}],
        "host_name": "node-7",
        "baseTimeNanoseconds": 1767189312000000000,
        "unknown": [{"traceEvents": [{"ph": "X"}, {"ph": "X"}]}, {}],
    }
    events = [complete(), complete("aten::mul")]
    parts = {"traceEvents": events, **header} if behind else {**header, "traceEvents": events}
    trace = read_bytes(tmp_path, json.dumps(parts).encode())
    assert event_names(trace) == ["aten::add", "aten::mul"]
    assert (trace.rank, trace.world_size, trace.backend, trace.host) == (1, 2, "nccl", "node-7")
    assert trace.base_ns == 1767189312000000000
    assert trace.devices == ("A100", "A100")
    assert trace.groups == (Group(name="0", description="default_pg", ranks=(0, 1)),)


@pytest.mark.parametrize(
    "header",
    [
        {"distributedInfo": {"rank": -1, "world_size": 10**30, "backend": 5, "pg_config": [[], {"ranks": ["0"]}]}},
        {"distributedInfo": [1], "deviceProperties": {"name": 1}, "baseTimeNanoseconds": "0", "host_name": None},
        {"distributedInfo": {"rank": True}, "baseTimeNanoseconds": 10**30},
    ],
)
def test_a_header_of_wrong_types_says_nothing(tmp_path: Path, header: dict[str, object]) -> None:
    trace = read_bytes(tmp_path, document(complete(), **header))
    assert (trace.rank, trace.world_size, trace.backend, trace.host, trace.base_ns) == (None, None, None, None, 0)
    assert all(group.ranks == () for group in trace.groups)


@pytest.mark.parametrize(
    "content", [b"[]", b'{"traceEvents":[]}', b'{"traceEvents" :\n[ ] ,"a":1}', b' [ {"ph":"M"}]\n']
)
def test_a_trace_without_complete_events(tmp_path: Path, content: bytes) -> None:
    trace = read_bytes(tmp_path, content)
    assert (len(trace.events), len(trace.memory), trace.names, trace.damage) == (0, 0, (), None)


def test_a_bare_array_of_events(tmp_path: Path) -> None:
    assert event_names(read_bytes(tmp_path, json.dumps([complete("a"), complete("b")]).encode())) == ["a", "b"]


def test_a_comma_behind_the_last_event(tmp_path: Path) -> None:
    content = b'{"traceEvents":[' + json.dumps(complete("a")).encode() + b' ,\n ],"host_name":"h"}'
    trace = read_bytes(tmp_path, content)
    assert (event_names(trace), trace.host, trace.damage) == (["a"], "h", None)


def test_missing_fields(tmp_path: Path) -> None:
    events = read_bytes(tmp_path, b'[{"ph":"X","cat":"kernel"},{"ph":"X","cat":"cpu_op","args":null}]').events
    assert events.end_ns.tolist() == [0, 0]
    assert events.device.tolist() == [UNKNOWN, UNKNOWN]
    assert events.stream.tolist() == [UNKNOWN, UNKNOWN]


def test_arguments_of_any_type_are_no_reason_to_refuse_a_trace(tmp_path: Path) -> None:
    odd = {"correlation": [1], "External id": {}, "bytes": 10**30, "stream": None, "device": 1e300, "Seq": "x"}
    odd |= {"Collective name": ["a"], "Process Group Ranks": "[0, 1, ...", "dtype": {}, "Group size": 1.5e300}
    trace = read_bytes(tmp_path, document(complete(cat="kernel", pid="x", tid=[].__len__(), args=odd), kernel()))
    events = trace.events
    assert events.correlation.tolist() == [UNKNOWN, UNKNOWN]
    assert events.device.tolist() == [UNKNOWN, 1]
    assert events.num_bytes.tolist() == [UNKNOWN, UNKNOWN]
    (said,) = trace.collectives
    assert (said.ranks, said.group_size, said.seq, said.in_bytes) == ((), None, None, None)


@pytest.mark.parametrize(
    "name",
    [
        "</script><script>alert(1)</script>&amp;\"'",
        "void gemm<float, 4>(float*, int)" * 4000,
        "核函数 \U0001f680 ядро",
        'braces }, { and "quotes\\" \\\\" and ]} here',
        "\u2028\x7f\ttab",
        "\ud83d\ude80".encode("utf-16", "surrogatepass").decode("utf-16"),
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_names_survive(tmp_path: Path, name: str, ascii_only: bool) -> None:
    content = json.dumps({"traceEvents": [complete(name), complete(name)]}, ensure_ascii=ascii_only).encode()
    assert event_names(read_bytes(tmp_path, content)) == [name, name]


def test_a_surrogate_without_its_other_half_is_an_error_with_its_place(tmp_path: Path) -> None:
    content = document(complete("fine"), complete("half \ud83d of it"))
    with pytest.raises(TraceError, match=f"byte {content.index(b' of it')}"):
        read_bytes(tmp_path, content)


def test_impossible_times_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    events = [complete(dur=-1), complete(ts=1e300), complete(ts=-1e18), complete(dur=1e17), complete("fine")]
    memory = {"ph": "i", "name": "[memory]", "ts": 1e300, "args": {}}
    trace = read_bytes(tmp_path, document(*events, memory, complete(dur=-1, cat="python_function")))
    assert event_names(trace) == ["fine"]
    assert len(trace.memory) == 0
    (note,) = trace.notes
    assert "5 events" in note
    assert "impossible" in note


def test_threads_have_the_names_that_metadata_give_them(tmp_path: Path) -> None:
    label = {"ph": "M", "name": "thread_name", "pid": 5, "tid": 7, "args": {"name": "thread 7 (gloo)"}}
    other = {"ph": "M", "name": "process_name", "pid": 5, "tid": 7, "args": {"name": "python"}}
    trace = read_bytes(tmp_path, document(complete(), label, other, complete(tid="8")))
    assert [(thread.pid, thread.tid, thread.name) for thread in trace.threads] == [
        ("5", "7", "thread 7 (gloo)"),
        ("5", "8", ""),
    ]


def test_memory_events(tmp_path: Path) -> None:
    def memory(device_type: int, total: int) -> dict[str, object]:
        args = {"Device Type": device_type, "Device Id": 1, "Total Allocated": total, "Total Reserved": 2 * total}
        return {"ph": "i", "name": "[memory]", "ts": 1.5, "args": args}

    found = read_bytes(tmp_path, document(memory(0, 8), memory(1, 16), {"ph": "i", "name": "x", "ts": 2})).memory
    assert found.at_ns.tolist() == [1500, 1500]
    assert found.device.tolist() == [UNKNOWN, 1]
    assert (found.allocated_bytes.tolist(), found.reserved_bytes.tolist()) == ([8, 16], [16, 32])


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("ddp/rank3/trace.json.gz", 3),
        ("rank3/rank-12.json", 12),
        ("v100x2_ddp_rank1.json.gz", 1),
        ("trace_8_Rank_2.json", 2),
        ("frank1/trace.json", None),
        ("rank/12345678901234567890/t.json", None),
        ("host_1234.5678.pt.trace.json", None),
    ],
)
def test_ranks_in_names(path: str, rank: int | None) -> None:
    assert rank_of(Path("folder", path)) == rank


def test_the_header_says_the_rank_before_the_name(tmp_path: Path) -> None:
    path = tmp_path / "rank7.json"
    path.write_bytes(document(complete(), distributedInfo={"rank": 0}))
    assert read(path).rank == 0
    path.write_bytes(document(complete()))
    assert read(path).rank == 7


METADATA = {
    "Collective name": "allreduce",
    "dtype": "BFloat16",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
    "Seq": 41,
}


def only(folder: Path, event: dict[str, Any]) -> Collective:
    """Return what is said of this event, which follows one that says nothing."""
    (said,) = read_bytes(folder, document(complete(), event)).collectives
    return said


def test_metadata_of_nccl(tmp_path: Path) -> None:
    assert only(tmp_path, kernel("ncclDevKernel_AllReduce", **METADATA)) == Collective(
        row=1,
        name="allreduce",
        dtype="BFloat16",
        in_bytes=2000,
        out_bytes=2000,
        group="0",
        group_size=2,
        ranks=(0, 1),
        seq=41,
    )


@pytest.mark.parametrize("ranks", ["[0, 1, ..., 7]", "", 5, [0.5], None, {"a": 1}, ["0"], "[" * 3000])
def test_ranks_that_are_not_written_whole(tmp_path: Path, ranks: object) -> None:
    assert only(tmp_path, kernel(**{**METADATA, "Process Group Ranks": ranks})).ranks == ()


def test_ranks_as_a_list(tmp_path: Path) -> None:
    assert only(tmp_path, kernel(**{**METADATA, "Process Group Ranks": [3, 5]})).ranks == (3, 5)


@pytest.mark.parametrize(
    ("nelems", "dtype"), [(-1, "Float"), (10**30, "Float"), ("9", "Float"), (9, "Strange"), (9, 4)]
)
def test_sizes_that_cannot_be(tmp_path: Path, nelems: object, dtype: object) -> None:
    assert only(tmp_path, kernel(**{**METADATA, "In msg nelems": nelems, "dtype": dtype})).in_bytes is None


@pytest.mark.parametrize(
    ("dims", "types", "num_bytes"),
    [
        ([[2, 3], [5]], ["float", "long int"], 64),
        ([[[10], [20, 2]], []], [["c10::BFloat16", "double"], ""], 340),
        ([[[10], [20]]], ["c10::Half"], 60),
        ([[]], ["float"], 4),
        ([[7]], ["Strange"], None),
        ([[-7]], ["float"], None),
        ([[10**12, 10**12]], ["float"], None),
        ([["7"]], ["float"], None),
        ("[[7]]", ["float"], None),
        ([[7]], None, None),
    ],
)
def test_shapes_of_spans(tmp_path: Path, dims: object, types: object, num_bytes: int | None) -> None:
    said = only(tmp_path, complete("gloo:all_reduce", args={"Input Dims": dims, "Input type": types}))
    assert (said.name, said.in_bytes, said.out_bytes) == (None, num_bytes, None)


def test_shapes_of_other_operators_are_not_kept(tmp_path: Path) -> None:
    event = complete("aten::mm", args={"Input Dims": [[2, 3]], "Input type": ["float"]})
    assert read_bytes(tmp_path, document(event)).collectives == ()


def test_text_that_cannot_be_decoded_says_nothing(tmp_path: Path) -> None:
    event = complete("gloo:all_reduce", args={"Input Dims": [[4]], "Input type": ["HERE"]})
    (said,) = read_bytes(tmp_path, document(event).replace(b"HERE", b"\xff")).collectives
    assert said.in_bytes is None
