from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dpdoctor.analysis import Analysis
from dpdoctor.report.formats import markdown
from dpdoctor.report.text import THROUGHPUT_WORDS, capital
from tests.builders import diagnosed_runs, runs, traced_runs
from tests.builders.every_run import EVERY_RUN
from tests.builders.markdown import ALIVE, UNSEEN, elements, seen, tokens

GITHUB_LIMIT = 65_536
OURS = {"<br>", "<sup>", "</sup>", "<span>", "</span>", "<details><summary>Details</summary>", "</details>"}

WHOLE = Path(__file__).parents[3] / "data" / "comments"


def with_failures(number: int, reason: str) -> Analysis:
    """Return a run with so many modes that failed, for such a reason each, with lines to match."""
    found = runs.cpu_run()
    failed = replace(found.summary.modes["fsdp"], stderr_tail=(reason,) * 20)
    modes = {
        **found.summary.modes,
        **{f"mode{place}": replace(failed, reason=f"{place} {reason}") for place in range(number)},
    }
    return replace(found, summary=replace(found.summary, modes=modes))


@pytest.mark.parametrize("run", [diagnosed_runs.diagnosed_run, traced_runs.cpu_trace])
def test_the_whole_of_a_comment(run: Callable[[], Analysis]) -> None:
    assert markdown.comment(run()) == (WHOLE / f"{run.__name__}.md").read_text("utf-8")


@pytest.mark.parametrize("run", EVERY_RUN)
def test_no_text_of_a_run_comes_to_life(run: Callable[[], Analysis]) -> None:
    comment = markdown.comment(run())
    assert elements(comment) <= OURS
    assert {token.type for token in tokens(comment)}.isdisjoint({"link_open", "image", "em_open", "code_inline", "hr"})
    assert not [token.content for token in tokens(comment) if token.type == "text" and ALIVE.search(token.content)]


def test_hostile_text_is_there_to_be_read() -> None:
    shown = seen(markdown.comment(diagnosed_runs.hostile_findings())).replace(UNSEEN, "")
    assert capital(traced_runs.HOSTILE[0]) in shown


@pytest.mark.parametrize("letter", ["x", "$", "`", "@", "<", "|", "\n", "\N{FIRE}"])
def test_a_comment_is_never_longer_than_github_takes(letter: str) -> None:
    comment = markdown.comment(with_failures(50, letter * 20_000))
    assert len(comment) < GITHUB_LIMIT
    assert elements(comment) <= OURS
    assert comment.count("<details>") == comment.count("</details>")


def test_what_was_left_out_is_counted() -> None:
    comment = markdown.comment(with_failures(100, "word " * 2_000))
    shown = comment.count("<details>")
    # DataParallel, which is inactive, has no lines to show.
    assert 5 < shown < 20
    assert f"Left out, because a comment holds no more: {101 - shown} failures." in comment
    assert seen(comment).replace(UNSEEN, "").rstrip().endswith(THROUGHPUT_WORDS)


def test_a_table_keeps_its_first_rows() -> None:
    comment = markdown.comment(with_failures(3_000, "x"))
    rows = [line for line in comment.splitlines() if line.startswith("| ")][2:]
    assert rows[0].startswith("| single")
    assert f"{3_004 - len(rows):,} rows" in comment
