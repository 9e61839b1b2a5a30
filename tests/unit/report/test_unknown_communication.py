"""What reports show where it is unknown what ranks communicate: never a figure for it, and no other by its name."""

from __future__ import annotations

from dpdoctor.report import page
from dpdoctor.report.blocks import Absent, Table
from dpdoctor.report.documents.run import of_run
from dpdoctor.report.formats import markdown
from dpdoctor.report.traces.timeline import timeline
from tests.builders import traced_runs
from tests.builders.sections import build, charts, only
from tests.builders.terminal import shown

REASON = "no kernel is known to communicate"
FOUND = traced_runs.unknown_communication()
WHOLE = """\
4 ranks: communication is unknown; 77% of the step computes or communicates and 18% is idle (most of it
waiting for data).
Shares of 12 whole steps on 4 devices, added up. Why communication is unknown: rank 0 and 3 other traces: no
kernel is known to communicate. A profiler slows what it watches, the host most.

rank    device  compute  exposed comm   h2d  copy  idle        total  overlap
─────────────────────────────────────────────────────────────────────────────
rank 0  GPU 0       77%       unknown  4.0%  1.0%   18%  100 ms/step  unknown
rank 1  GPU 0       77%       unknown  4.0%  1.0%   18%  100 ms/step  unknown
rank 2  GPU 0       77%       unknown  4.0%  1.0%   18%  100 ms/step  unknown
rank 3  GPU 0       77%       unknown  4.0%  1.0%   18%  100 ms/step  unknown
The compute may hold communication, which is unknown."""


def test_the_terminal() -> None:
    assert shown(FOUND, width=110) == WHOLE


def test_the_comment() -> None:
    comment = markdown.comment(FOUND)
    assert REASON in comment
    assert "77% | unknown | 4.0%" in comment
    assert "may hold communication" in comment


def test_where_the_time_goes() -> None:
    (table,) = only(Table, build("breakdown", FOUND))
    for row in table.rows:
        cells = dict(zip((column.title for column in table.columns), row, strict=True))
        assert cells["Exposed comm."].text == cells["Overlap"].text == "unknown"
        assert cells["Compute"].note == "may hold communication"
    chart = charts("breakdown", FOUND)["The time of each device"]
    assert next(trace["name"] for trace in chart.traces) == "compute (may hold communication)"
    assert "exposed communication" not in chart.alternative
    assert "exposed communication" not in {trace["name"] for trace in chart.traces}
    assert any(REASON in absent.reason for absent in only(Absent, build("breakdown", FOUND)))


def test_the_sections_of_communication_say_why_they_are_empty() -> None:
    for section in ("collectives", "parallel"):
        (absent,) = only(Absent, build(section, FOUND))
        assert REASON in absent.reason


def test_the_page_and_the_timeline_have_no_share_of_it() -> None:
    assert REASON in page.render(of_run(FOUND))
    said = [event["args"]["exposed communication"] for event in timeline(FOUND) if "compute" in event.get("args", {})]
    assert set(said) == {"unknown"}


def test_of_one_rank_only_the_others_keep_their_figures() -> None:
    text = shown(traced_runs.partly_unknown_communication(), width=110)
    assert "rank 0  GPU 0       77%       unknown" in text
    assert "rank 1  GPU 0       46%           31%" in text
    assert "The compute of rank 0 may hold communication" in text
