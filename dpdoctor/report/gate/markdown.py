"""A gate in GitHub's Markdown: for the summary of a job, and short enough for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor.gate.model import GateResult
from dpdoctor.report.formats.comment import LONGEST_NAME, Part, assembled, plain, table_parts
from dpdoctor.report.gate.content import Content, content


def comment(result: GateResult) -> str:
    """Return the comment, at most report.formats.comment.MOST_CHARACTERS long; what had to be left out is said.

    Text from the runs is shown as it is: no markup, mention, link or element in it comes to life.
    """
    found = content(result)
    last = ", ".join(plain(part, LONGEST_NAME) for part in found.origin)
    return assembled(f"### {plain(found.verdict.sentence)}", list(_parts(found)), f"<sub>{last}</sub>")


def _parts(found: Content) -> Iterator[Part]:
    yield Part(noun="mode", items=tuple(f"- {plain(reason)}" for reason in found.reasons), joint="\n")
    for table in found.tables:
        yield from table_parts(table)
    for title, told in found.lists:
        items = tuple(f"- {plain(line)}" for line in told)
        yield Part(noun="line", items=items, head=f"**{plain(title)}**\n", joint="\n")
