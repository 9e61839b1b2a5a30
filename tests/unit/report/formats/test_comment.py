"""Text of a run in Markdown, read back by a parser of CommonMark with GitHub's tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.redact import printable
from dpdoctor.report.formats import comment
from dpdoctor.report.text import clipped
from tests.builders.markdown import ALIVE, UNSEEN, elements, seen, tokens

PLACES = ("{}", "### {}", "- {}", "| head |\n| --- |\n| {} |")
TEXTS = (
    "plain words, 42% of num_workers=4",
    "<img src=x onerror=alert(1)>",
    "</details><script>alert(2)</script><!-- ",
    "[a](javascript:alert(1)) ![b](x) [^1] [x]: http://evil",
    "@octocat @org/team and octo@example.com",
    "#1 octo/repo#12 GH-3 JIRA-45",
    "https://evil.example/x www.evil.example ftp://evil <https://evil>",
    "0123456789abcdef0123456789abcdef01234567 deadbeef",
    ":tada: :+1: :white_check_mark:",
    "| a | b | \\| c \\\\| d",
    "`code` ``` *em* **strong** __main__ ~~gone~~",
    "&lt;b&gt; &#64; &amp;",
    "$x$ and $$y$$ cost 5 $",
    "# heading",
    "> quote",
    "- item",
    "+ item",
    "1. one",
    "2) two",
    "=== ",
    "---",
    ":--- | ---",
    "- [ ] task",
    "    code",
    "two\nlines\r\n\r\n# three",
    "\N{RIGHT-TO-LEFT OVERRIDE}esrever\x1b[31m\x00",
    "\\",
    "ends with \\",
    "",
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_seen_as_it_is_wherever_it_stands(text: str, place: str) -> None:
    assert misread(text, place) == []


@given(text=st.text(st.sampled_from("ab0fGH1 \\`*_[]{}()<>#|~&$@:/-+=.!^\"'\n\t\u202e"), max_size=40))
def test_any_text_is_seen_as_it_is(text: str) -> None:
    assert [found for place in PLACES for found in misread(text, place)] == []


def misread(text: str, place: str) -> list[str]:
    """Return what is wrong: a reader sees another text, something in it is alive, or it is not as a word would be."""
    found, ordinary = place.format(comment.plain(text)), place.format("word")
    shown = seen(found).removeprefix("head")
    structure = {token.type for token in tokens(found)} - {"html_inline", "text"}
    wrong = {
        f"seen as {shown!r}": shown.replace(UNSEEN, "") != printable(clipped(text, comment.LONGEST_TEXT)),
        f"alive in {shown!r}": bool(ALIVE.search(shown)),
        f"elements {elements(found)}": not elements(found) <= {"<span>", "</span>"},
        f"structure {structure}": not structure <= {token.type for token in tokens(ordinary)},
    }
    return [what for what, is_wrong in wrong.items() if is_wrong]


def test_a_long_text_keeps_its_begin_and_its_end() -> None:
    shown = seen(comment.plain("begin " + "x" * 10_000 + " end"))
    assert len(shown) == comment.LONGEST_TEXT
    assert shown.startswith("begin")
    assert shown.endswith("end")


def test_what_is_plain_stays_legible_in_the_source() -> None:
    assert comment.plain("ddp: 42% (39–45) of each step") == "ddp: 42% (39–45) of each step"


@pytest.mark.parametrize("line", ["print('a')", "```", "    ````python", "~~~", "</details>", "@octocat #1", "$x$", ""])
def test_lines_stay_in_their_block(line: str) -> None:
    (block,) = tokens(comment.fenced(["before", line, "after"], "text"))
    assert (block.type, block.info, block.content) == ("fence", "text", f"before\n{line}\nafter\n")


def test_of_many_lines_the_last_are_shown_and_of_a_long_one_the_begin() -> None:
    (block,) = tokens(comment.fenced([*map(str, range(1_000)), "x" * 10_000], "text"))
    lines = block.content.splitlines()
    assert len(lines) == comment.MOST_LINES
    assert lines[-2] == "999"
    assert len(lines[-1]) == comment.LONGEST_LINE


def test_a_line_cannot_command_the_terminal_that_the_comment_is_printed_to() -> None:
    assert "\x1b" not in comment.fenced(["\x1b[31mred"], "text") + comment.plain("\x1b[31mred")
