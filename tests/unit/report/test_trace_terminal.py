from __future__ import annotations

from msgspec.structs import replace

from tests.builders import traced_runs
from tests.builders.terminal import shown

WHOLE = """\
4 ranks: 46% of the step computes, 31% is exposed communication and 18% is idle (most of it waiting for data);
rank 2 is late by 30.0 ms in nearly every step.
Shares of 12 whole steps on 4 devices, added up. A profiler slows what it watches, the host most.

rank    device  compute  exposed comm   h2d  copy  idle        total  overlap
─────────────────────────────────────────────────────────────────────────────
rank 0  GPU 0       46%           31%  4.0%  1.0%   18%  100 ms/step      50%
rank 1  GPU 0       46%           31%  4.0%  1.0%   18%  100 ms/step      50%
rank 2  GPU 0       46%           31%  4.0%  1.0%   18%  100 ms/step      50%
rank 3  GPU 0       46%           31%  4.0%  1.0%   18%  100 ms/step      50%"""


def test_the_whole_of_a_run() -> None:
    assert shown(traced_runs.late_run(), width=110) == WHOLE


def test_damage_notes_and_what_could_not_be_read_are_said() -> None:
    run = traced_runs.cpu_trace()
    (digest,) = (rank.digest for rank in run.run.modes["trace"][0].ranks)
    assert digest is not None
    lines = shown(run).splitlines()
    for words in (digest.damage, *digest.notes):
        (line,) = [line for line in lines if words in line]
        assert line.startswith("rank 34")
    assert sum(line.startswith("1 trace ") for line in lines) == 1


def test_on_eighty_columns_no_figure_is_cut() -> None:
    text = shown(traced_runs.late_run(), width=80)
    assert "…" not in text
    assert text.count("100 ms/step") == 4


def test_of_many_devices_the_rest_is_counted() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    many = replace(digest, devices=tuple(traced_runs.device(index) for index in range(43)))
    assert "3 more" in shown(traced_runs.trace_run(many))


def test_a_name_cannot_command_the_terminal() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    hostile = replace(digest, rank=None, source="\x1b[31mred\x07", notes=("\x1b]0;title\x07",))
    text = shown(traced_runs.trace_run(hostile))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[31m" not in text
    assert "red\N{REPLACEMENT CHARACTER}" in text


def test_markup_in_a_trace_is_shown_not_obeyed() -> None:
    (digest,) = traced_runs.late_rank(1, 0)
    text = shown(traced_runs.trace_run(replace(digest, notes=("[bold]x[/bold]",))))
    assert "[bold]x[/bold]" in text
