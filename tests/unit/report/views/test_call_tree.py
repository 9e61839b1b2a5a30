"""The call tree as it is shown: shares, order, where it begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor import units
from dpdoctor.analysis import Analysis, CallNode, analyse
from dpdoctor.report import page
from dpdoctor.report.blocks import Absent, Call, Calls
from dpdoctor.report.documents.run import of_run
from dpdoctor.report.views import call_tree
from tests.builders.records import even_rank, launch, run
from tests.builders.sections import build, only

NODES = (
    CallNode(parent=-1, where="/x/main.py:9", function="<module>", looks=200, own_looks=0),
    CallNode(parent=0, where="/x/train.py:4", function="train", looks=200, own_looks=10),
    CallNode(parent=1, where="torch.cat", function="", looks=120, own_looks=120),
    CallNode(parent=1, where="/x/train.py:7", function="<lambda>", looks=70, own_looks=20),
    CallNode(parent=3, where="torch.Tensor.backward", function="", looks=50, own_looks=50),
)


def analysis(nodes: Sequence[CallNode] = NODES) -> Analysis:
    return analyse(run({"single": [launch(even_rank(100, call_tree=tuple(nodes)))]}))


def every(calls: Sequence[Call]) -> Iterator[Call]:
    for call in calls:
        yield call
        yield from every(call.calls)


def shown(nodes: Sequence[CallNode] = NODES) -> Calls:
    (tree,) = only(Calls, build("call_tree", analysis(nodes)))
    return tree


def test_shares_are_of_all_looks_and_own_ones_add_up() -> None:
    calls = {call.name: call for call in every(shown().calls)}
    assert {name: (call.share, call.own_share) for name, call in calls.items()} == {
        "train.py:4 train": (1.0, 0.05),
        "train.py:7 <lambda>": (0.35, 0.1),
        "torch.Tensor.backward": (0.25, 0.25),
        "torch.cat": (0.6, 0.6),
    }
    assert sum(call.own_share for call in calls.values()) == 1.0


def test_lines_of_the_script_come_first() -> None:
    (train,) = shown().calls
    assert [call.name for call in train.calls] == ["train.py:7 <lambda>", "torch.cat"]


def test_the_way_to_the_loop_stands_above() -> None:
    assert "Reached through main.py:9 <module>." in shown().caption


def test_the_line_of_the_script_with_most_time_is_the_result() -> None:
    assert call_tree.result(analysis()) == f"single: {units.share(0.35)} of host time in train.py:7 <lambda>"


def test_few_looks_are_said_to_be_few() -> None:
    assert "large shares only" not in shown().caption
    few = (CallNode(parent=-1, where="/x/a.py:1", function="f", looks=12, own_looks=12),)
    assert "large shares only" in shown(few).caption


def test_names_are_escaped_on_the_page() -> None:
    html = page.render(of_run(analysis()))
    assert "train.py:7 &lt;lambda&gt;" in html
    assert "<lambda>" not in html


def test_without_a_trace_there_is_none() -> None:
    (absent,) = only(Absent, build("call_tree", analysis(())))
    assert absent.reason == call_tree.NO_TREE
